//! What the host may know of what kernels and moves did: what host threads have seen to be done, and what
//! kernels released to the host's memory. Work that has ended unseen is none of it.
//!
//! Invariant: what is learnt has a number, and what was submitted at a stamp knows of what has no
//! greater one.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::clock::{Known, Moment, join};
use super::mode::Check;
use super::seen::{Link, Log, Seen};
use crate::Point;

/// Moments of the host that are kept apart, and of a queue: what is seen of a queue is mostly its end,
/// or an event, which keeps its own. Past that the oldest is taken for the one after it: too much is
/// known by who knows of it, and no race is invented.
const MOMENTS: usize = 64;
const QUEUE_MOMENTS: usize = 4;

/// What is known from a number on.
type Moments = VecDeque<(u64, Known)>;

#[derive(Default)]
pub(crate) struct HostKnowledge {
    link: Arc<Link>,
    /// Where what lanes see depends on what they know: all work that has ended, and what kernels told. When
    /// host threads see it is of no account then, so that a run repeats however they run.
    ended: Option<Known>,
    /// By how many things were seen.
    learnt: Moments,
    /// How many of them were taken.
    taken: u64,
    /// Of queues, by their numbers and how many items were done.
    queues: BTreeMap<u64, Moments>,
    /// What is known after all that queues did that are gone.
    gone: Known,
    points: BTreeMap<u64, (Weak<Point>, Known)>,
    /// Points at which those that are gone are looked for.
    many_points: usize,
}

impl HostKnowledge {
    pub(super) fn new(link: Arc<Link>, check: Check) -> HostKnowledge {
        let ended = (check == Check::Weak).then(Known::default);
        HostKnowledge { link, ended, ..Default::default() }
    }

    /// A queue has done so many items.
    pub(crate) fn done(&mut self, queue: u64, items: u64, known: &Known) {
        if let Some(ended) = &mut self.ended {
            return join(ended, known);
        }
        // Before moments become one.
        self.take();
        let moments = self.queues.entry(queue).or_default();
        // Waits and host calls teach nothing.
        if moments.back().is_none_or(|(_, last)| !Rc::ptr_eq(last, known)) {
            add(moments, (items, known.clone()), QUEUE_MOMENTS);
        }
    }

    /// A queue has done all, and gets no more. Somebody may still be told so.
    pub(crate) fn closed(&mut self, queue: u64) {
        self.take();
        let last = self.queues.remove(&queue).and_then(|mut moments| moments.pop_back());
        if let Some((_, known)) = last {
            join(&mut self.gone, &known);
        }
    }

    /// A queue passes a point.
    pub(crate) fn passed(&mut self, point: &Arc<Point>, known: &Known) {
        if self.points.len() >= self.many_points {
            let gone = |point: &Weak<Point>| point.strong_count() == 0;
            let ids: Vec<u64> =
                self.points.iter().filter(|(_, (p, _))| gone(p)).map(|(&id, _)| id).collect();
            // What was seen of them was seen before they went.
            self.take();
            ids.iter().for_each(|id| _ = self.points.remove(id));
            self.many_points = (2 * self.points.len()).max(MOMENTS);
        }
        self.points.insert(point.id(), (Arc::downgrade(point), known.clone()));
        point.is_watched_by(&self.link);
    }

    /// What is known after a point; all that the host knows if it was passed elsewhere.
    pub(crate) fn after(&mut self, point: &Point) -> Known {
        match self.points.get(&point.id()) {
            Some((_, known)) => known.clone(),
            None => {
                // Where it was passed nobody knows that this queue has waited for it.
                point.is_passed();
                self.now()
            }
        }
    }

    /// What was submitted at that stamp knows.
    pub(crate) fn at(&mut self, stamp: u64) -> Known {
        self.take();
        match &self.ended {
            Some(ended) => ended.clone(),
            None => latest(&self.learnt, stamp).map_or_else(Known::default, |at| at.1.clone()),
        }
    }

    /// What is known now.
    pub(super) fn now(&mut self) -> Known {
        self.take();
        self.last()
    }

    /// The host may see from now on what was known at these moments.
    pub(crate) fn learn<'a>(&mut self, moments: impl Iterator<Item = &'a Moment>) {
        if let Some(ended) = &mut self.ended {
            return moments.for_each(|moment| moment.add_to(ended));
        }
        let link = self.link.clone();
        link.with_log(|log| {
            self.add_all(log);
            // As long as nobody has a stamp that is not less than the last one's, that one will do.
            match self.learnt.back_mut() {
                Some((number, known)) if log.given < *number => {
                    moments.for_each(|moment| moment.add_to(known));
                }
                _ => {
                    log.count += 1;
                    let mut known = self.last();
                    moments.for_each(|moment| moment.add_to(&mut known));
                    add(&mut self.learnt, (log.count, known), MOMENTS);
                    self.taken = log.count;
                }
            }
        });
    }

    /// Takes what host threads have seen.
    fn take(&mut self) {
        if self.link.count() != self.taken {
            let link = self.link.clone();
            link.with_log(|log| self.add_all(log));
        }
    }

    fn add_all(&mut self, log: &mut Log) {
        for (number, seen) in std::mem::take(&mut log.seen) {
            if self.ended.is_some() {
                continue;
            }
            let after = match seen {
                Seen::Done { queue, items } => {
                    let moments = self.queues.get_mut(&queue);
                    moments.map_or(Some(&self.gone), |moments| {
                        let kept = moments.partition_point(|&(done, _)| done <= items);
                        moments.drain(..kept.saturating_sub(1));
                        moments.front().filter(|_| kept > 0).map(|(_, known)| known)
                    })
                }
                Seen::Passed { point } => self.points.get(&point).map(|(_, known)| known),
                Seen::Gone => Some(&self.gone),
            };
            let Some(after) = after else { continue };
            match self.learnt.back_mut() {
                Some((last, known)) if log.given < *last => join(known, after),
                last => {
                    let mut known = last.map(|(_, known)| known.clone()).unwrap_or_default();
                    join(&mut known, after);
                    add(&mut self.learnt, (number, known), MOMENTS);
                }
            }
        }
        self.taken = log.count;
    }

    fn last(&self) -> Known {
        let last = self.ended.as_ref().or(self.learnt.back().map(|(_, known)| known));
        last.cloned().unwrap_or_default()
    }

    /// No stamp that is still to come is less.
    pub(super) fn no_less_than(&mut self, stamp: u64) {
        let kept = self.learnt.partition_point(|&(number, _)| number <= stamp);
        self.learnt.drain(..kept.saturating_sub(1));
    }
}

