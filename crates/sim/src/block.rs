//! A resident block: its lanes, and where they meet.
//!
//! Invariants. A lane is in exactly one place: not started or ready (`ready`), at the barrier, in a
//! slot of its warp, watched, running, or exited. The last lane to arrive at a meeting lets the
//! others go and goes on itself without a switch. Lanes that have exited count as arrived: a wait
//! that ended early returns before barriers that others of its block still come to.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mscclrs_device::arch::host::{Coords, Spin};

use crate::exact::{Check, FindingKind, Watch};
use crate::lane::{self, Fiber, Lane};
use crate::stack::Stacks;
use crate::work::Launch;

/// Lanes a warp.
pub(crate) const WARP: u32 = 32;

/// Nanoseconds after which a lane that waits for a word looks at the abort word and the clock.
const LOOK_NS: u64 = 2_000_000;

/// What the lanes of a warp do together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarpOperation {
    Ballot,
    /// Gives the value of the lane whose index differs by this mask.
    Exchange(u32),
    /// Orders the lanes' accesses to memory.
    Sync,
}

impl WarpOperation {
    /// As device code calls it.
    const fn name(self) -> &'static str {
        match self {
            WarpOperation::Ballot => "ballot",
            WarpOperation::Exchange(_) => "shuffle_xor",
            WarpOperation::Sync => "warp_sync",
        }
    }
}

/// What a lane brings to a warp operation.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) mask: u32,
    pub(crate) value: u32,
    pub(crate) operation: WarpOperation,
    pub(crate) from: &'static Location<'static>,
}

/// What is wrong with how lanes of a warp meet: a lane of it, and another one that does not go with it.
struct Misuse {
    what: String,
    bit: u32,
    other: Option<u32>,
}

struct Warp {
    /// Bit i: lane i has a slot here and waits.
    waiting: Cell<u32>,
    /// Bit i: lane i has exited, or the block has no such lane.
    exited: Cell<u32>,
    /// Of lanes that have come to an operation.
    slots: [Cell<Option<Slot>>; WARP as usize],
}

/// A lane that waits for a word to change.
struct Watched {
    lane: u32,
    spin: Spin,
    /// When the scheduler first looked; 0 before.
    since: u64,
}

/// What lanes of a block share; reached from their fibers and from the scheduler, on one thread.
pub(crate) struct BlockState {
    lanes: Vec<Lane>,
    exited: Cell<u32>,
    at_barrier: RefCell<Vec<u32>>,
    /// Where the first lane at the barrier waits.
    barrier_line: Cell<Option<(u32, &'static Location<'static>)>>,
    /// Whether a lane at the barrier brought a true predicate, and what the last barrier came to.
    vote: Cell<bool>,
    verdict: Cell<bool>,
    warps: Vec<Warp>,
    watched: RefCell<Vec<Watched>>,
    ready: RefCell<VecDeque<u32>>,
    shared: UnsafeCell<Vec<u128>>,
    pub(crate) shared_bytes: u32,
    /// The shared memory's name where accesses are watched.
    pub(crate) shared_object: u64,
    /// The world that watches, and the number of the first lane there.
    pub(crate) watch: Option<(Rc<Watch>, u32)>,
    /// Set by whatever is more than a fruitless look.
    pub(crate) progress: Cell<bool>,
    /// Whether any of its lanes has run.
    begun: Cell<bool>,
}

impl BlockState {
    pub(crate) fn shared(&self) -> *mut u8 {
        // SAFETY: nothing else makes a reference to the vector, which does not change its size.
        unsafe { (*self.shared.get()).as_mut_ptr().cast() }
    }

    /// A lane comes to the barrier; true if it opened it and goes on.
    pub(crate) fn arrive(
        &self,
        lane: u32,
        predicate: bool,
        from: &'static Location<'static>,
    ) -> bool {
        if let Some((watch, first)) = self.checked() {
            match self.barrier_line.get() {
                Some((other, line)) if line != from && !self.at_barrier.borrow().is_empty() => {
                    let what = "lanes of a block wait at its barrier at different places of the source; \
                                a GPU takes them for the same barrier or hangs";
                    let (here, other) = ((first + lane, Some(from)), (first + other, Some(line)));
                    let kind = FindingKind::DivergentBarrier;
                    watch.report_at(kind, what.into(), here, Some(other));
                }
                _ => self.barrier_line.set(Some((lane, from))),
            }
        }
        self.vote.set(self.vote.get() | predicate);
        self.at_barrier.borrow_mut().push(lane);
        let opened = self.open_barrier(Some(lane));
        debug_assert!(opened || self.at_barrier.borrow().contains(&lane));
        opened
    }

