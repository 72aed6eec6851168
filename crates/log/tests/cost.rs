//! What an event costs that nobody is shown.
//!
//! One test: another's listener, on another thread, would have the fields made.

use std::cell::Cell;

use mscclrs_log::{Level, Settings, install};

#[test]
fn what_is_not_shown_is_not_even_made() {
    let made = Cell::new(0);
    let make = || {
        made.set(made.get() + 1);
        0
    };
    // Nobody listens.
    mscclrs_log::error!(MEMORY, bytes = make(), "silent");
    assert_eq!(made.get(), 0);

    let subsystems = "MEMORY".parse().unwrap();
    assert!(install(Settings { level: Level::Info, subsystems, ..Settings::default() }).unwrap());
    mscclrs_log::debug!(MEMORY, bytes = make(), "below the level");
    mscclrs_log::error!(CONN, bytes = make(), "of another subsystem");
    assert_eq!(made.get(), 0);
    mscclrs_log::info!(MEMORY, bytes = make(), "shown");
    assert_eq!(made.get(), 1);

    // The first stays.
    assert!(!install(Settings { level: Level::Trace, ..Settings::default() }).unwrap());
    mscclrs_log::trace!(MEMORY, bytes = make(), "below the level of the first");
    assert_eq!(made.get(), 1);
}
