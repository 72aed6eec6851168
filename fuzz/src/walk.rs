//! The tests of targets: the corpus, and what is close to it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use crate::Target;
use crate::allocations::most_held;
use crate::mutate::{Dice, mutate};

/// What a parser may hold at once: this much, and so many times its input. Rows of a table are larger
/// in memory than in a message, and a list that grows is held twice.
const BASE_BYTES: u64 = 64 << 10;
const TIMES: u64 = 64;

/// Damaged inputs that are made of each good one.
const ROUNDS: usize = 64;

/// Runs `run`, and panics if it held more than the bound.
pub fn is_bounded(name: &str, input: &[u8], run: fn(&[u8]) -> bool) -> bool {
    let (taken, most) = most_held(|| run(input));
    let bound = BASE_BYTES + TIMES * input.len() as u64;
    assert!(most <= bound, "{name}: {most} bytes held for an input of {}", input.len());
    taken
}

/// Runs each target over its seeds, its corpus, and inputs that are made of these by damage. Panics,
/// after it has printed the input, if one of them finds a fault, and if a corpus is missing or has
/// nothing that is taken, or nothing that is refused.
pub fn walk(targets: &[Target]) {
    for target in targets {
        let mut inputs = (target.seeds)();
        for seed in &inputs {
            assert!(run(target, seed), "{}: a seed is refused: {seed:02x?}", target.name);
        }
        inputs.extend(corpus(target));
        let mut dice = Dice::of(target.name);
        let mut counts = [0usize; 2];
        for index in 0..inputs.len() {
            counts[usize::from(run(target, &inputs[index]))] += 1;
            for _ in 0..ROUNDS {
                let other = dice.below(inputs.len());
                let damaged = mutate(&mut dice, &inputs[index], &inputs[other]);
                counts[usize::from(run(target, &damaged))] += 1;
            }
        }
        let [refused, taken] = counts;
        assert!(refused > 0 && taken > 0, "{}: {refused} refused, {taken} taken", target.name);
    }
}

fn run(target: &Target, input: &[u8]) -> bool {
    match catch_unwind(AssertUnwindSafe(|| target.check(input))) {
        Ok(taken) => taken,
        Err(panic) => {
            eprintln!("{}: the input that found it: {input:02x?}", target.name);
            resume_unwind(panic)
        }
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(target.name);
    let wrong = |error| panic!("the corpus of {}: {}: {error}", target.name, folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(wrong)
        .map(|entry| entry.map_or_else(|error| panic!("{error}"), |entry| entry.path()))
        .collect();
    // The order of a folder is the file system's; the inputs are to be the same everywhere.
    files.sort();
    assert!(!files.is_empty(), "the corpus of {} is empty", target.name);
    files.iter().map(|file| fs::read(file).unwrap_or_else(|error| panic!("{error}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(run: fn(&[u8]) -> bool, input: &[u8]) -> String {
        let panic = catch_unwind(|| is_bounded("a target", input, run)).unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn an_allocation_that_a_length_field_asks_for_is_found() {
        let trusting = |input: &[u8]| {
            let length = u32::from_le_bytes(*input.first_chunk().unwrap());
            std::hint::black_box(Vec::<u8>::with_capacity(length as usize)).is_empty()
        };
        assert!(is_bounded("a target", &[0, 1, 0, 0], trusting));
        let why = caught(trusting, &[0, 0, 16, 0]);
        assert!(why.contains("1048576 bytes held for an input of 4"), "{why}");
    }
}