    fn open_barrier(&self, last: Option<u32>) -> bool {
        let mut waiting = self.at_barrier.borrow_mut();
        if waiting.is_empty() || waiting.len() + (self.exited.get() as usize) < self.lanes.len() {
            return false;
        }
        if let Some((watch, first)) = &self.watch {
            watch.meet(waiting.iter().map(|lane| first + lane));
        }
        if let (Some((watch, first)), true) = (self.checked(), self.exited.get() > 0) {
            let gone = |&lane: &u32| {
                self.warps[(lane / WARP) as usize].exited.get() & 1 << (lane % WARP) != 0
            };
            // A wait that ended early is why a lane may leave others behind.
            let gone = (0..self.lanes.len() as u32).find(gone).filter(|_| !watch.is_spoilt());
            if let Some(lane) = gone {
                let what = "lanes wait at the barrier of a block for one that has ended; all lanes of a \
                            block come to a barrier or none";
                let line = self.barrier_line.get().map(|(_, line)| line);
                let here = (first + waiting[0], line);
                let kind = FindingKind::MissingLane;
                watch.report_at(kind, what.into(), here, Some((first + lane, None)));
            }
        }
        if last.is_some() {
            waiting.pop();
        }
        self.ready.borrow_mut().extend(waiting.drain(..));
        self.verdict.set(self.vote.replace(false));
        true
    }

    /// The world, where it looks for misuse.
    fn checked(&self) -> Option<(&Watch, u32)> {
        let (watch, first) = self.watch.as_ref()?;
        (watch.check() == Check::Checked).then_some((watch, *first))
    }

    /// A lane that made room for others.
    pub(crate) fn get_ready(&self, lane: u32) {
        self.ready.borrow_mut().push_back(lane);
    }

    /// Whether the predicate held on any lane of the barrier that opened last; lanes ask before they
    /// come to the next, which cannot open without them.
    pub(crate) fn verdict(&self) -> bool {
        self.verdict.get()
    }

    /// A lane comes to a warp operation; true if it was the last and has its result.
    pub(crate) fn meet(&self, lane: u32, slot: Slot) -> bool {
        let (warp, bit, mask) = (&self.warps[(lane / WARP) as usize], lane % WARP, slot.mask);
        warp.slots[bit as usize].set(Some(slot));
        warp.waiting.set(warp.waiting.get() | 1 << bit);
        let met = if mask & 1 << bit == 0 {
            let what =
                format!("lane {bit} of warp {} is not in its own mask {mask:#x}", lane / WARP);
            Err(Misuse { what, bit, other: None })
        } else {
            self.finish_meeting(lane / WARP, mask, Some(bit))
        };
        met.unwrap_or_else(|misuse| {
            // On the lane's own stack, where a panic stops the launch.
            self.report_misuse(lane / WARP, misuse).unwrap_or_else(|report| panic!("{report}"));
            false
        })
    }

    /// Tells the world; where none watches, an error in words.
    fn report_misuse(&self, warp: u32, misuse: Misuse) -> Result<(), String> {
        let Misuse { what, bit, other } = misuse;
        let from =
            |bit: u32| self.warps[warp as usize].slots[bit as usize].get().map(|slot| slot.from);
        let Some((watch, first)) = &self.watch else {
            let at = from(bit).map_or(String::new(), |from| format!("; {from}"));
            return Err(format!("{what}{at}"));
        };
        let site = |bit: u32| (first + warp * WARP + bit, from(bit));
        watch.report_at(FindingKind::Warp, what, site(bit), other.map(site));
        Ok(())
    }

