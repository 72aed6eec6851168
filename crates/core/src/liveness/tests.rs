//! Groups that lose ranks.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::LocalBootstrap;
use crate::bootstrap::{Config, InterfaceFilter, TcpBootstrap, UniqueId};

const LIMIT: Duration = Duration::from_secs(2);

struct Rank {
    bootstrap: Box<dyn Bootstrap>,
    liveness: Liveness,
    losses: mpsc::Receiver<Loss>,
}

impl Rank {
    fn new(bootstrap: impl Bootstrap + 'static, pace: Pace) -> Rank {
        let (sender, losses) = mpsc::channel();
        let listener = Box::new(move |loss: &Loss| drop(sender.send(loss.clone())));
        let liveness = Liveness::start_with(&bootstrap, pace, listener).unwrap();
        Rank { bootstrap: Box::new(bootstrap), liveness, losses }
    }
}

fn on_threads<T: Send, R: Send>(items: Vec<T>, body: impl Fn(T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || body(item))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn local(n: u32) -> Vec<Rank> {
    on_threads(LocalBootstrap::create(n, Duration::from_secs(5)), |bootstrap| {
        Rank::new(bootstrap, Pace::default())
    })
}

fn tcp(n: u32, host_id: impl Fn(u32) -> u64, pace: impl Fn(u32) -> Pace + Sync) -> Vec<Rank> {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    let id = UniqueId::create(&lo).unwrap();
    let config = |rank| Config {
        timeout: Some(Duration::from_secs(5)),
        interfaces: Some(lo.clone()),
        host_id: Some(host_id(rank)),
        ..Config::new(rank, n, id.clone())
    };
    on_threads((0..n).map(config).collect(), |config| {
        let rank = config.rank;
        Rank::new(TcpBootstrap::new(config).unwrap(), pace(rank))
    })
}

/// Drops a rank as a killed process would: its sockets close and nothing is said.
fn kill(rank: Rank) {
    rank.liveness.fall_silent();
    drop(rank);
}

fn expect_loss(ranks: &[Rank], loss: &Loss) {
    for rank in ranks {
        assert_eq!(&rank.losses.recv_timeout(LIMIT).unwrap(), loss);
        assert_eq!(rank.liveness.lost().as_ref(), Some(loss));
    }
}

#[test]
fn every_rank_learns_which_rank_was_lost() {
    for n in [2, 3, 7, 16] {
        for victim in [0, 1, n - 1] {
            for mut ranks in [local(n), tcp(n, |_| 1, |_| Pace::default())] {
                kill(ranks.remove(victim as usize));
                expect_loss(&ranks, &Loss { rank: victim, cause: LossCause::HungUp });
            }
        }
    }
}

#[test]
fn two_losses_at_once_leave_every_rank_with_one_of_them() {
    let mut ranks = local(15);
    kill(ranks.remove(5));
    kill(ranks.remove(1));
    for rank in &ranks {
        let loss = rank.losses.recv_timeout(LIMIT).unwrap();
        assert!([1, 5].contains(&loss.rank), "{loss}");
        assert!(rank.losses.recv_timeout(Duration::from_millis(20)).is_err(), "told once");
    }
}

#[test]
fn leaving_is_no_loss_and_is_known() {
    for mut ranks in [local(7), tcp(7, |_| 1, |_| Pace::default())] {
        let mut leaver = ranks.remove(2);
        leaver.liveness.leave();
        leaver.liveness.leave();
        drop(leaver);
        let deadline = Instant::now() + LIMIT;
        for rank in &ranks {
            while rank.liveness.left() != [2] {
                assert!(Instant::now() < deadline);
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(rank.liveness.lost(), None);
        }
        while let Some(rank) = ranks.pop() {
            drop(rank);
            assert!(ranks.iter().all(|rank| rank.liveness.lost().is_none()));
        }
    }
}

#[test]
fn a_panic_is_a_loss() {
    let mut ranks = local(4);
    let victim = ranks.remove(3);
    let panicked = thread::spawn(move || {
        let _held = victim;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    let cause = LossCause::Failed("a thread of it panicked".into());
    expect_loss(&ranks, &Loss { rank: 3, cause });
}

#[test]
fn a_reported_failure_reaches_everyone_and_itself_with_its_text() {
    let ranks = local(6);
    ranks[4].liveness.report_failure("wait for rank 2 ended early");
    ranks[4].liveness.report_failure("second");
    let cause = LossCause::Failed("wait for rank 2 ended early".into());
    let loss = Loss { rank: 4, cause };
    expect_loss(&ranks, &loss);
    assert_eq!(loss.to_string(), "rank 4 failed: wait for rank 2 ended early");
}

#[test]
fn who_was_told_and_ends_is_not_taken_for_the_cause() {
    for _ in 0..20 {
        let mut ranks = local(8);
        kill(ranks.remove(7));
        // Its parent ends as soon as it is told.
        let parent = ranks.remove(3);
        parent.losses.recv_timeout(LIMIT).unwrap();
        kill(parent);
        expect_loss(&ranks, &Loss { rank: 7, cause: LossCause::HungUp });
    }
}

#[test]
fn silence_from_another_host_is_a_loss_and_heartbeats_are_not_silence() {
    let lively =
        Pace { heartbeat: Duration::from_millis(200), silence: Duration::from_millis(700) };
    let ranks = tcp(3, u64::from, |_| lively);
    thread::sleep(Duration::from_millis(1100));
    assert!(ranks.iter().all(|rank| rank.liveness.lost().is_none()));
    drop(ranks);
    let mute = Pace { heartbeat: Duration::from_secs(3600), silence: Duration::from_secs(3600) };
    let mut ranks = tcp(3, u64::from, |rank| if rank == 2 { mute } else { lively });
    let _mute = ranks.pop();
    expect_loss(&ranks, &Loss { rank: 2, cause: LossCause::Silent });
}

#[test]
fn a_group_can_be_watched_twice() {
    let mut ranks = local(3);
    let again = on_threads(ranks.iter().map(|rank| &*rank.bootstrap).collect(), |bootstrap| {
        Liveness::start(bootstrap, |_| {}).unwrap()
    });
    kill(ranks.remove(1));
    expect_loss(&ranks, &Loss { rank: 1, cause: LossCause::HungUp });
    assert!(again.iter().all(|liveness| liveness.lost().is_none()));
}
