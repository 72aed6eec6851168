//! Litmus tests: what weak mode makes of small programs, against what the PTX memory model allows.
//!
//! `tests` has the programs, `program` runs them, `ptx` has the model's axioms, `page` the table of
//! docs/src/memory-model.md.

mod page;
mod program;
mod ptx;
mod tests;

use std::collections::BTreeSet;

use program::{Outcome, PLACES};
use tests::{Litmus, TESTS};

/// Seeds for each place and scope.
const SEEDS: u64 = 6;
/// More departures than any run of these programs can have.
const DEPARTURES: u32 = 32;

impl Litmus {
    fn named(name: &str) -> Vec<&'static Litmus> {
        let tests: Vec<_> = TESTS.iter().filter(|test| test.name == name).collect();
        assert!(!tests.is_empty(), "no test is called {name}");
        tests
    }

    /// Runs it at each place with each scope: in every order that there is, where it makes exactly what it
    /// is expected to, and with some seeds.
    fn check(&self) {
        for held in [true, false] {
            let allowed = ptx::allowed(self.lanes, held);
            let expected = ptx::made(self.lanes, held);
            let mut all = BTreeSet::new();
            for (placement, scope, _) in PLACES.into_iter().filter(|place| place.2 == held) {
                let what = format!("{}, {}: {placement:?}, {scope:?} scope", self.name, self.form);
                let (made, explored) = program::explored(self.lanes, placement, scope, DEPARTURES);
                println!("{what}: {explored}");
                assert!(explored.exhausted && explored.found.is_none(), "{what}: {explored}");
                assert_eq!(made, expected, "{what}");
                let made = program::made(self.lanes, placement, scope, SEEDS);
                let forbidden: BTreeSet<&Outcome> = made.difference(&allowed).collect();
                assert!(forbidden.is_empty(), "{what}: PTX forbids {forbidden:?}");
                let (weak, wanted) = (made.contains(self.weak), expected.contains(self.weak));
                assert_eq!(weak, wanted, "{what}: made {made:?}");
                all.extend(made);
            }
            assert_eq!(all, expected, "{}, {}: scopes hold all: {held}", self.name, self.form);
        }
    }
}

/// Each name of a test has a function, so that they run beside each other.
macro_rules! litmus_tests {
    ($($function:ident = $name:literal;)*) => {
        $(
            #[test]
            fn $function() {
                Litmus::named($name).into_iter().for_each(Litmus::check);
            }
        )*

        #[test]
        fn every_litmus_test_is_run() {
            let run: BTreeSet<&str> = BTreeSet::from([$($name),*]);
            assert_eq!(run, TESTS.iter().map(|test| test.name).collect());
        }
    };
}
litmus_tests! {
    message_passing = "Message passing";
    store_buffering = "Store buffering";
    load_buffering = "Load buffering";
    independent_reads = "Independent reads of independent writes";
    write_to_read = "Write to read";
    coherence_of_reads = "Coherence of reads";
    coherence_of_writes = "Coherence of writes";
    coherence_of_a_write_and_a_read = "Coherence of a write and a read";
    order_of_writes = "Order of writes";
    two_read_modify_writes = "Two read-modify-writes";
    release_sequences = "Release sequence";
}
