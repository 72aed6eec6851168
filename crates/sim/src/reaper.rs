//! Drops things on a thread where dropping may block.
//!
//! What a graph retained is released when its last replay has finished, which a scheduler thread
//! finds out; a destructor that waits there would stop the device.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

static REAPER: OnceLock<Option<Sender<Box<dyn Any + Send>>>> = OnceLock::new();

/// Drops `item` soon, on a thread of its own; does not block.
pub fn release_later(item: Box<dyn Any + Send>) {
    let sender = REAPER.get_or_init(|| {
        let (sender, receiver) = channel::<Box<dyn Any + Send>>();
        let thread = std::thread::Builder::new().name("mscclrs-release".into());
        thread
            .spawn(move || {
                for item in receiver {
                    // A destructor that panics must not keep the others from running.
                    let _ =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(item)));
                }
            })
            .ok()
            .map(|_| sender)
    });
    // Without a thread the item is dropped here: late is better than never.
    if let Some(sender) = sender {
        let _ = sender.send(item);
    }
}
