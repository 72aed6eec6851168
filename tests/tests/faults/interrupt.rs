//! Ctrl-C at a terminal reaches every process of a job at once.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::Signal;

use crate::matrix::{End, Point, RANKS, role};
use crate::process::{Group, Process, START};
use crate::traces::{self, Sockets};

/// For processes to end that a signal ends.
const MOMENT: Duration = Duration::from_secs(2);

/// They end by the signal, say nothing, and leave nothing behind.
#[test]
fn ends_all_ranks_at_once() {
    for point in [Point::AfterRendezvous, Point::InReplay, Point::InDestroy] {
        let mut group = Group::new();
        let (meeting, next) = crate::matrix::meeting();
        let at = |rank| role(rank, point, End::Killed, meeting, &next, START, START);
        let mut ranks: Vec<Process> = (0..RANKS).map(|rank| group.start(&at(rank))).collect();
        for rank in &mut ranks {
            rank.hear("started", START);
        }
        ranks.iter_mut().for_each(Process::go);
        let mut sockets = Sockets::default();
        for rank in &ranks {
            rank.hear("here", START);
            sockets.note(rank.pid());
        }
        group.signal(Signal::INT);
        for rank in &mut ranks {
            assert_eq!(rank.end(MOMENT).signal(), Some(Signal::INT.as_raw()));
        }
        traces::none(&group, &sockets);
    }
}
