//! Environment variables: the project's with their values, others' that are read, and such as nobody
//! reads although they look like the project's.

use mscclrs_core::bootstrap::{Address, InterfaceFilter};
use mscclrs_core::env::{self, Source, foreign, internal};
use mscclrs_gpu::simulation::Mode;
use mscclrs_log::{FilePattern, Subsystems};

use super::model::{OtherVariable, UnknownVariable, Variable};
use crate::similar::similar;

const OURS: &str = "MSCCLRS_";
const THEIRS: &str = "MSCCLPP_";
/// What names have to begin with to be taken for mistyped ones of the project's.
pub(super) const ALIKE: &str = "MSC";

/// Every variable that is for users.
pub(super) fn all(source: Source<'_>) -> Vec<Variable> {
    env::TABLE.iter().map(|variable| one(variable, source)).collect()
}

fn one(variable: &env::Variable, source: Source<'_>) -> Variable {
    let found = variable.find(source);
    Variable {
        name: variable.name.into(),
        alias: variable.alias.map(str::to_owned),
        set_as: found.as_ref().map(|(name, _)| (*name).into()),
        value: found.as_ref().map(|(_, value)| variable.shown(value)),
        shadowed: variable.shadowed(source).map(str::to_owned),
        default: variable.default.into(),
        allowed: variable.allowed(),
        text: variable.text.into(),
        error: found.and_then(|(_, value)| error(variable, &value, source)),
    }
}

/// What who reads the variable would say of its value.
fn error(variable: &env::Variable, value: &str, source: Source<'_>) -> Option<String> {
    if variable.check(source).is_err() {
        return Some("the value is not allowed".into());
    }
    match reader(variable)? {
        Reader::Address => value.parse::<Address>().err().map(|error| error.to_string()),
        Reader::Interfaces => {
            let read = value.parse::<InterfaceFilter>();
            read.err().map(|_| "the list cannot be read".into())
        }
        Reader::LogFile => value.parse::<FilePattern>().err().map(|error| error.to_string()),
        Reader::FileToWrite | Reader::Folder if env::SIM.find(source).is_none() => {
            Some(format!("it is for a simulation, and {} is not set", env::SIM.name))
        }
        Reader::Folder => {
            let is_there = std::path::Path::new(value).is_dir();
            (!is_there).then(|| "there is no such folder".into())
        }
        Reader::FileToWrite => {
            let path = std::path::Path::new(value);
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let can_be = folder.is_none_or(std::path::Path::is_dir) && !path.is_dir();
            (!can_be).then(|| "there is no such folder, or the path is one".into())
        }
        Reader::Simulation => value.parse::<Mode>().err().map(|error| error.to_string()),
        Reader::Subsystems => value.parse::<Subsystems>().err().map(|error| error.to_string()),
    }
}

/// Who parses a text. A file to write and a folder are those of a simulation.
enum Reader {
    Address,
    FileToWrite,
    Folder,
    Interfaces,
    LogFile,
    Simulation,
    Subsystems,
}

fn reader(variable: &env::Variable) -> Option<Reader> {
    if std::ptr::eq(variable, &env::ADDRESS) {
        Some(Reader::Address)
    } else if std::ptr::eq(variable, &env::SOCKET_IFNAME) {
        Some(Reader::Interfaces)
    } else if std::ptr::eq(variable, &env::DEBUG_FILE) {
        Some(Reader::LogFile)
    } else if std::ptr::eq(variable, &env::SIM) {
        Some(Reader::Simulation)
    } else if std::ptr::eq(variable, &env::SIM_TRACE) {
        Some(Reader::FileToWrite)
    } else if std::ptr::eq(variable, &env::SIM_REPORT) {
        Some(Reader::Folder)
    } else if std::ptr::eq(variable, &env::DEBUG_SUBSYS) {
        Some(Reader::Subsystems)
    } else {
        None
    }
}

