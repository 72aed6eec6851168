//! What is told of a world while it runs, and before whom.

use std::sync::{Arc, Mutex};

use mscclrs_device::{Global, kernel_args, kernels, thread_idx};
use mscclrs_sim::{Check, DeviceConfig, FindingKind, Listeners, Mode, Progress, TestMemory, World};

use crate::common::{self, LIMIT, MODULE};

kernel_args! {
    pub struct WriteArgs {
        pub words: Global<u64>,
        /// How many words the lanes share: fewer than there are lanes is a race.
        pub count: u32,
    }
}

kernels! {
    module = MODULE;
    pub fn write_words<>(args: WriteArgs) threads 32 for { "" = <> } {
        let lane = thread_idx();
        args.words.at(if lane < args.count { lane } else { 0 }).store(lane as u64);
        Ok(())
    }
}

#[test]
fn whoever_learns_of_an_end_or_a_finding_is_not_the_first() {
    let told = Arc::new(Mutex::new((Progress::default(), String::new())));
    let (progress, timeline) = (told.clone(), told.clone());
    let listeners = Listeners {
        progress: Some(Box::new(move |now| progress.lock().unwrap().0 = now.clone())),
        timeline: Some(Box::new(move |text| timeline.lock().unwrap().1 = text.to_owned())),
        decisions: None,
    };
    let world = World::of_process(Mode::new(Check::Checked, 0), listeners).unwrap();
    let queue = world.device(DeviceConfig::default()).create_queue();
    let memory = TestMemory::new(32 * 8);
    let launch = |count| {
        let args = WriteArgs { words: Global::from_address(memory.address()), count };
        common::launch(&queue, &write_words, (1, 32, 0), &args);
        queue.synchronize(LIMIT)
    };
    for round in 1..=50 {
        assert_eq!(launch(32), Ok(true));
        let (now, timeline) = told.lock().unwrap().clone();
        assert_eq!((now.devices, now.launches, now.running), (1, round, 0));
        assert_eq!(now.steps, 32 * round);
        assert_eq!(timeline.matches("\"ph\":\"X\"").count() as u64, now.steps);
        assert_eq!(now.finding, None);
    }
    launch(1).unwrap_err();
    let (now, _) = told.lock().unwrap().clone();
    assert_eq!(now.finding.map(|finding| finding.kind), Some(FindingKind::Race));
}
