//! The corpus of a fuzz target: few inputs that reach much.
//!
//! libFuzzer notes what each input reaches in the control file of a merge. Of these the one that adds
//! most is taken again and again, the shortest of several, until nothing is left to add or there are
//! [`MOST_INPUTS`]. Seeds come before all, and are not part of the corpus: who walks it has them. Where
//! a parser of others is behind ours, as serde's is, every mistake in a text is a place of its own,
//! which would want an input of its own.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The most inputs of a corpus.
pub(crate) const MOST_INPUTS: usize = 40;

/// An input, and the numbers of the places that it reaches.
struct Input {
    path: PathBuf,
    bytes: u64,
    places: Vec<u64>,
}

/// What was chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) inputs: Vec<PathBuf>,
    /// How many places these and the seeds reach, and how many all reach.
    pub(crate) reached: usize,
    pub(crate) reachable: usize,
}

/// Chooses from the inputs of a merge's control file. Names of seeds begin with `seed`.
pub(crate) fn choose(control: &str, seed: &str) -> Result<Chosen> {
    let mut left = parse(control)?;
    let reachable = left.iter().flat_map(|input| &input.places).collect::<HashSet<_>>().len();
    let is_seed = |input: &Input| {
        input.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(seed))
    };
    let seeds = left.iter().filter(|input| is_seed(input));
    let mut reached: HashSet<u64> = seeds.flat_map(|seed| seed.places.iter().copied()).collect();
    let mut inputs = Vec::new();
    while inputs.len() < MOST_INPUTS {
        for input in &mut left {
            input.places.retain(|place| !reached.contains(place));
        }
        left.retain(|input| !input.places.is_empty());
        // By name last, so that the same control file always gives the same corpus.
        let best = left.iter().enumerate().max_by(|(_, a), (_, b)| {
            let by_length = || b.bytes.cmp(&a.bytes).then_with(|| b.path.cmp(&a.path));
            a.places.len().cmp(&b.places.len()).then_with(by_length)
        });
        let Some((best, _)) = best else { break };
        let best = left.swap_remove(best);
        reached.extend(best.places);
        inputs.push(best.path);
    }
    Ok(Chosen { inputs, reached: reached.len(), reachable })
}

/// The number of files, of those of the first folder, the names; then for each file its size (`STARTED`)
/// and what it reaches (`FT`), among other lines.
fn parse(control: &str) -> Result<Vec<Input>> {
    let mut lines = control.lines();
    let count = lines.next().and_then(|line| line.parse::<usize>().ok());
    let count = count.context("it does not begin with a number of files")?;
    let paths: Vec<_> = lines.by_ref().skip(1).take(count).map(PathBuf::from).collect();
    if paths.len() != count {
        bail!("it names {} files, not {count}", paths.len());
    }
    let mut inputs: Vec<_> =
        paths.into_iter().map(|path| Input { path, bytes: 0, places: Vec::new() }).collect();
    for line in lines {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        let mut numbers = rest.split_whitespace().map(str::parse::<u64>);
        if !matches!(word, "STARTED" | "FT") {
            continue;
        }
        let at = numbers.next().and_then(Result::ok).and_then(|at| usize::try_from(at).ok());
        let input = at.and_then(|at| inputs.get_mut(at));
        let input = input.with_context(|| format!("there is no such file: {word} {rest:.20}"))?;
        let numbers = numbers.collect::<Result<Vec<_>, _>>();
        let numbers = numbers.with_context(|| format!("not a number: {word} {rest:.20}"))?;
        match (word, numbers.as_slice()) {
            ("STARTED", [bytes]) => input.bytes = *bytes,
            ("FT", _) => input.places = numbers,
            _ => bail!("a line that is not known: {word} {rest:.20}"),
        }
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn control(inputs: &[(&str, u64, &[u64])]) -> String {
        let mut text = format!("{}\n0\n", inputs.len());
        inputs.iter().for_each(|(name, _, _)| text += &format!("{name}\n"));
        for (at, (_, bytes, places)) in inputs.iter().enumerate() {
            let places: Vec<_> = places.iter().map(u64::to_string).collect();
            let places = places.join(" ");
            writeln!(text, "STARTED {at} {bytes}\nFT {at} {places}\nCOV {at} 7").unwrap();
        }
        text
    }

    fn names(chosen: &Chosen) -> Vec<&str> {
        chosen.inputs.iter().map(|path| path.to_str().unwrap()).collect()
    }

    #[test]
    fn what_adds_most_comes_first_and_the_shortest_of_several() {
        let inputs: [(&str, u64, &[u64]); 5] = [
            ("covered", 1, &[1, 2]),
            ("long", 9, &[4, 5]),
            ("most", 50, &[1, 2, 3]),
            ("short", 8, &[4, 5]),
            ("none", 1, &[]),
        ];
        let chosen = choose(&control(&inputs), "seed-").unwrap();
        assert_eq!(names(&chosen), ["most", "short"]);
        assert_eq!((chosen.reached, chosen.reachable), (5, 5));
    }

    #[test]
    fn what_seeds_reach_needs_no_other_input() {
        let inputs: [(&str, u64, &[u64]); 3] =
            [("found/a", 1, &[1, 2]), ("found/b", 1, &[1, 3]), ("found/seed-0", 9, &[1, 2])];
        let chosen = choose(&control(&inputs), "seed-").unwrap();
        assert_eq!(names(&chosen), ["found/b"]);
        assert_eq!((chosen.reached, chosen.reachable), (3, 3));
    }

    #[test]
    fn there_are_no_more_than_allowed_and_it_is_told_what_they_miss() {
        let names: Vec<_> = (0..100).map(|at| format!("input {at}")).collect();
        let places: Vec<_> = (0..100u64).map(|at| [0, at + 1]).collect();
        let inputs: Vec<_> =
            names.iter().zip(&places).map(|(name, places)| (&name[..], 3, &places[..])).collect();
        let chosen = choose(&control(&inputs), "seed-").unwrap();
        assert_eq!(chosen.inputs.len(), MOST_INPUTS);
        assert_eq!((chosen.reached, chosen.reachable), (MOST_INPUTS + 1, 101));
    }

    #[test]
    fn what_is_no_control_file_is_an_error() {
        for text in ["", "x\n", "2\n0\none\n", "1\n0\na\nFT 1 5\n", "1\n0\na\nFT 0 x\n"] {
            assert!(choose(text, "seed-").is_err(), "{text:?}");
        }
    }
}
