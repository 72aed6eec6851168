//! Variables that the project's programs set for processes that they start, and for nobody else.

use crate::{Kind, Variable};

/// Set for every rank that `mscclrs bench` starts, which must not start ranks itself.
pub static BENCH_RANK: Variable = Variable {
    name: "MSCCLRS_BENCH_RANK",
    alias: None,
    kind: Kind::Text("what that program says"),
    default: "none",
    text: "Set for every rank that `mscclrs bench` starts.",
};

/// Where the ranks that `mscclrs bench` starts meet.
pub static BENCH_RENDEZVOUS: Variable = Variable {
    name: "MSCCLRS_BENCH_RENDEZVOUS",
    alias: None,
    kind: Kind::Secret { least: 1 },
    default: "none",
    text: "Where the ranks that `mscclrs bench` starts meet.",
};

/// What a process of the conformance program does.
pub static CONFORMANCE_ROLE: Variable = Variable {
    name: "MSCCLRS_CONFORMANCE_ROLE",
    alias: None,
    kind: Kind::Secret { least: 1 },
    default: "none",
    text: "What a process that the conformance program starts does.",
};

/// What a process of `mscclrs info` looks at.
pub static INFO_PROBE: Variable = Variable {
    name: "MSCCLRS_INFO_PROBE",
    alias: None,
    kind: Kind::Secret { least: 1 },
    default: "none",
    text: "What a process that `mscclrs info` starts looks at.",
};

/// All of them, by name.
pub static TABLE: &[&Variable] = &[&BENCH_RANK, &BENCH_RENDEZVOUS, &CONFORMANCE_ROLE, &INFO_PROBE];
