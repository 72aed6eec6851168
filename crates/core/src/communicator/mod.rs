//! A group of ranks.
//!
//! Invariant: what a kernel of this communicator may touch outlives the kernel. A communicator ends
//! by waiting for its last stream (for a bounded time, then with the abort word set), says goodbye
//! to its peers, and only then frees; what a kernel that does not end may use is never freed.
//! Nothing that may wait for the device is called while a kernel of ours can be waiting for a peer:
//! each set-up call first waits for what was enqueued before, and collective ones do so on all
//! ranks before the first of them goes on.

mod collective;
mod health;
mod setup;
mod turn;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mscclrs_device::Guard;
use mscclrs_gpu::{Device, Stream};

#[cfg(any(test, fuzzing))]
pub(crate) use collective::{read_answer, read_sizes};
pub(crate) use health::Health;
pub(crate) use setup::Peer;
#[cfg(any(test, fuzzing))]
pub(crate) use setup::{Introduction, Part, read_part};
pub use turn::Turn;

use crate::control::ControlBlock;
use crate::env;
use crate::future::{Owner, Receives};
use crate::liveness::Listener;
use crate::memory::{Imports, Retired};
use crate::semaphore::TokenPool;
use crate::{Bootstrap, EarlyWait, Error, FdService, Liveness, Loss, LossCause, Result};

/// How long kernels may take to end after they were told to.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// How long a communicator that is dropped waits for its kernels before it tells them to end.
const DROP_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks at the peers while a stream is waited for.
const SLICE: Duration = Duration::from_millis(50);

/// How long the word of a lost rank may take to come, once something failed that may be due to it.
const WORD: Duration = Duration::from_millis(300);

/// A group of ranks, each with a device. Clones are the same communicator.
///
/// One thread at a time uses it; another's calls end with [`Error::Busy`]. A process may have
/// several communicators, be several ranks, and give several ranks one device.
#[derive(Clone)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
}

/// What a communicator's clones, futures and connections share.
pub(crate) struct Shared {
    pub(crate) rank: u32,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    pub(crate) device: Device,
    /// By rank.
    pub(crate) peers: Vec<Peer>,
    /// Tells this group's serialized things from another's.
    pub(crate) group: u64,
    pub(crate) health: Arc<Health>,
    pub(crate) retired: Arc<Retired>,
    pub(crate) imports: Imports,
    pub(crate) descriptors: Arc<FdService>,
    pub(crate) receives: Receives,
    pub(crate) tokens: Arc<TokenPool>,
    /// For copies of set-up; nothing else runs on it.
    pub(crate) setup_stream: Stream,
    registrations: AtomicU64,
    turns: turn::Turns,
    liveness: Liveness,
}

impl Communicator {
    /// Most ranks of a communicator: as many as can be marked as left where kernels wait.
    pub const MOST_RANKS: u32 = crate::control::MOST_RANKS;

    /// Makes a communicator. Collective: every rank calls it, with devices of one kind.
    ///
    /// Blocks until all ranks came, at most as long as the bootstrap waits. Errors that one rank
    /// alone finds are given to all. A bootstrap of more than [`MOST_RANKS`](Self::MOST_RANKS) ranks is
    /// refused.
    pub fn new(bootstrap: Arc<dyn Bootstrap>, device: Device) -> Result<Communicator> {
        Ok(Communicator { shared: Arc::new(Shared::new(bootstrap, device)?) })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.shared.peers.len() as u32
    }

    /// This rank's device.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// How the ranks exchange messages.
    pub fn bootstrap(&self) -> &dyn Bootstrap {
        &*self.shared.bootstrap
    }

    /// Whether a rank has the same device as another rank of the group.
    pub fn shares_device(&self) -> bool {
        let place = |peer: &Peer| (peer.host, peer.uuid);
        let mine = place(&self.shared.peers[self.shared.rank as usize]);
        self.shared.peers.iter().filter(|peer| place(peer) == mine).count() > 1
    }

    /// How long a device wait may take; by default MSCCLRS_TIMEOUT seconds, without it no limit.
    /// Kernels launched from now on have it.
    pub fn set_timeout(&self, limit: Option<Duration>) {
        self.shared.health.control.set_timeout(limit);
    }