    /// Gives all lanes of the mask their results if none is missing.
    fn finish_meeting(
        &self,
        warp_index: u32,
        mask: u32,
        last: Option<u32>,
    ) -> Result<bool, Misuse> {
        let warp = &self.warps[warp_index as usize];
        let here = warp.waiting.get() & mask;
        if mask & !(here | warp.exited.get()) != 0 {
            return Ok(false);
        }
        let slot = |bit: u32| warp.slots[bit as usize].get().filter(|_| here & 1 << bit != 0);
        let met = || (0..WARP).filter_map(move |bit| Some((bit, slot(bit)?)));
        let kind = std::mem::discriminant::<WarpOperation>;
        let mut votes = 0;
        let first = met().next();
        if let Some((first, a)) = first {
            for (bit, b) in met() {
                if b.mask != a.mask || kind(&a.operation) != kind(&b.operation) {
                    let (a_name, b_name) = (a.operation.name(), b.operation.name());
                    let what = if a_name == b_name {
                        format!(
                            "lanes of warp {warp_index} meet with different masks ({:#x} and {:#x})",
                            a.mask, b.mask
                        )
                    } else {
                        format!(
                            "lanes of warp {warp_index} meet with different operations: lane {first} with \
                             {a_name}, lane {bit} with {b_name}"
                        )
                    };
                    return Err(Misuse { what, bit, other: Some(first) });
                }
                votes |= b.value << bit;
                if let WarpOperation::Exchange(lane_mask) = b.operation
                    && let from = other_lane(bit, lane_mask)
                    && mask & 1 << from == 0
                    && self.checked().is_some()
                {
                    let what = format!(
                        "lane {bit} of warp {warp_index} asks by shuffle_xor for the value of lane {from}, \
                         which is not in the mask {mask:#x}; a GPU gives it any value"
                    );
                    return Err(Misuse { what, bit, other: None });
                }
            }
            if let Some((watch, _)) = self.checked()
                && here != mask
                && !watch.is_spoilt()
            {
                let missing = (mask & !here).trailing_zeros();
                let what = format!(
                    "lanes of warp {warp_index} meet by the mask {mask:#x}, but its lane {missing} has \
                     ended or does not exist"
                );
                // A world watches, and was told.
                let _ = self.report_misuse(warp_index, Misuse { what, bit: first, other: None });
            }
        }
        if let (Some((watch, lane)), Some((_, Slot { operation: WarpOperation::Sync, .. }))) =
            (&self.watch, first)
        {
            watch.meet(met().map(|(bit, _)| lane + warp_index * WARP + bit));
        }
        let mut ready = self.ready.borrow_mut();
        for (bit, own) in met() {
            let lane = &self.lanes[(warp_index * WARP + bit) as usize];
            lane.result.set(match own.operation {
                WarpOperation::Ballot => votes,
                WarpOperation::Sync => 0,
                // A GPU leaves the value of a lane that takes no part undefined.
                WarpOperation::Exchange(lane_mask) => {
                    slot(other_lane(bit, lane_mask)).map_or(own.value, |other| other.value)
                }
            });
            if Some(bit) != last {
                ready.push_back(warp_index * WARP + bit);
            }
        }
        warp.waiting.set(warp.waiting.get() & !here);
        Ok(true)
    }

    pub(crate) fn watch_word(&self, lane: u32, spin: Spin) {
        self.watched.borrow_mut().push(Watched { lane, spin, since: 0 });
    }

    /// An error is a misuse that no world was told of, in words.
    fn exit(&self, lane: u32) -> Result<(), String> {
        self.progress.set(true);
        self.exited.set(self.exited.get() + 1);
        let (warp, bit) = (&self.warps[(lane / WARP) as usize], lane % WARP);
        warp.exited.set(warp.exited.get() | 1 << bit);
        self.open_barrier(None);
        let mut left = warp.waiting.get();
        while left != 0 {
            let waits = left.trailing_zeros();
            let mask = warp.slots[waits as usize].get().map_or(0, |slot| slot.mask);
            if mask & 1 << bit != 0 {
                let met = self.finish_meeting(lane / WARP, mask, None);
                met.map_or_else(|misuse| self.report_misuse(lane / WARP, misuse), |_| Ok(()))?;
            }
            left &= !(mask | 1 << waits);
        }
        Ok(())
    }

    /// Looks at every watched word, and lets the lanes go whose word changed, whose abort word is
    /// set, or who have waited for a while.
    fn look(&self, now: u64) {
        let mut watched = self.watched.borrow_mut();
        if watched.is_empty() {
            return;
        }
        let mut ready = self.ready.borrow_mut();
        watched.retain_mut(|entry| {
            if entry.since == 0 {
                entry.since = now;
            }
            let spin = &entry.spin;
            // SAFETY: the lane polls this aligned word and will again: it is memory that the launch
            // may use.
            let value = unsafe { AtomicU64::from_ptr(spin.at.cast_mut()) }.load(Ordering::Relaxed);
            // SAFETY: as above; null where the wait has no abort word.
            let aborted = !spin.abort.is_null()
                && unsafe { AtomicU32::from_ptr(spin.abort.cast_mut()) }.load(Ordering::Relaxed)
                    != 0;
            let changed = value != spin.seen;
            if !changed && !aborted && now.wrapping_sub(entry.since) < LOOK_NS {
                return true;
            }
            let lane = &self.lanes[entry.lane as usize];
            lane.look.set(!changed || aborted);
            if changed || aborted {
                self.progress.set(true);
                lane.fruitless.set((0, 0));
            } else {
                lane.fruitless.set((spin.at as usize, spin.seen));
            }
            ready.push_back(entry.lane);
            false
        });
    }
}

