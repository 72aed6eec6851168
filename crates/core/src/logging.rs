//! The log that the environment asks for.
//!
//! Invariant: nothing is shown that nobody asked for, and a subscriber that the program has installed
//! is never replaced. The first bootstrap or communicator of a process looks, and no later one.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

pub use mscclrs_log::{
    FilePattern, Format, Level, OpenError, Settings, Subsystem, Subsystems, layer,
};

use crate::env::{self, Source, Variable, foreign};
use crate::{Error, LaunchEnvironment, Result};

/// What MSCCLRS_DEBUG and its relatives say; none if none of them is set. Does not block.
pub fn settings() -> Result<Option<Settings>> {
    read(Source::PROCESS)
}

/// Begins the log, once a process, and tells in it how this process was set up.
pub(crate) fn begin() -> Result<()> {
    static BEGUN: Mutex<bool> = Mutex::new(false);
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    if *begun {
        return Ok(());
    }
    if let Some(settings) = settings()?.filter(|settings| settings.level > Level::Off) {
        mscclrs_log::install(settings)?;
    }
    *begun = true;
    drop(begun);
    introduce();
    Ok(())
}

pub(crate) fn read(source: Source<'_>) -> Result<Option<Settings>> {
    let level = match &env::DEBUG.choice_in(source)? {
        Some(word) => Some(*word),
        None => foreign::MSCCLPP_LOG_LEVEL.choice_in(source)?,
    };
    let subsystems = parse(&[&env::DEBUG_SUBSYS, &foreign::MSCCLPP_LOG_SUBSYS], source)?;
    let file = parse(&[&env::DEBUG_FILE, &foreign::MSCCLPP_LOG_FILE], source)?;
    let format = parse(&[&env::DEBUG_FORMAT], source)?;
    if level.is_none() && subsystems.is_none() && file.is_none() && format.is_none() {
        return Ok(None);
    }
    let default = Settings::default();
    // A launcher whose variables are wrong is an error where they are used.
    let launch = LaunchEnvironment::read(source).ok().flatten();
    Ok(Some(Settings {
        // The registry has the same words.
        level: level.and_then(|word| word.parse().ok()).unwrap_or(default.level),
        subsystems: subsystems.unwrap_or(default.subsystems),
        file,
        format: format.unwrap_or(default.format),
        rank: launch.map(|launch| launch.rank),
        ..default
    }))
}

/// The value of the first of these variables that is set.
fn parse<T: FromStr<Err: ToString>>(
    variables: &[&'static Variable],
    source: Source<'_>,
) -> Result<Option<T>> {
    let Some((name, value)) = variables.iter().find_map(|variable| variable.find(source)) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|error: T::Err| Error::Environment {
        name: name.into(),
        value,
        allowed: error.to_string(),
    })
}

fn introduce() {
    mscclrs_log::info!(INIT, version = env!("CARGO_PKG_VERSION"), "mscclrs begins");
    for variable in env::TABLE {
        if let Some((name, value)) = variable.find(Source::PROCESS) {
            mscclrs_log::info!(ENV, name, value = variable.shown(&value), "a variable is set");
        }
    }
    for variable in foreign::TABLE {
        if let Some((name, value)) = variable.find(Source::PROCESS) {
            mscclrs_log::trace!(ENV, name, value = variable.shown(&value), "a variable is set");
        }
    }
    match LaunchEnvironment::detect() {
        Ok(Some(found)) => mscclrs_log::info!(
            INIT,
            rank = found.rank,
            launcher = %found.launcher,
            world_size = found.world_size,
            local_rank = found.local_rank,
            local_world_size = found.local_world_size,
            rendezvous = found.rendezvous.map(|address| address.to_string()),
            "a launcher started this process"
        ),
        Ok(None) => mscclrs_log::info!(INIT, "no launcher started this process"),
        Err(error) => {
            mscclrs_log::info!(INIT, why = %error, "what the launcher says cannot be read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Kind;

    fn with(pairs: &[(&str, &str)]) -> Result<Option<Settings>> {
        read(Source::new(&|name| {
            let found = pairs.iter().find(|(given, _)| *given == name);
            found.map(|(_, value)| (*value).to_owned())
        }))
    }

    #[test]
    fn without_a_variable_there_is_no_log() {
        assert!(with(&[("MSCCLRS_RANK", "0"), ("MSCCLRS_WORLD_SIZE", "1")]).unwrap().is_none());
        assert!(with(&[("MSCCLRS_DEBUG", "")]).unwrap().is_none());
    }

    #[test]
    fn any_of_the_variables_turns_the_log_on() {
        for (name, value) in [
            ("MSCCLRS_DEBUG_FILE", "log"),
            ("MSCCLRS_DEBUG_FORMAT", "json"),
            ("MSCCLPP_DEBUG_SUBSYS", "ALL"),
        ] {
            assert_eq!(with(&[(name, value)]).unwrap().map(|found| found.level), Some(Level::Warn));
        }
    }

    #[test]
    fn each_variable_is_read() {
        let found = with(&[
            ("MSCCLRS_DEBUG", "Debug"),
            ("MSCCLRS_DEBUG_SUBSYS", "^CONN"),
            ("MSCCLRS_DEBUG_FILE", "log.%r"),
            ("MSCCLRS_DEBUG_FORMAT", "JSON"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
        ]);
        let found = found.unwrap().unwrap();
        assert_eq!((found.level, found.format, found.rank), (Level::Debug, Format::Json, Some(3)));
        assert!(!found.subsystems.contains(Subsystem::Conn));
        assert!(found.subsystems.contains(Subsystem::Init));
        assert!(found.file.unwrap().names_rank());
    }

    #[test]
    fn variables_of_mscclpp_are_read_after_ours() {
        let level = |pairs: &[(&str, &str)]| with(pairs).unwrap().unwrap().level;
        let old = ("MSCCLPP_DEBUG", "INFO");
        let new = ("MSCCLPP_LOG_LEVEL", "DEBUG");
        assert_eq!(level(&[new]), Level::Debug);
        assert_eq!(level(&[new, old]), Level::Info);
        assert_eq!(level(&[new, old, ("MSCCLRS_DEBUG", "error")]), Level::Error);
    }

    #[test]
    fn the_registry_has_the_words_of_the_log() {
        for variable in [&env::DEBUG, &foreign::MSCCLPP_LOG_LEVEL] {
            let Kind::Choice(words) = variable.kind else { panic!("{variable:?}") };
            assert!(words.iter().all(|word| word.parse::<Level>().is_ok()), "{words:?}");
        }
        let allowed = env::DEBUG_SUBSYS.allowed();
        for subsystem in Subsystem::ALL {
            assert!(allowed.contains(subsystem.name()), "{allowed}");
        }
    }

    #[test]
    fn errors_name_the_variable_its_value_and_what_is_allowed() {
        for (name, value, says) in [
            ("MSCCLRS_DEBUG", "loud", "allowed is off, error, warn, info"),
            ("MSCCLPP_DEBUG_SUBSYS", "NETS", "'NETS' is not a subsystem; allowed are"),
            ("MSCCLRS_DEBUG_FILE", "a%d", "'%d' in 'a%d' means nothing; allowed are"),
            ("MSCCLRS_DEBUG_FORMAT", "xml", "allowed is text or json"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
            assert!(error.contains(says), "{error}");
        }
    }
}
