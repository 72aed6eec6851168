//! Nothing is left of groups that are gone. Alone in its process, since it counts what is open.

#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::{Duration, Instant};

use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, FdService, Liveness, LocalBootstrap, TcpBootstrap, UniqueId};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn use_group(bootstrap: &dyn Bootstrap) {
    let liveness = Liveness::start(bootstrap, |loss| panic!("{loss}")).unwrap();
    bootstrap.barrier().unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let offer = FdService::current().unwrap().offer(reader).unwrap();
    offer.ticket().fetch(Instant::now() + Duration::from_secs(5)).unwrap();
    bootstrap.barrier().unwrap();
    assert_eq!(liveness.lost(), None);
}

fn round(lo: &InterfaceFilter) {
    let id = UniqueId::create(lo).unwrap();
    thread::scope(|scope| {
        for rank in 0..2 {
            let id = id.clone();
            scope.spawn(move || {
                let mut config = Config::new(rank, 2, id);
                config.timeout = Some(Duration::from_secs(10));
                use_group(&TcpBootstrap::new(config).unwrap());
            });
        }
        for rank in LocalBootstrap::create(2, Duration::from_secs(10)) {
            scope.spawn(move || use_group(&rank));
        }
    });
}

#[test]
fn two_hundred_groups_leave_no_file_and_no_thread() {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    round(&lo);
    let (files, running) = (open_files(), threads());
    for _ in 0..200 {
        round(&lo);
    }
    // A watcher that ended on its own thread may take a moment to be gone.
    let deadline = Instant::now() + Duration::from_secs(2);
    while (open_files() > files || threads() > running) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(open_files() <= files, "{} files instead of {files}", open_files());
    assert!(threads() <= running, "{} threads instead of {running}", threads());
}