/// The lane of a warp whose value an exchange gives; a GPU takes no more of the mask than a lane's number has.
const fn other_lane(lane: u32, lane_mask: u32) -> u32 {
    (lane ^ lane_mask) % WARP
}

/// What running a block led to.
pub(crate) enum Ran {
    /// All lanes have exited.
    Ended,
    /// Lanes wait, or are ready for the next turn.
    Goes,
    /// A lane cannot go on; the launch has to be stopped.
    Failed(Failure),
}

/// Why a lane cannot go on.
pub(crate) struct Failure {
    /// What fault of the kernel it is; none where the machine has not enough.
    pub(crate) found: Option<FindingKind>,
    pub(crate) report: String,
    /// The lane of its block.
    pub(crate) lane: u32,
}

/// A resident block and its fibers.
pub(crate) struct Block {
    // Ended before `state` and `launch` are dropped, which they point to.
    fibers: Vec<Option<Fiber>>,
    state: Rc<BlockState>,
    launch: Launch,
    pub(crate) index: u32,
    /// Which launch of the scheduler it belongs to.
    pub(crate) owner: u64,
    /// Where it is resident.
    pub(crate) place: crate::scheduler::Place,
}

impl Block {
    pub(crate) fn new(
        launch: Launch,
        index: u32,
        owner: u64,
        place: crate::scheduler::Place,
        watch: Option<(Rc<Watch>, u32)>,
    ) -> Block {
        static SHARED: AtomicU64 = AtomicU64::new(0);
        let threads = launch.threads;
        let warp = |w: u32| Warp {
            waiting: Cell::new(0),
            exited: Cell::new((u64::MAX << (threads - w * WARP).min(WARP)) as u32),
            slots: [const { Cell::new(None) }; WARP as usize],
        };
        let (block_dim, grid_dim) = (threads, launch.blocks);
        let state = Rc::new_cyclic(|state| BlockState {
            lanes: (0..threads)
                .map(|thread| Coords { thread, block: index, block_dim, grid_dim })
                .map(|coords| Lane::new(coords, state.as_ptr()))
                .collect(),
            exited: Cell::new(0),
            at_barrier: RefCell::new(Vec::with_capacity(threads as usize)),
            barrier_line: Cell::new(None),
            vote: Cell::new(false),
            verdict: Cell::new(false),
            warps: (0..threads.div_ceil(WARP)).map(warp).collect(),
            watched: RefCell::default(),
            ready: RefCell::new((0..threads).collect()),
            shared: UnsafeCell::new(vec![0; launch.shared_bytes.div_ceil(16) as usize]),
            shared_bytes: launch.shared_bytes,
            // Neither a file's number nor one of memory that is mapped once.
            shared_object: 1 << 62
                | watch.as_ref().map_or(0, |_| SHARED.fetch_add(1, Ordering::Relaxed)),
            watch,
            progress: Cell::new(true),
            begun: Cell::new(false),
        });
        let fibers = std::iter::repeat_with(|| None).take(threads as usize).collect();
        Block { fibers, state, launch, index, owner, place }
    }