    /// What kernels of this communicator end their waits by; `launch` goes to the record of a wait
    /// that ended early, see [`register_launch_tag`](crate::register_launch_tag).
    pub fn guard(&self, launch: u64) -> Guard {
        self.shared.health.control.guard(launch)
    }

    /// An error if a rank was lost or a wait ended early; the communicator is of no use then. Does
    /// not block. The first to find that a wait of this rank ended early tells the other ranks.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// The first wait of this rank's kernels that ended early.
    pub fn early_wait(&self) -> Option<EarlyWait> {
        self.shared.health.control.record()
    }

    /// Ends all waits of all ranks' kernels; the communicator is of no use then. Does not block.
    pub fn abort(&self, why: &str) {
        self.shared.give_up(why);
    }

    /// Blocks until the stream is done, or a rank is lost, or a wait ended early: then for the
    /// kernels to end, which is bounded. Any thread may call it. A wait for a rank that has left ends
    /// early too.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        self.shared.wait_idle(stream)?;
        if !self.shared.retired.is_empty()
            && let Ok(turn) = self.enter()
        {
            turn.reclaim();
        }
        Ok(())
    }

    /// Frees what was dropped: waits until everything that was enqueued before has ended. Set-up
    /// calls do so too, and so does [`synchronize`](Self::synchronize) without waiting for more.
    pub fn reclaim(&self) -> Result<()> {
        self.enter()?.quiesce()
    }
}

impl Communicator {
    /// What receives are made for.
    pub(crate) fn as_owner(&self) -> Arc<dyn Owner> {
        Arc::new(Arc::downgrade(&self.shared))
    }
}

impl Owner for Weak<Shared> {
    fn in_turn(&self, work: &mut dyn FnMut()) -> Result<()> {
        let Some(shared) = self.upgrade() else {
            // The work finds that the communicator is gone, and says so.
            work();
            return Ok(());
        };
        let _turn = shared.enter()?;
        work();
        Ok(())
    }

    fn blame(&self, error: Error) -> Error {
        match self.upgrade() {
            Some(shared) => shared.blame(error),
            None => error,
        }
    }
}

/// MSCCLRS_TIMEOUT, where 0 is no limit.
fn time_limit() -> Result<Option<Duration>> {
    Ok(env::TIMEOUT.seconds()?.filter(|limit| !limit.is_zero()))
}

impl Shared {
    fn new(bootstrap: Arc<dyn Bootstrap>, device: Device) -> Result<Self> {
        const CALL: &str = "Communicator::new";
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let began = Instant::now();
        let (rank, ranks) = (bootstrap.rank(), bootstrap.world_size());
        if ranks > Communicator::MOST_RANKS {
            return Err(Error::Invalid {
                what: "number of ranks of a communicator",
                value: ranks.to_string(),
                allowed: format!(
                    "at most {}: a wait for a rank of a higher number would not end when that rank \
                     leaves; make several communicators",
                    Communicator::MOST_RANKS
                ),
            });
        }
        let log = crate::logging::begin();
        let _span = mscclrs_log::during!("communicator", rank);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let (peers, group) = Peer::exchange(&*bootstrap, &device, count, log)?;
        let made = ControlBlock::new(&device).and_then(|control| {
            let limit = time_limit()?;
            control.set_timeout(limit);
            Ok((limit, control, device.create_stream()?, device.create_event(false)?))
        });
        let (limit, control, setup_stream, event) = setup::agree_on(&*bootstrap, CALL, made)?;
        let health = Arc::new(Health::new(rank, control));
        let descriptors = FdService::current();
        let descriptors = setup::agree_on(&*bootstrap, CALL, descriptors)?;
        let ear = Ear { health: health.clone(), bootstrap: Arc::downgrade(&bootstrap) };
        let liveness = Liveness::listen(&*bootstrap, Box::new(ear));
        let liveness = setup::agree_on(&*bootstrap, CALL, liveness)?;
        let retired = Arc::new(Retired::default());
        let hosts: BTreeSet<u64> = peers.iter().map(|peer| peer.host).collect();
        mscclrs_log::info!(
            INIT,
            communicator = name(group),
            world_size = peers.len(),
            hosts = hosts.len(),
            ?device,
            timeout_seconds = limit.map(|limit| limit.as_secs_f64()),
            milliseconds = began.elapsed().as_millis() as u64,
            "a communicator is made"
        );
        Ok(Shared {
            rank,
            imports: Imports::new(&device, &retired),
            tokens: TokenPool::new(&retired),
            receives: Receives::new(&bootstrap),
            bootstrap,
            device,
            peers,
            group,
            health,
            retired,
            descriptors,
            setup_stream,
            registrations: AtomicU64::new(0),
            turns: turn::Turns::new(event),
            liveness,
        })
    }

