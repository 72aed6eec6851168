//! Questions to a world that is not at rest: no answer is an error, and not "nothing found".

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mscclrs_sim::{Check, FindingKind, Mode, RunningKernel, Unanswered};

use crate::parts::{Parts, parts};

/// Lets the lanes of `_does_not_give_way` end.
static END: AtomicBool = AtomicBool::new(false);
const SHORT: Duration = Duration::from_millis(50);

parts! {
    // It touches neither memory nor the clock, and then races.
    DoesNotGiveWay "_does_not_give_way" = |args| {
        while !END.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        args.memory.store(1);
    }
}

#[test]
fn what_is_not_known_yet_is_no_absence_of_findings() {
    let parts = Parts::new(Mode::new(Check::Checked, 1), 1, 2);
    let world = &parts.ranks.world;
    world.set_answer_limit(SHORT);
    assert_eq!(world.finding(), Err(Unanswered::Held { limit: SHORT }));
    parts.launch(part.instance("_does_not_give_way"), 0, (2, 2, 0));
    parts.ranks.begin();
    let busy = loop {
        match world.finding() {
            // It has not begun yet.
            Ok(None) => {}
            other => break other.unwrap_err(),
        }
    };
    let kernel = "part_does_not_give_way";
    let running = vec![RunningKernel { kernel, device: 0, left: 2, blocks: 2 }];
    assert_eq!(busy, Unanswered::Busy { limit: SHORT, running });
    assert_eq!(world.trace_sum().map(|_| ()), Err(busy));
    END.store(true, Ordering::Relaxed);
    world.set_answer_limit(Duration::from_secs(60));
    assert_eq!(parts.ranks.finish().map(|finding| finding.kind), Some(FindingKind::Race));
}
