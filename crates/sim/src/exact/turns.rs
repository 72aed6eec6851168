//! Whose turn it is.
//!
//! Where departures make the run: a lane that is not about to make an access by which others could
//! synchronise goes on first, whichever it is, since what it does until then is its own. When all are about
//! to, it is decided which one goes on, or which block begins: by default the lane that did before, and
//! where that waits or has ended the next one, by device, launch, block and lane. Lanes that poll in vain,
//! or that only a timer woke, go on when nobody else can.

use super::mode::Schedule;
use super::random::Random;
use super::watch::is_slow;
use super::worker::Worker;

/// A lane, by its place: device, launch, block, lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    device: (u32, u64),
    launch: u64,
    block: u32,
    lane: u32,
    /// Its number in the world.
    who: u32,
}

/// A lane that is ready, and where it is found: the block's index, and which of its ready lanes.
#[derive(Clone, Copy)]
struct Ready {
    turn: Turn,
    at: (usize, usize),
}

impl Worker {
    /// The lane that runs next: its device, its block's index, and which of the block's ready ones.
    pub(super) fn choose(&mut self) -> Option<((u32, u64), usize, usize)> {
        if let Schedule::Departures(_) = self.watch.schedule() {
            return self.choose_departing();
        }
        let mut ready: Vec<((u32, u64), usize, usize)> = Vec::new();
        for (key, device) in &self.devices {
            for (index, block) in device.blocks.iter().enumerate() {
                let lanes = block.ready_lanes();
                if lanes > 0 {
                    ready.push((*key, index, lanes));
                }
            }
        }
        if ready.is_empty() {
            return None;
        }
        let any = |random: &mut Random, ready: &[((u32, u64), usize, usize)]| {
            let (key, block, lanes) = ready[random.below(ready.len() as u64) as usize];
            (key, block, random.below(lanes as u64) as usize)
        };
        Some(match self.watch.schedule() {
            Schedule::Random | Schedule::OneFar | Schedule::Departures(_) => {
                any(&mut self.random, &ready)
            }
            Schedule::RoundRobin => {
                let after = |&&((ordinal, _), block, _): &&((u32, u64), usize, usize)| {
                    (ordinal, block) > self.last
                };
                let (key, block, _) = *ready.iter().find(after).unwrap_or(&ready[0]);
                self.last = (key.0, block);
                (key, block, 0)
            }
            Schedule::SlowestLast => {
                let first = any(&mut self.random, &ready);
                let seed = self.mode.seed;
                let fast = |key: (u32, u64), block: usize, nth: usize| {
                    let block = &self.devices[&key].blocks[block];
                    let lane = block.ready_lane(nth).unwrap_or(0);
                    !is_slow(seed, key.0, block.index, lane)
                };
                // Who polls without end may wait for a slow one.
                if self.watch.polls_in_vain() || fast(first.0, first.1, first.2) {
                    return Some(first);
                }
                let from = self.random.below(ready.len() as u64) as usize;
                let turned = ready[from..].iter().chain(&ready[..from]);
                let lanes = turned
                    .flat_map(|&(key, block, lanes)| (0..lanes).map(move |nth| (key, block, nth)));
                let mut lanes = lanes;
                lanes.find(|&(key, block, nth)| fast(key, block, nth)).unwrap_or(first)
            }
        })
    }

    fn choose_departing(&mut self) -> Option<((u32, u64), usize, usize)> {
        self.look();
        let [goes, mut parked, mut idle]: [Vec<Ready>; 3] = self.ready();
        let chosen = if let Some(first) = in_turn(goes, |turn| Some(turn) < self.current).first() {
            *first
        } else {
            let watch = self.watch.clone();
            let decisions = &mut watch.state.borrow_mut().decisions;
            let decisions = decisions.as_mut()?;
            let polls = |ready: &Ready| decisions.polls(ready.turn.who);
            let (polling, awake) = parked.drain(..).partition::<Vec<_>, _>(polls);
            idle.extend(polling);
            let parked = in_turn(awake, |turn| Some(turn) < self.current);
            if parked.is_empty() {
                // How often they look may depend on the host, so nothing that is decided depends on it.
                let chosen = *in_turn(idle, |turn| Some(turn) <= self.looked).first()?;
                self.looked = Some(chosen.turn);
                chosen
            } else {
                let current = self.current.map(|turn| turn.who);
                let nth = decisions.which_lane(current, parked.len() as u32);
                let chosen = parked[nth as usize];
                self.current = Some(chosen.turn);
                chosen
            }
        };
        Some((chosen.turn.device, chosen.at.0, chosen.at.1))
    }

    /// Lanes that go on by themselves, lanes of which it is to be decided who goes on, and lanes that only
    /// look.
    fn ready(&self) -> [Vec<Ready>; 3] {
        let mut ready = [const { Vec::new() }; 3];
        for (&device, scheduler) in &self.devices {
            for (index, block) in scheduler.blocks.iter().enumerate() {
                let first = block.watched_lanes().map_or(0, |(first, _)| first);
                // Of a block that has not begun, the first lane stands for all.
                let lanes = if block.has_begun() { usize::MAX } else { 1 };
                for (nth, (lane, state)) in block.ready().enumerate().take(lanes) {
                    let (launch, who) = (block.owner, first + lane);
                    let turn = Turn { device, launch, block: block.index, lane, who };
                    let kind = match () {
                        () if state.looks() => 2,
                        () if state.parked.get() || !block.has_begun() => 1,
                        () => 0,
                    };
                    ready[kind].push(Ready { turn, at: (index, nth) });
                }
            }
        }
        ready
    }
}

/// In turn, those for which `before` holds last.
fn in_turn(mut ready: Vec<Ready>, before: impl Fn(Turn) -> bool) -> Vec<Ready> {
    ready.sort_unstable_by_key(|ready| ready.turn);
    let from = ready.partition_point(|ready| before(ready.turn));
    let from = from % ready.len().max(1);
    ready.rotate_left(from);
    ready
}