    /// While the result lives, events of this thread name this rank, communicator and call.
    pub(crate) fn during(&self, call: &'static str) -> impl Drop + use<> {
        let group = self.group;
        mscclrs_log::during!("call", rank = self.rank, communicator = name(group), call)
    }

    /// Ends this rank's waits and tells the others that this rank failed.
    fn give_up(&self, why: &str) {
        let cause = LossCause::Failed(why.to_owned());
        self.health.fail(Loss { rank: self.rank, cause });
        if self.health.tell_once() {
            self.liveness.report_failure(why);
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.health.is_poisoned() {
            return Ok(());
        }
        let checked = self.health.check();
        if let Err(error) = &checked
            && let Some(wait) = self.health.control.record()
            && wait.cause != crate::WaitCause::Abort
        {
            self.give_up(&match error {
                Error::Wait { wait, .. } => wait.to_string(),
                other => other.to_string(),
            });
        }
        checked
    }

    /// What an error comes from: where a rank was lost, that, and not what followed from it.
    ///
    /// Blocks for a moment if the error may be due to a loss that this rank has not heard of yet.
    pub(crate) fn blame(&self, error: Error) -> Error {
        if !matches!(error, Error::Fetch { .. } | Error::PeerGone { .. }) {
            return error;
        }
        let since = Instant::now();
        while !self.health.is_poisoned() && since.elapsed() < WORD {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.health.check().err().unwrap_or(error)
    }

    /// Waits until the stream is idle. Lost ranks and early waits end the kernels, and then the
    /// wait, with an error.
    pub(crate) fn wait_idle(&self, stream: &Stream) -> Result<()> {
        let mut told: Option<Instant> = None;
        loop {
            match stream.synchronize_within(SLICE) {
                Ok(true) => return self.check(),
                Ok(false) => {}
                // A mistake of the caller: nothing was asked of the device.
                Err(error) if stream.is_capturing().unwrap_or(false) => return Err(error.into()),
                Err(error) => {
                    self.give_up(&error.to_string());
                    return Err(error.into());
                }
            }
            if let Err(error) = self.check() {
                let since = told.get_or_insert_with(Instant::now);
                if since.elapsed() > ABORT_LIMIT {
                    return Err(Error::Stuck {
                        rank: self.rank,
                        waited: since.elapsed(),
                        why: error.to_string(),
                    });
                }
            }
        }
    }

    /// Whether the last kernels ended; tells them to when they do not by themselves.
    fn end_kernels(&self) -> bool {
        let Ok(turn) = self.enter() else { return false };
        let Some(stream) = turn.last_stream() else { return true };
        // A capture that is still open runs nothing.
        if stream.is_capturing().unwrap_or(false) {
            return true;
        }
        let patience = match self.health.is_poisoned() || std::thread::panicking() {
            true => Duration::ZERO,
            false => DROP_LIMIT,
        };
        if stream.synchronize_within(patience).unwrap_or(true) {
            return true;
        }
        self.give_up("it was dropped while its kernels were waiting");
        // A device that reports an error runs nothing any more.
        stream.synchronize_within(ABORT_LIMIT).unwrap_or(true)
    }
}

/// What this rank hears of the others.
struct Ear {
    health: Arc<Health>,
    bootstrap: Weak<dyn Bootstrap>,
}

impl Listener for Ear {
    fn lost(&self, loss: &Loss) {
        // What a rank says of itself is about this communicator; a process that ended is of no use for
        // anything. First, for who hears of the loss may leave at once, and the others have to hear of
        // the loss before.
        if !matches!(loss.cause, LossCause::Failed(_))
            && let Some(bootstrap) = self.bootstrap.upgrade()
        {
            bootstrap.report_loss(loss);
        }
        self.health.fail(loss.clone());
    }

    /// Leaving is no loss, but who waits for the one who left waits for ever.
    fn left(&self, rank: u32) {
        self.health.control.mark_left(rank);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let ended = self.end_kernels();
        if std::thread::panicking() {
            // Leaving would be no loss, and the others would wait for what will not come.
            self.give_up("a thread of it panicked");
        }
        if let Some(loss) = self.bootstrap.lost() {
            // Who waits for this rank hears why it leaves.
            self.liveness.report(loss);
        }
        self.liveness.leave();
        mscclrs_log::info!(
            INIT,
            rank = self.rank,
            communicator = name(self.group),
            kernels_ended = ended,
            "a communicator ends"
        );
        if ended {
            self.retired.close();
        } else {
            self.retired.leak();
            std::mem::forget(self.health.control.clone());
        }
    }
}

/// A communicator in the log: the same on every rank.
fn name(group: u64) -> String {
    format!("{group:016x}")
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("world_size", &self.world_size())
            .field("device", self.device())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use mscclrs_device::{DeviceModule, ImageSource, kernel_args, kernels};
    use mscclrs_gpu::{BackendKind, Grid};

    use super::*;
    use crate::LocalBootstrap;

    static MODULE: DeviceModule =
        DeviceModule { name: "core-unit-tests", source: ImageSource::Embedded(&[]) };

    kernel_args! {
        pub struct WaitArgs {
            pub guard: Guard,
            pub semaphore: mscclrs_device::Semaphore,
        }
    }

    kernels! {
        module = MODULE;
        pub fn wait_for_signal<>(args: WaitArgs) threads 32 for { "" = <> } {
            args.semaphore.wait(&args.guard)
        }
    }

    #[test]
    fn more_ranks_than_can_be_marked_as_left_are_refused_on_every_one() {
        let most = Communicator::MOST_RANKS;
        assert_eq!(most, 512);
        // None of them waits for another.
        for rank in LocalBootstrap::create(most + 1, Duration::from_secs(10)) {
            let device = Device::open(BackendKind::Cpu, 312).unwrap();
            let error = Communicator::new(Arc::new(rank), device).unwrap_err().to_string();
            assert!(error.contains("513 is not allowed; at most 512"), "{error}");
        }
    }

    #[test]
    fn who_waits_for_a_rank_that_left_is_told() {
        let ranks = LocalBootstrap::create(2, Duration::from_secs(10));
        std::thread::scope(|scope| {
            for rank in ranks {
                scope.spawn(|| {
                    let device = Device::open(BackendKind::Cpu, 310 + rank.rank()).unwrap();
                    let comm = Communicator::new(Arc::new(rank), device).unwrap();
                    let peer = 1 - comm.rank();
                    let connection = comm.connect(&Default::default(), peer, 1).unwrap();
                    let connection = connection.get().unwrap();
                    let semaphore = comm.build_semaphore(&connection, 1).unwrap().get().unwrap();
                    // Both have what the other offers.
                    comm.bootstrap().barrier().unwrap();
                    if comm.rank() == 1 {
                        return;
                    }
                    let stream = comm.device().create_stream().unwrap();
                    let kernel = all().next().unwrap();
                    let function = comm.device().function(kernel).unwrap();
                    let (guard, semaphore) = (comm.guard(0), semaphore.device_handle());
                    comm.order(&stream).unwrap();
                    let args = WaitArgs { guard, semaphore };
                    // SAFETY: the semaphore is retired, not freed, before the kernel has ended.
                    unsafe { stream.launch(&function, Grid::new(1, 1), &args).unwrap() };
                    // The kernel ends whether or not the communicator is asked to wait.
                    assert!(stream.synchronize_within(Duration::from_secs(5)).unwrap());
                    let error = comm.synchronize(&stream).unwrap_err();
                    assert!(matches!(&error, Error::RankLost(lost) if lost.loss.rank == 1));
                    assert!(error.to_string().contains("it left"), "{error}");
                });
            }
        });
    }
}
