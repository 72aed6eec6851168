//! Steps that run one after the other, are timed, and stop at the first failure.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Tests that ran in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// That passed.
    pub(crate) passed: u64,
    /// That were not run.
    pub(crate) skipped: u64,
}

/// One step.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn() -> Result<Counts>,
}

/// Runs the chosen steps, all if `only` is empty, and prints what they took.
pub(crate) fn run(steps: &[Step], only: &[String]) -> Result<()> {
    for name in only {
        if !steps.iter().any(|step| step.name == name) {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            bail!("there is no step {name}; the steps are {}", names.join(", "));
        }
    }
    let chosen = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut total = Counts::default();
    for step in steps.iter().filter(chosen) {
        eprintln!("\n== {}: {}", step.name, step.what);
        let start = Instant::now();
        let result = (step.run)();
        rows.push((step.name, start.elapsed(), if result.is_ok() { "passed" } else { "FAILED" }));
        match result {
            Ok(counts) => {
                total.passed += counts.passed;
                total.skipped += counts.skipped;
            }
            Err(error) => {
                print!("{}", table(&rows));
                bail!(
                    "step {0} failed: {error:#}\nto run it again: cargo xtask test --only {0}",
                    step.name
                );
            }
        }
    }
    print!("{}", table(&rows));
    println!("{}", summary(begin.elapsed(), total));
    Ok(())
}

fn table(rows: &[(&str, Duration, &str)]) -> String {
    let mut text = format!("\n{:<10} {:>9}  result\n", "step", "time");
    for (name, time, result) in rows {
        text.push_str(&format!("{name:<10} {:>8.1}s  {result}\n", time.as_secs_f64()));
    }
    text
}

/// The last line, in the form of nextest's.
fn summary(time: Duration, counts: Counts) -> String {
    format!(
        "     Summary [{:>8.3}s] {1} tests run: {1} passed, {2} skipped",
        time.as_secs_f64(),
        counts.passed,
        counts.skipped
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_reads_like_nextests() {
        let line = summary(Duration::from_millis(1500), Counts { passed: 3, skipped: 1 });
        assert_eq!(line, "     Summary [   1.500s] 3 tests run: 3 passed, 1 skipped");
    }

    #[test]
    fn unknown_step_is_named_with_the_known_ones() {
        let steps = [Step { name: "one", what: "", run: || Ok(Counts::default()) }];
        let error = run(&steps, &["two".into()]).unwrap_err().to_string();
        assert_eq!(error, "there is no step two; the steps are one");
        assert!(run(&steps, &["one".into()]).is_ok());
    }

    #[test]
    fn failure_stops_and_says_how_to_rerun() {
        let steps = [
            Step { name: "one", what: "", run: || bail!("broken") },
            Step { name: "two", what: "", run: || panic!("not reached") },
        ];
        let error = run(&steps, &[]).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("--only one"), "{error}");
    }
}