/// The last that has a number of at most this.
fn latest(moments: &Moments, number: u64) -> Option<&(u64, Known)> {
    moments.partition_point(|&(of, _)| of <= number).checked_sub(1).map(|at| &moments[at])
}

/// Adds a moment, and forgets when the second was if they are too many.
fn add(moments: &mut Moments, last: (u64, Known), most: usize) {
    moments.push_back(last);
    if moments.len() > most {
        let second = moments.remove(1);
        if let (Some(first), Some((_, known))) = (moments.front_mut(), second) {
            first.1 = known;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of one slot.
    fn until(time: u32) -> Known {
        vec![time].into()
    }

    fn with_queue(host: &HostKnowledge) -> super::super::Watched {
        host.link.new_queue()
    }

    #[test]
    fn a_stamp_knows_what_was_seen_by_then() {
        let mut host = HostKnowledge::default();
        let (first, second) = (with_queue(&host), with_queue(&host));
        for items in 1..=3 {
            host.done(first.number, items, &until(items as u32));
        }
        host.done(second.number, 1, &vec![0, 7].into());
        let before = host.link.stamp();
        first.see(2);
        let between = host.link.stamp();
        // What is seen again is nothing new.
        first.see(1);
        assert_eq!(host.link.stamp(), between);
        second.see(1);
        first.see(3);
        assert_eq!(host.at(before), Known::default());
        assert_eq!(host.at(between), until(2));
        assert_eq!(*host.at(host.link.stamp()), [3, 7]);
        // In any order.
        assert_eq!(host.at(between), until(2));
        host.no_less_than(between);
        assert_eq!(host.at(between), until(2));
        host.no_less_than(host.link.stamp());
        assert_eq!(*host.at(host.link.stamp()), [3, 7]);
        assert_eq!(host.learnt.len(), 1);
    }

    #[test]
    fn what_is_not_kept_apart_is_known_too_early_and_never_too_late() {
        let mut host = HostKnowledge::default();
        let (queue, many) = (with_queue(&host), 4 * MOMENTS as u64);
        for items in 1..=many {
            host.done(queue.number, items, &until(items as u32));
        }
        for items in 1..=many {
            queue.see(items);
            // Somebody may know this much and no more.
            assert_eq!(host.link.stamp(), items);
            let known = host.now().first().copied().unwrap_or(0);
            assert!(u64::from(known) >= items, "{items}");
        }
        let late = many - MOMENTS as u64 / 2;
        assert!(host.queues[&queue.number].len() == 1 && host.learnt.len() <= MOMENTS);
        assert!(u64::from(host.at(late)[0]) >= late);
        host.closed(queue.number);
        assert_eq!(host.now(), until(many as u32));
    }

    #[test]
    fn points_that_are_gone_are_forgotten_and_what_was_seen_of_them_is_not() {
        let mut host = HostKnowledge::default();
        for time in 1..=10 * MOMENTS as u32 {
            let point = Point::new();
            host.passed(&point, &until(time));
            point.pass(None);
            assert!(point.is_passed());
        }
        assert!(host.points.len() <= 2 * MOMENTS);
        assert_eq!(host.now(), until(10 * MOMENTS as u32));
        // One that was passed where nobody watches.
        assert_eq!(host.after(&Point::new()), host.now());
    }

    #[test]
    fn what_kernels_tell_is_known_from_then_on() {
        let mut host = HostKnowledge::default();
        let before = host.link.stamp();
        host.learn([Moment::of(until(5))].iter());
        let after = host.link.stamp();
        assert_eq!((host.at(before), host.at(after)), (Known::default(), until(5)));
        // While nobody asks for a stamp, there is one moment more, however much they tell.
        for time in 6..10 * MOMENTS as u32 {
            host.learn([Moment::of(until(time))].iter());
        }
        assert_eq!((host.at(after), host.learnt.len()), (until(5), 2));
    }

    #[test]
    fn in_weak_mode_all_that_has_ended_is_known_whoever_has_seen_it() {
        let mut host = HostKnowledge::new(Arc::default(), Check::Weak);
        let (queue, stamp) = (host.link.new_queue(), host.link.stamp());
        host.done(queue.number, 1, &until(1));
        host.learn([Moment::of(until(2))].iter());
        assert_eq!(host.at(stamp), until(2));
        host.done(queue.number, 2, &until(3));
        queue.see(1);
        assert_eq!((host.at(stamp), host.now()), (until(3), until(3)));
        assert!(host.learnt.is_empty() && host.queues.is_empty());
    }
}
