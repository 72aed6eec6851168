//! What an event is about.

use std::fmt;
use std::str::FromStr;

macro_rules! subsystems {
    ($($variant:ident $word:ident $target:literal $text:literal;)*) => {
        /// What an event is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Subsystem {
            $(#[doc = $text] $variant,)*
        }

        impl Subsystem {
            /// All of them, by name.
            pub const ALL: &[Subsystem] = &[$(Subsystem::$variant),*];

            /// The word for it in lines and in `MSCCLRS_DEBUG_SUBSYS`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Subsystem::$variant => stringify!($word),)*
                }
            }

            /// The target of its events, for a program's own subscriber.
            pub const fn target(self) -> &'static str {
                match self {
                    $(Subsystem::$variant => $target,)*
                }
            }

            /// What it is about, for people.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Subsystem::$variant => $text,)*
                }
            }

            /// The subsystem of an event with this target.
            pub(crate) fn of(target: &str) -> Option<Subsystem> {
                match target {
                    $($target => Some(Subsystem::$variant),)*
                    _ => None,
                }
            }
        }

        /// The targets of events and spans.
        pub mod target {
            $(#[doc = $text] pub const $word: &str = $target;)*
            /// Of spans, which belong to no subsystem.
            pub const SPAN: &str = "mscclrs::span";
        }
    };
}

subsystems! {
    Bootstrap BOOTSTRAP "mscclrs::bootstrap" "How ranks meet: interfaces, addresses, the rendezvous.";
    Coll COLL "mscclrs::coll" "Collectives: which algorithm serves which sizes.";
    Conn CONN "mscclrs::conn" "Connections, endpoints and semaphores.";
    Env ENV "mscclrs::env" "Environment variables that are set.";
    Gpu GPU "mscclrs::gpu" "Devices, and the kinds of handles that work on them.";
    Init INIT "mscclrs::init" "Launchers, and communicators as they begin and end.";
    Liveness LIVENESS "mscclrs::liveness" "Ranks that leave or are lost, and abort.";
    Memory MEMORY "mscclrs::memory" "Memory: allocated, freed, given to peers, mapped, registered.";
}

/// Words of MSCCL++ and NCCL that mean one of ours.
const SYNONYMS: &[(&str, &[Subsystem])] = &[
    ("ALGO", &[Subsystem::Coll]),
    ("ALLOC", &[Subsystem::Memory]),
    ("NET", &[Subsystem::Bootstrap]),
    ("P2P", &[Subsystem::Conn, Subsystem::Memory]),
    ("REG", &[Subsystem::Memory]),
    ("TUNING", &[Subsystem::Coll]),
];

/// Words of MSCCL++ and NCCL for what says nothing here. They are no mistakes: a list may be meant for
/// those programs too.
const SILENT: &[&str] = &[
    "CALL",
    "EXEC",
    "EXECUTOR",
    "GRAPH",
    "MSCCLPP_EXECUTOR",
    "NCCL",
    "NVLS",
    "PROFILE",
    "PROXY",
    "RAS",
    "SHM",
];

/// Which subsystems are shown: `INIT,CONN`, `^MEMORY` for all but this, `ALL`; in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u32);

impl Subsystems {
    /// Every subsystem.
    pub const ALL: Subsystems = Subsystems(u32::MAX);
    const NONE: Subsystems = Subsystems(0);

    /// Whether it is among them.
    pub const fn contains(self, subsystem: Subsystem) -> bool {
        self.0 & (1 << subsystem as u32) != 0
    }

    fn of_word(word: &str) -> Option<Subsystems> {
        let of = |list: &[Subsystem]| {
            Subsystems(list.iter().fold(0, |bits, &subsystem| bits | 1 << subsystem as u32))
        };
        let same = |name: &str| name.eq_ignore_ascii_case(word);
        if same("ALL") {
            return Some(Subsystems::ALL);
        }
        if let Some(&found) = Subsystem::ALL.iter().find(|subsystem| same(subsystem.name())) {
            return Some(of(&[found]));
        }
        let synonym = SYNONYMS.iter().find(|(name, _)| same(name));
        synonym
            .map(|(_, meant)| of(meant))
            .or_else(|| SILENT.iter().any(|name| same(name)).then_some(Subsystems::NONE))
    }
}

/// A list that names what does not exist.
#[derive(Debug, PartialEq, Eq)]
pub struct NotASubsystem(String);

impl FromStr for Subsystems {
    type Err = NotASubsystem;

    fn from_str(text: &str) -> Result<Subsystems, NotASubsystem> {
        let text = text.trim();
        let (all_but, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut bits = 0;
        for word in list.split(',').map(str::trim) {
            bits |= Subsystems::of_word(word).ok_or_else(|| NotASubsystem(word.to_owned()))?.0;
        }
        Ok(Subsystems(if all_but { !bits } else { bits }))
    }
}

impl fmt::Display for NotASubsystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Subsystem::ALL.iter().map(|subsystem| subsystem.name()).collect();
        write!(
            f,
            "'{}' is not a subsystem; allowed are {} and ALL with commas, ^ in front for all others",
            self.0,
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(list: &str) -> Vec<&'static str> {
        let list: Subsystems = list.parse().unwrap();
        let all = Subsystem::ALL.iter().filter(|&&subsystem| list.contains(subsystem));
        all.map(|subsystem| subsystem.name()).collect()
    }

    #[test]
    fn subsystems_are_chosen_by_name_and_by_what_is_left_out() {
        assert_eq!(shown("conn, Init"), ["CONN", "INIT"]);
        assert_eq!(shown("ALL").len(), Subsystem::ALL.len());
        assert_eq!(shown("^ALL"), [""; 0]);
        let but = shown("^MEMORY,coll");
        assert_eq!(but.len(), Subsystem::ALL.len() - 2);
        assert!(!but.contains(&"MEMORY") && !but.contains(&"COLL"));
    }

    #[test]
    fn words_of_other_libraries_are_understood() {
        assert_eq!(shown("ALLOC,TUNING"), ["COLL", "MEMORY"]);
        // There is no proxy yet: nothing to show, and no mistake.
        assert_eq!(shown("PROXY,ENV"), ["ENV"]);
        assert_eq!(shown("PROXY"), [""; 0]);
    }

    #[test]
    fn what_is_no_subsystem_is_named_with_what_is_allowed() {
        for (list, word) in [("INIT,NETS", "'NETS'"), ("INIT,", "''"), ("INIT,^CONN", "'^CONN'")] {
            let error = list.parse::<Subsystems>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{word} is not a subsystem; allowed are BOOT")));
        }
    }

    #[test]
    fn targets_are_distinct_and_lead_back() {
        for &subsystem in Subsystem::ALL {
            assert_eq!(Subsystem::of(subsystem.target()), Some(subsystem));
        }
        assert_eq!(Subsystem::of(target::SPAN), None);
    }
}