/// What others set and the project's programs read.
pub(super) fn others(source: Source<'_>) -> Vec<OtherVariable> {
    let read = foreign::TABLE.iter().chain(internal::TABLE);
    read.filter_map(|variable| {
        let value = variable.value(source)?;
        Some(OtherVariable {
            name: variable.name.into(),
            value: variable.shown(&value),
            text: variable.text.into(),
        })
    })
    .collect()
}

/// Names that look like the project's and that nobody reads.
pub(super) fn unknown(names: &[String]) -> Vec<UnknownVariable> {
    let known: Vec<&str> =
        env::registered().flat_map(|v| [Some(v.name), v.alias]).flatten().collect();
    let user: Vec<&str> = env::TABLE.iter().map(|variable| variable.name).collect();
    let mut unknown = Vec::new();
    for name in names.iter().filter(|name| !known.contains(&name.as_str())) {
        let after = name.strip_prefix(OURS).or_else(|| name.strip_prefix(THEIRS));
        let words = user.iter().filter_map(|name| name.strip_prefix(OURS));
        let meant = match after {
            Some(after) => {
                similar(&after.to_ascii_lowercase(), lower(words).iter().map(String::as_str))
                    .first()
                    .map(|word| format!("{OURS}{}", word.to_ascii_uppercase()))
            }
            // Other projects' names begin so too: only one that is nearly right is taken for ours.
            None => {
                let near = |known: &&&str| strsim::damerau_levenshtein(name, known) <= 2;
                match user.iter().find(near) {
                    Some(meant) => Some((*meant).to_owned()),
                    None => continue,
                }
            }
        };
        unknown.push(UnknownVariable { name: name.clone(), meant });
    }
    unknown
}