    pub(crate) fn kernel(&self) -> &'static str {
        self.launch.kernel.name
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.state.lanes
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.state.ready.borrow().is_empty()
    }

    /// Whether anything happened since the last call that was more than a fruitless look.
    pub(crate) fn take_progress(&self) -> bool {
        self.state.progress.take()
    }

    /// Looks at what lanes wait for, then runs each lane that is ready once.
    pub(crate) fn run(&mut self, now: u64, stacks: &mut Stacks) -> Ran {
        self.state.look(now);
        let turns = self.state.ready.borrow().len();
        for _ in 0..turns {
            let Some(index) = self.state.ready.borrow_mut().pop_front() else { break };
            if let Err(failure) = self.run_lane(index, stacks) {
                return Ran::Failed(failure);
            }
        }
        if self.state.exited.get() == self.launch.threads { Ran::Ended } else { Ran::Goes }
    }

    /// Looks at what lanes wait for.
    pub(crate) fn look(&self, now: u64) {
        self.state.look(now);
    }

    /// Forgets in which order and since when lanes wait: all do since now.
    pub(crate) fn rest(&self, now: u64) {
        let mut watched = self.state.watched.borrow_mut();
        watched.sort_unstable_by_key(|entry| entry.lane);
        watched.iter_mut().for_each(|entry| entry.since = now);
    }

    /// How many lanes are ready.
    pub(crate) fn ready_lanes(&self) -> usize {
        self.state.ready.borrow().len()
    }

    /// Whether any of its lanes has run.
    pub(crate) fn has_begun(&self) -> bool {
        self.state.begun.get()
    }

    /// The lanes that are ready, in the order in which they became so.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (u32, &Lane)> {
        let ready: Vec<u32> = self.state.ready.borrow().iter().copied().collect();
        ready.into_iter().map(|lane| (lane, &self.state.lanes[lane as usize]))
    }

    /// Which lane is the `nth` of those that are ready.
    pub(crate) fn ready_lane(&self, nth: usize) -> Option<u32> {
        self.state.ready.borrow().get(nth).copied()
    }

    /// Runs the `nth` of the lanes that are ready until it waits or makes room.
    pub(crate) fn run_ready(&mut self, nth: usize, stacks: &mut Stacks) -> Ran {
        let Some(index) = self.state.ready.borrow_mut().remove(nth) else { return Ran::Goes };
        if let Err(failure) = self.run_lane(index, stacks) {
            return Ran::Failed(failure);
        }
        if self.state.exited.get() == self.launch.threads { Ran::Ended } else { Ran::Goes }
    }

    /// The numbers of its lanes in the world that watches: the first one's, and how many.
    pub(crate) fn watched_lanes(&self) -> Option<(u32, u32)> {
        self.state.watch.as_ref().map(|&(_, first)| (first, self.launch.threads))
    }

    pub(crate) fn shared_object(&self) -> u64 {
        self.state.shared_object
    }

    fn run_lane(&mut self, index: u32, stacks: &mut Stacks) -> Result<(), Failure> {
        self.state.begun.set(true);
        let lane: *const Lane = &self.state.lanes[index as usize];
        let place = &mut self.fibers[index as usize];
        let fiber = match place {
            Some(fiber) => fiber,
            None => {
                let stack = stacks.take().map_err(|error| Failure {
                    found: None,
                    lane: index,
                    report: format!(
                        "no stack for lane {index} of block {} of kernel {}: {error}; use fewer \
                         lanes, or let this process have more memory (`ulimit -v`) or mappings \
                         (vm.max_map_count)",
                        self.index, self.launch.kernel.name
                    ),
                })?;
                let (kernel, args) = (self.launch.kernel, self.launch.args.as_ptr());
                // SAFETY: lane and arguments belong to this block, which ends its fibers before it
                // is dropped; `Launch::new` has the promise about the arguments.
                place.insert(unsafe { lane::fiber(stack, lane, kernel, args) })
            }
        };
        // SAFETY: the fiber was made for this lane.
        let Some(panic) = (unsafe { lane::resume(fiber, lane) }) else { return Ok(()) };
        if let Some(fiber) = place.take() {
            stacks.give(fiber.into_stack());
        }
        if let Some(payload) = panic {
            let text = payload
                .downcast_ref::<&str>()
                .map(|text| text.to_string())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic without a message".into());
            let report = format!(
                "lane {index} of block {} of kernel {} panicked: {text}",
                self.index, self.launch.kernel.name
            );
            return Err(Failure { found: Some(FindingKind::Panic), report, lane: index });
        }
        self.state.exit(index).map_err(|report| Failure {
            found: Some(FindingKind::Warp),
            lane: index,
            report: format!("block {} of kernel {}: {report}", self.index, self.launch.kernel.name),
        })
    }

    /// Ends all lanes where they are; what they own is dropped.
    pub(crate) fn stop(mut self, stacks: &mut Stacks) {
        self.end_fibers(stacks);
    }

    fn end_fibers(&mut self, stacks: &mut Stacks) {
        for mut fiber in self.fibers.iter_mut().filter_map(Option::take) {
            fiber.force_unwind();
            stacks.give(fiber.into_stack());
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // A block that ended or was stopped has none left.
        if self.fibers.iter().any(Option::is_some) {
            self.end_fibers(&mut Stacks::default());
        }
    }
}
