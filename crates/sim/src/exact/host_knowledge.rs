//! What the host may know of what kernels and moves did: what host threads have seen to be done, and what
//! kernels released to the host's memory. Work that has ended unseen is none of it.
//!
//! Invariant: what is learnt has a number, and what was submitted at a stamp knows of what has no greater one.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::clock::{Known, Moment, join};
use super::seen::{Link, Seen};
use crate::Point;

/// Moments that are kept apart, at most. Past that the oldest is taken for the one after it: too much is known
/// by who knows of it, and no race is invented.
const MOMENTS: usize = 64;

/// What is known from a number on.
type Moments = VecDeque<(u64, Known)>;

#[derive(Default)]
pub(crate) struct HostKnowledge {
    link: Arc<Link>,
    /// By how many things were seen.
    learnt: Moments,
    /// Of queues, by their numbers and how many items were done.
    queues: BTreeMap<u64, Moments>,
    points: BTreeMap<u64, (Weak<Point>, Known)>,
    /// Points at which those that are gone are looked for.
    many_points: usize,
}

impl HostKnowledge {
    pub(super) fn new(link: Arc<Link>) -> HostKnowledge {
        HostKnowledge { link, ..Default::default() }
    }

    /// A queue has done so many items.
    pub(crate) fn done(&mut self, queue: u64, items: u64, known: &Known) {
        let moments = self.queues.entry(queue).or_default();
        // Waits and host calls teach nothing.
        if moments.back().is_none_or(|(_, last)| !Rc::ptr_eq(last, known)) {
            add(moments, items, known.clone());
        }
    }

    /// A queue is gone, and with it who could ask how far it is.
    pub(crate) fn closed(&mut self, queue: u64) {
        self.take();
        self.queues.remove(&queue);
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
            None => self.now().clone(),
        }
    }

    /// What was submitted at that stamp knows.
    pub(crate) fn at(&mut self, stamp: u64) -> Known {
        self.take();
        latest(&self.learnt, stamp).map_or_else(Known::default, |at| self.learnt[at].1.clone())
    }

    /// What is known now.
    pub(super) fn now(&mut self) -> Known {
        self.take();
        self.last()
    }

    /// The host may see from now on what was known at these moments.
    pub(crate) fn learn<'a>(&mut self, moments: impl Iterator<Item = &'a Moment>) {
        let link = self.link.clone();
        link.number(|list, number| {
            let before = std::mem::take(list);
            self.add_all(before);
            let mut known = self.last();
            moments.for_each(|moment| moment.add_to(&mut known));
            add(&mut self.learnt, number, known);
        });
    }

    /// Takes what host threads have seen.
    fn take(&mut self) {
        let seen = self.link.take();
        self.add_all(seen);
    }

    fn add_all(&mut self, all: Vec<(u64, Seen)>) {
        for (number, seen) in all {
            let mut known = self.last();
            match seen {
                Seen::Done { queue, items } => {
                    let Some(moments) = self.queues.get_mut(&queue) else { continue };
                    let Some(at) = latest(moments, items) else { continue };
                    join(&mut known, &moments[at].1);
                    moments.drain(..at);
                }
                Seen::Passed { point } => {
                    let Some((_, after)) = self.points.get(&point) else { continue };
                    join(&mut known, after);
                }
            }
            add(&mut self.learnt, number, known);
        }
    }

    fn last(&self) -> Known {
        self.learnt.back().map(|(_, known)| known.clone()).unwrap_or_default()
    }

    /// No stamp that is still to come is less.
    pub(super) fn no_less_than(&mut self, stamp: u64) {
        let Some(at) = latest(&self.learnt, stamp) else { return };
        self.learnt.drain(..at);
        // Should something have been overlooked, it knows too much.
        self.learnt[0].0 = 0;
    }
}

/// Where the last is that has a number of at most this.
fn latest(moments: &Moments, number: u64) -> Option<usize> {
    moments.partition_point(|&(of, _)| of <= number).checked_sub(1)
}

/// Adds a moment, and forgets when the second was if they are many.
fn add(moments: &mut Moments, number: u64, known: Known) {
    moments.push_back((number, known));
    if moments.len() > MOMENTS {
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
        assert_eq!(*host.at(between), [3, 7]);
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
            let known = host.now().first().copied().unwrap_or(0);
            assert!(u64::from(known) >= items, "{items}");
        }
        let late = many - MOMENTS as u64 / 2;
        assert!(host.queues[&queue.number].len() == 1 && host.learnt.len() <= MOMENTS);
        assert_eq!(host.at(late), until(late as u32));
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
        assert_eq!((host.at(before), host.at(host.link.stamp())), (Known::default(), until(5)));
        for time in 0..10 * MOMENTS as u32 {
            host.learn([Moment::of(until(time))].iter());
        }
        assert!(host.learnt.len() <= MOMENTS);
    }
}