fn lower<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    words.map(str::to_ascii_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| pairs.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned())
    }

    fn find(pairs: &'static [(&str, &str)], name: &str) -> Variable {
        let values = with(pairs);
        all(Source::new(&values)).into_iter().find(|variable| variable.name == name).expect("known")
    }

    #[test]
    fn every_variable_is_there_set_or_not() {
        let values = with(&[]);
        let all = all(Source::new(&values));
        assert_eq!(all.len(), env::TABLE.len());
        assert!(all.iter().all(|v| v.value.is_none() && v.error.is_none() && v.set_as.is_none()));
    }

    #[test]
    fn a_value_that_its_reader_refuses_is_an_error() {
        for (pairs, name, error) in [
            (&[("MSCCLRS_TIMEOUT", "soon")] as &[_], "MSCCLRS_TIMEOUT", "not allowed"),
            (&[("MSCCLRS_ADDRESS", "here")], "MSCCLRS_ADDRESS", "port is missing"),
            (&[("MSCCLPP_SOCKET_IFNAME", "eth,")], "MSCCLRS_SOCKET_IFNAME", "cannot be read"),
            (&[("MSCCLRS_SECRET", "short")], "MSCCLRS_SECRET", "not allowed"),
            (
                &[("MSCCLRS_SIM_TRACE", "/nowhere/run"), ("MSCCLRS_SIM", "checked")],
                "MSCCLRS_SIM_TRACE",
                "no such folder",
            ),
            (&[("MSCCLRS_SIM_TRACE", "run")], "MSCCLRS_SIM_TRACE", "MSCCLRS_SIM is not set"),
            (&[("MSCCLRS_SIM_REPORT", "/tmp")], "MSCCLRS_SIM_REPORT", "MSCCLRS_SIM is not set"),
        ] {
            let found = find(pairs, name);
            assert!(found.error.as_deref().is_some_and(|text| text.contains(error)), "{found:?}");
        }
        for pairs in [
            &[("MSCCLRS_ADDRESS", "[fe80::1%eth0]:7")] as &[_],
            &[("MSCCLRS_SOCKET_IFNAME", "^docker,lo")],
            &[("MSCCLRS_HOSTID", "any thing")],
        ] {
            assert_eq!(find(pairs, pairs[0].0).error, None);
        }
    }

    #[test]
    fn every_text_has_a_reader_or_may_be_anything() {
        for variable in env::TABLE {
            if let env::Kind::Text(allowed) = variable.kind {
                assert!(reader(variable).is_some() || allowed == "any text", "{}", variable.name);
            }
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let secret = find(&[("MSCCLRS_SECRET", "hunter2hunter2")], "MSCCLRS_SECRET");
        assert_eq!(secret.value.as_deref(), Some("set, 14 bytes"));
        let values =
            with(&[("SLURM_JOB_ID", "4711"), ("RANK", "3"), ("MSCCLRS_BENCH_RENDEZVOUS", "x")]);
        let others = others(Source::new(&values));
        let shown: Vec<_> = others.iter().map(|other| (&*other.name, &*other.value)).collect();
        assert_eq!(
            shown,
            [
                ("RANK", "3"),
                ("SLURM_JOB_ID", "set, 4 bytes"),
                ("MSCCLRS_BENCH_RENDEZVOUS", "set, 1 byte")
            ]
        );
    }

    #[test]
    fn the_spelling_that_does_not_hold_is_named_if_it_says_something_else() {
        let both = find(&[("MSCCLRS_HOSTID", "a"), ("MSCCLPP_HOSTID", "b")], "MSCCLRS_HOSTID");
        assert_eq!(
            (both.value.as_deref(), both.shadowed.as_deref()),
            (Some("a"), Some("MSCCLPP_HOSTID"))
        );
        let same = find(&[("MSCCLRS_HOSTID", "a"), ("MSCCLPP_HOSTID", "a")], "MSCCLRS_HOSTID");
        assert_eq!(same.shadowed, None);
        let alias = find(&[("MSCCLPP_HOSTID", "b")], "MSCCLRS_HOSTID");
        assert_eq!((alias.set_as.as_deref(), alias.shadowed), (Some("MSCCLPP_HOSTID"), None));
    }

    #[test]
    fn what_the_log_would_not_understand_is_told() {
        let subsystems = find(&[("MSCCLPP_DEBUG_SUBSYS", "INIT,NETS")], "MSCCLRS_DEBUG_SUBSYS");
        assert!(subsystems.error.is_some_and(|error| error.contains("'NETS'")));
        let file = find(&[("MSCCLRS_DEBUG_FILE", "log.%d")], "MSCCLRS_DEBUG_FILE");
        assert!(file.error.is_some_and(|error| error.contains("'%d'")));
        let fine = find(&[("MSCCLRS_DEBUG_FILE", "log.%r")], "MSCCLRS_DEBUG_FILE");
        assert_eq!(fine.error, None);
    }

    #[test]
    fn names_that_nobody_reads_are_told_with_what_they_may_mean() {
        for (name, meant) in [
            ("MSCCLRS_TIMOUT", Some("MSCCLRS_TIMEOUT")),
            ("MSCCLRS_IFNAME", None),
            ("MSCCLRS_BOOTSTRAP", Some("MSCCLRS_BOOTSTRAP_TIMEOUT")),
            ("MSCCLPP_TIMEOUT", Some("MSCCLRS_TIMEOUT")),
            ("MSCCLPP_NPKIT_DUMP_DIR", None),
            ("MSCLRS_TIMEOUT", Some("MSCCLRS_TIMEOUT")),
            ("MSCCL_TIMEOUT", Some("MSCCLRS_TIMEOUT")),
        ] {
            let expected = UnknownVariable { name: name.into(), meant: meant.map(str::to_owned) };
            assert_eq!(unknown(&[name.to_owned()]), [expected]);
        }
        let fine = [
            "MSCCLRS_TIMEOUT",
            "MSCCLPP_HOSTID",
            "MSCCLPP_LOG_LEVEL",
            "MSCCLRS_INFO_PROBE",
            "MSCCL_XML_FILES",
        ];
        assert_eq!(unknown(&fine.map(str::to_owned)), []);
    }
}
