//! What a world waits for before it begins.

use std::time::Duration;

use mscclrs_sim::{Check, DeviceConfig, Mode, World};

#[test]
fn work_waits_for_every_hold() {
    let world = World::start(Mode::new(Check::Ordered, 0), false).unwrap();
    let device = world.device(DeviceConfig::default());
    // It may be in the middle of waiting for more.
    std::thread::sleep(Duration::from_millis(1));
    let queue = device.create_queue();
    let holds = [world.hold(), world.hold()];
    let [first, second] = holds;
    let ticket = queue.call(Box::new(|| {}));
    drop(first);
    assert_eq!(queue.wait(ticket, Some(Duration::from_millis(50))), Ok(false));
    drop(second);
    assert_eq!(queue.wait(ticket, crate::common::LIMIT), Ok(true));
}
