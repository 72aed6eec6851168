//! Drops things on a thread where dropping may block.
//!
//! What a graph retained is released when its last replay has finished, which a scheduler thread
//! finds out; a destructor that waits there would stop the device.

use std::any::Any;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::fork::Process;

type Item = Box<dyn Any + Send>;

/// Ends when its sender is dropped, which happens in the child of a fork only, where it is not.
struct Reaper {
    process: Process,
    /// None where no thread could be started.
    items: Option<Sender<Item>>,
}

static REAPER: Mutex<Option<Reaper>> = Mutex::new(None);

/// Drops `item` soon, on a thread of its own; does not block.
pub fn release_later(item: Item) {
    let items = {
        let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
        if reaper.as_ref().is_none_or(|reaper| !reaper.process.is_this()) {
            *reaper = Some(Reaper { process: Process::default(), items: start() });
        }
        reaper.as_ref().and_then(|reaper| reaper.items.clone())
    };
    // Without a thread the item is dropped here: late is better than never.
    if let Some(items) = items {
        let _ = items.send(item);
    }
}

fn start() -> Option<Sender<Item>> {
    let (sender, receiver) = channel::<Item>();
    let body = move || {
        for item in receiver {
            // A destructor that panics must not keep the others from running.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(item)));
        }
    };
    let thread = std::thread::Builder::new().name("mscclrs-release".into());
    thread.spawn(body).ok().map(|_| sender)
}
