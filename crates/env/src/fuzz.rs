//! Fuzz target: values of all variables. In tests and under `cfg(fuzzing)` only.

use mscclrs_fuzz::Target;

use crate::{Kind, Source, Variable, registered};

/// All of them.
pub const TARGETS: &[Target] = &[Target { name: "environment", run: environment, seeds }];

/// Which variable, then its value.
fn environment(input: &[u8]) -> bool {
    let Some((&which, value)) = input.split_first() else { return false };
    let Ok(value) = std::str::from_utf8(value) else { return false };
    let variable = registered().nth(usize::from(which) % registered().count());
    let Some(variable) = variable else { return false };
    let given = |name: &str| (name == variable.name).then(|| value.to_owned());
    let source = Source::new(&given);
    let checked = variable.check(source);
    let read = match variable.kind {
        Kind::Choice(_) => variable.choice_in(source).map(|word| word.map(str::to_owned)),
        Kind::Number { .. } => {
            variable.number_in::<u64>(source).map(|number| number.map(|number| number.to_string()))
        }
        _ => checked.clone().map(|()| None),
    };
    assert_eq!(read.is_ok(), checked.is_ok());
    // What was read, written again, is read as the same.
    if let Ok(Some(text)) = &read {
        let again = |_: &str| Some(text.clone());
        assert!(fits(variable, Source::new(&again)));
    }
    if let Err(error) = &checked {
        let words = error.to_string();
        assert!(words.starts_with(variable.name) && words.contains(&variable.allowed()));
        assert_eq!(error.value, variable.shown(value));
    }
    assert!(!variable.is_secret() || variable.shown(value).starts_with("set, "));
    checked.is_ok()
}

fn fits(variable: &Variable, source: Source<'_>) -> bool {
    variable.check(source).is_ok()
}

/// Values of every variable, allowed by its kind.
fn seeds() -> Vec<Vec<u8>> {
    let value = |kind| match kind {
        Kind::Choice(words) => words.first().map_or(String::new(), |word| word.to_uppercase()),
        Kind::Number { from, .. } => from.to_string(),
        Kind::Path => "/usr".into(),
        Kind::Secret { least } => "s".repeat(least),
        Kind::Seconds { .. } => " 1e3 ".into(),
        Kind::Text(_) => "a text".into(),
    };
    let seed =
        |(which, variable): (u8, &Variable)| [&[which], value(variable.kind).as_bytes()].concat();
    (0..).zip(registered()).map(seed).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_hold_for_their_corpora_and_what_is_close_to_them() {
        mscclrs_fuzz::walk(super::TARGETS);
    }
}
