//! A run as the list of decisions at which it did not do the usual.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A decision at which a run took another alternative than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Departure {
    /// The how manieth decision of the run it is, from 0 on.
    pub decision: u64,
    /// Which of its alternatives was taken, from 1 on; 0 is the default.
    pub alternative: u32,
}

/// The departures of a run, in their order. Each decision is there once at most, so that a run has one
/// name; empty is the run that takes every default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Departures(Arc<[Departure]>);

impl Departures {
    /// The list.
    pub fn list(&self) -> &[Departure] {
        &self.0
    }

    /// These, and one more behind the last; `None` if it is not behind it, or no departure.
    pub fn and(&self, departure: Departure) -> Option<Departures> {
        let behind = self.0.last().is_none_or(|last| last.decision < departure.decision);
        (behind && departure.alternative > 0)
            .then(|| Departures(self.0.iter().copied().chain([departure]).collect()))
    }
}

/// As a mode has it: `12=1+40=2`, and `none` where there is no departure.
impl fmt::Display for Departures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (nth, Departure { decision, alternative }) in self.0.iter().enumerate() {
            let plus = if nth > 0 { "+" } else { "" };
            write!(f, "{plus}{decision}={alternative}")?;
        }
        Ok(())
    }
}

impl FromStr for Departures {
    /// What is allowed says who reads the whole mode.
    type Err = ();

    fn from_str(text: &str) -> Result<Departures, ()> {
        if text == "none" {
            return Ok(Departures::default());
        }
        // A `+` in front is a number for the standard library; here it stands between two.
        let mut all: Vec<Departure> = Vec::new();
        for part in text.split('+') {
            let (decision, alternative) = part.split_once('=').ok_or(())?;
            let departure = Departure {
                decision: decision.parse().map_err(|_| ())?,
                alternative: alternative.parse().map_err(|_| ())?,
            };
            let behind = all.last().is_none_or(|last| last.decision < departure.decision);
            if departure.alternative == 0 || !behind {
                return Err(());
            }
            all.push(departure);
        }
        Ok(Departures(all.into()))
    }
}
