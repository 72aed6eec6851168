//! What was found, told so that its cause can be seen.

use std::fmt;

use super::mode::Mode;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// Two accesses, at least one a write, that nothing orders.
    Race,
    /// A plain load of memory that nothing has written.
    Unwritten,
    /// An access outside of all memory, or past the end of a piece of it.
    Outside,
    /// An access to memory that has been released.
    Released,
    /// An access at an address that is not a multiple of its size.
    Misaligned,
    /// Lanes at the barrier of a block from different places of the source.
    DivergentBarrier,
    /// A barrier of a block that some lanes do not come to, since they have ended.
    MissingLane,
    /// Lanes of a warp that do not meet: masks or operations differ, or name lanes that are not there.
    Warp,
    /// Everything waits, for what nobody will do.
    Deadlock,
    /// A loop polls memory and would do so for ever: it has no way out.
    EndlessPoll,
    /// Device code panicked.
    Panic,
}

impl FindingKind {
    /// A few words for it.
    pub const fn name(self) -> &'static str {
        match self {
            FindingKind::Race => "race",
            FindingKind::Unwritten => "read of memory that nothing wrote",
            FindingKind::Outside => "access outside of memory",
            FindingKind::Released => "access to released memory",
            FindingKind::Misaligned => "misaligned access",
            FindingKind::DivergentBarrier => "divergent barrier",
            FindingKind::MissingLane => "barrier without all lanes",
            FindingKind::Warp => "misuse of a warp",
            FindingKind::Deadlock => "deadlock",
            FindingKind::EndlessPoll => "endless poll",
            FindingKind::Panic => "panic",
        }
    }
}

/// One access or arrival, and who did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// What it did, e.g. `relaxed store (system scope)`.
    pub what: String,
    /// The kernel.
    pub kernel: &'static str,
    /// Source line.
    pub line: String,
    /// Number of the device, which is the rank where every rank has a device of its own.
    pub device: u32,
    /// The block.
    pub block: u32,
    /// The lane in its block.
    pub lane: u32,
    /// The how manieth launch of the world it belongs to, from 0 on.
    pub launch: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Site { what, kernel, line, device, block, lane, launch } = self;
        write!(f, "{what}\n      at {line}\n      kernel {kernel} (launch {launch}), ")?;
        write!(f, "device {device}, block {block}, lane {lane}")
    }
}

/// A fault that a world found. Its text is a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of fault it is.
    pub kind: FindingKind,
    /// What is wrong, in a sentence.
    pub what: String,
    /// The access or arrival at which it was seen.
    pub here: Option<Site>,
    /// The one that it does not go together with.
    pub other: Option<Site>,
    /// What would order them, where that is known.
    pub missing: Option<String>,
    /// What led to it: what everybody waits for in a deadlock, then who ran when, of the lanes that have to
    /// do with it; some 20 lines at most beside what is waited for.
    pub steps: Vec<String>,
    /// How it is had again.
    pub mode: Mode,
}

impl Finding {
    /// Its text but for the last line, which says how it is had again: for who knows that better.
    pub fn told(&self) -> String {
        Told(self).to_string()
    }
}

struct Told<'a>(&'a Finding);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told(finding) = self;
        write!(f, "{}: {}", finding.kind.name(), finding.what)?;
        if let Some(here) = &finding.here {
            write!(f, "\n    {here}")?;
        }
        if let Some(other) = &finding.other {
            write!(f, "\n  and before it\n    {other}")?;
        }
        if let Some(missing) = &finding.missing {
            write!(f, "\n  missing: {missing}")?;
        }
        if !finding.steps.is_empty() {
            write!(f, "\n  how it came to this, in order:")?;
            for step in &finding.steps {
                write!(f, "\n    {step}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  to see it again: MSCCLRS_SIM={}", Told(self), self.mode)
    }
}
