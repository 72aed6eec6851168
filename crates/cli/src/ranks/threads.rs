//! Ranks as threads of this process.

use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::Result;
use mscclrs_core::LocalBootstrap;

use super::{GRACE, Plan, Rank, Verdict, print_failure, set_up_limit, status, status_of_all};
use crate::output::{Closed, say};

/// Runs `body` on one thread a rank.
///
/// A thread cannot be ended from outside: ranks that do not end by themselves after one has failed are
/// ended with the process.
pub(super) fn run(
    plan: &Plan,
    body: &(dyn Fn(&Rank) -> Result<Verdict> + Sync),
) -> Result<ExitCode> {
    let bootstraps = LocalBootstrap::create(plan.ranks, set_up_limit()?);
    let mut codes = Vec::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for (rank, bootstrap) in (0..plan.ranks).zip(bootstraps) {
            let sender = sender.clone();
            scope.spawn(move || {
                let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    Rank::new(Arc::new(bootstrap), plan.device(rank)?, "threads")?.run(body)
                }));
                // The receiver is gone only when the process ends.
                let _ = sender.send((rank, end));
            });
        }
        drop(sender);
        let mut failed = None::<Instant>;
        let mut left = plan.ranks;
        while left > 0 {
            let end = match failed {
                None => receiver.recv().ok(),
                Some(since) => receiver.recv_timeout(GRACE.saturating_sub(since.elapsed())).ok(),
            };
            left -= 1;
            let rank_code = match end {
                Some((_, Ok(Ok(Verdict::Right)))) => 0,
                Some((_, Ok(Ok(Verdict::Wrong)))) => 1,
                Some((rank, Ok(Err(error)))) => {
                    print_failure(rank, &error, true);
                    failed.get_or_insert_with(Instant::now);
                    status(&error)
                }
                Some((_, Err(_))) => {
                    failed.get_or_insert_with(Instant::now);
                    1
                }
                None => {
                    let code = status_of_all(codes.drain(..));
                    if code != Closed::STATUS {
                        say!("mscclrs: ranks that did not end after a failure were ended");
                    }
                    std::process::exit(code.into());
                }
            };
            codes.push(rank_code);
        }
    });
    Ok(ExitCode::from(status_of_all(codes)))
}
