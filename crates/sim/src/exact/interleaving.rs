//! Who ran when, for reports: what one lane did without another of those that matter between is one line,
//! and only the last accesses have a line each. Looks of lanes that wait in vain are no part of it.

use super::trace::Event;
use super::watch::{BlockInfo, State, Who};

/// Most lines for what one lane did in a row.
const TURNS: usize = 12;
/// Accesses at the end with a line each.
const LAST: usize = 6;
/// Most lanes that matter beside those of the finding.
const LANES: usize = 6;

impl State {
    /// How it came to a finding that is about these lanes and this word: of the lanes and of others that
    /// were at the word, who made which accesses in which order.
    pub(super) fn interleaving(&self, whos: &[Who], place: Option<(u32, u64)>) -> Vec<String> {
        let mut lanes = whos.to_vec();
        let at_word =
            |event: &&Event| place.is_some_and(|place| (event.object, event.offset & !7) == place);
        for event in self.trace.recent().filter(at_word) {
            if lanes.len() < whos.len() + LANES && !lanes.contains(&event.who) {
                lanes.push(event.who);
            }
        }
        self.turns(|event| lanes.contains(&event.who))
    }

    /// The same of all lanes.
    pub(super) fn whole_interleaving(&self) -> Vec<String> {
        self.turns(|_| true)
    }

    fn turns(&self, matters: impl Fn(&Event) -> bool) -> Vec<String> {
        let mut events: Vec<&Event> =
            self.trace.recent().filter(|event| !event.in_vain && matters(event)).collect();
        events.reverse();
        let (before, last) = events.split_at(events.len().saturating_sub(LAST));
        let turns: Vec<&[&Event]> = before.chunk_by(|a, b| a.who == b.who).collect();
        let (left_out, shown) = turns.split_at(turns.len().saturating_sub(TURNS));
        let mut lines = Vec::new();
        if !left_out.is_empty() {
            let accesses: usize = left_out.iter().map(|turn| turn.len()).sum();
            lines.push(format!(
                "{accesses} accesses, of {} turns, are left out here",
                left_out.len()
            ));
        }
        lines.extend(shown.iter().map(|turn| self.turn(turn)));
        lines.extend(last.iter().map(|event| self.access(event)));
        lines
    }

    fn lane(&self, Who { block, lane }: Who) -> String {
        let BlockInfo { index: block, device, .. } = self.blocks[block as usize];
        format!("device {device} block {block} lane {lane}")
    }

    fn turn(&self, turn: &[&Event]) -> String {
        let [first, .., last] = turn else {
            return turn.first().map_or_else(String::new, |event| self.access(event));
        };
        let line = |event: &Event| self.kinds.place(event.kind);
        format!(
            "{} makes {} accesses, from {} on; the last: {}",
            self.lane(first.who),
            turn.len(),
            line(first),
            self.what(last)
        )
    }

    fn access(&self, event: &Event) -> String {
        format!("{}: {}", self.lane(event.who), self.what(event))
    }

    fn what(&self, event: &Event) -> String {
        format!(
            "{} of {:#x} at byte {:#x} of memory {}; {}",
            self.kinds.get(event.kind).words(),
            event.bits,
            event.offset,
            event.object,
            self.kinds.place(event.kind),
        )
    }
}
