//! What a deterministic run looks for, and in which order lanes run.

use std::fmt;
use std::str::FromStr;

use super::departures::Departures;
use super::random::Random;

/// In which order lanes run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// A lane runs until it has to wait, then the next one, and loads see the newest value: the default
    /// at every decision but those of this list. It names one run; seeds have no part in it.
    Departures(Departures),
    /// Lanes in turn, a few accesses each.
    RoundRobin,
    /// Any lane, for any number of accesses.
    Random,
    /// A lane runs until it has to wait, however far ahead of the others it comes.
    OneFar,
    /// As `Random`, but some lanes, blocks or devices run only when no other can.
    SlowestLast,
}

impl Schedule {
    /// All that a seed chooses among.
    pub const ALL: [Schedule; 4] =
        [Schedule::Random, Schedule::SlowestLast, Schedule::OneFar, Schedule::RoundRobin];

    /// Its name in `MSCCLRS_SIM`; that of departures is followed by a colon and their list.
    pub const fn name(&self) -> &'static str {
        match self {
            Schedule::Departures(_) => "departures",
            Schedule::RoundRobin => "round-robin",
            Schedule::Random => "random",
            Schedule::OneFar => "one-far",
            Schedule::SlowestLast => "slowest-last",
        }
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// Nothing but what stops a run: an order of lanes that can be had again.
    Ordered,
    /// Races, memory that nobody wrote or has, barriers and warps that do not meet.
    Checked,
    /// Memory shows values as late as its order allows, so that missing order shows in results.
    Weak,
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Departures(departures) => write!(f, "{}:{departures}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

/// How a world runs: what it looks for, and the seed or the departures that all its choices are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// What is looked for.
    pub check: Check,
    /// What every choice is made of: the same work with the same seed runs in the same order.
    pub seed: u64,
    /// The order of lanes; `None` leaves the choice to the seed.
    pub schedule: Option<Schedule>,
}

impl Mode {
    /// A mode whose schedule the seed chooses.
    pub const fn new(check: Check, seed: u64) -> Mode {
        Mode { check, seed, schedule: None }
    }

    /// The mode of the run with these departures.
    pub const fn departing(check: Check, departures: Departures) -> Mode {
        Mode { check, seed: 0, schedule: Some(Schedule::Departures(departures)) }
    }

    /// The schedule: the one that was asked for or the seed's.
    pub fn schedule(&self) -> Schedule {
        self.schedule.clone().unwrap_or_else(|| {
            let choice = Random::new(self.seed ^ 0x5c4e_d01e).below(Schedule::ALL.len() as u64);
            Schedule::ALL[choice as usize].clone()
        })
    }
}

/// As `MSCCLRS_SIM` has it: `checked,seed=7`, or `checked,schedule=departures:12=1+40=2`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let check = match self.check {
            Check::Ordered => "ordered",
            Check::Checked => "checked",
            Check::Weak => "weak",
        };
        f.write_str(check)?;
        if self.seed != 0 || !matches!(self.schedule, Some(Schedule::Departures(_))) {
            write!(f, ",seed={}", self.seed)?;
        }
        self.schedule.as_ref().map_or(Ok(()), |schedule| write!(f, ",schedule={schedule}"))
    }
}

/// A text is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` is no part of a simulation mode; allowed are ordered, checked or weak first, then \
     seed=NUMBER and schedule=random, slowest-last, one-far, round-robin, departures:none or \
     departures:DECISION=ALTERNATIVE+..., with commas between"
)]
pub struct ModeError {
    /// What was not understood.
    pub part: String,
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Mode, ModeError> {
        let mut parts = text.split(',');
        let refuse = |part: &str| ModeError { part: part.to_owned() };
        let first = parts.next().unwrap_or_default();
        let check = match first {
            "ordered" => Check::Ordered,
            "checked" => Check::Checked,
            "weak" => Check::Weak,
            _ => return Err(refuse(first)),
        };
        let mut mode = Mode::new(check, 0);
        let mut has_seed = false;
        for part in parts {
            match part.split_once('=') {
                Some(("seed", seed)) if !has_seed => {
                    mode.seed = seed.parse().map_err(|_| refuse(part))?;
                    has_seed = true;
                }
                Some(("schedule", name)) if mode.schedule.is_none() => {
                    let schedule = match name.split_once(':') {
                        Some(("departures", list)) => list.parse().ok().map(Schedule::Departures),
                        _ => Schedule::ALL.into_iter().find(|schedule| schedule.name() == name),
                    };
                    mode.schedule = Some(schedule.ok_or_else(|| refuse(part))?);
                }
                _ => return Err(refuse(part)),
            }
        }
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written() {
        for text in [
            "ordered,seed=0",
            "checked,seed=7",
            "weak,seed=3,schedule=one-far",
            "checked,schedule=departures:none",
            "weak,schedule=departures:12=1+40=2",
        ] {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
        assert_eq!("checked".parse(), Ok(Mode::new(Check::Checked, 0)));
    }

    #[test]
    fn what_is_no_mode_is_named() {
        for (text, part) in [
            ("", ""),
            ("chekced", "chekced"),
            ("weak,seed=x", "seed=x"),
            ("weak,7", "7"),
            ("weak,seed=1,seed=2", "seed=2"),
            ("weak,schedule=random,schedule=one-far", "schedule=one-far"),
            ("weak,schedule=fast", "schedule=fast"),
            ("weak,schedule=departures", "schedule=departures"),
            ("weak,schedule=departures:", "schedule=departures:"),
            ("weak,schedule=departures:4", "schedule=departures:4"),
            ("weak,schedule=departures:4=0", "schedule=departures:4=0"),
            ("weak,schedule=departures:5=1+4=1", "schedule=departures:5=1+4=1"),
            ("weak,schedule=departures:4=1+4=1", "schedule=departures:4=1+4=1"),
            ("weak,schedule=departures:+4=+1", "schedule=departures:+4=+1"),
        ] {
            assert_eq!(text.parse::<Mode>(), Err(ModeError { part: part.into() }));
        }
    }

    #[test]
    fn seeds_choose_among_all_schedules() {
        let chosen: std::collections::HashSet<_> =
            (0..64).map(|seed| Mode::new(Check::Checked, seed).schedule()).collect();
        assert_eq!(chosen.len(), Schedule::ALL.len());
    }
}
