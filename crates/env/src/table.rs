//! The variables that are for users.

use crate::{Kind, Variable};

macro_rules! table {
    ($($constant:ident = $name:literal, $alias:expr, $kind:expr, $default:literal, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub static $constant: Variable = Variable {
                name: $name,
                alias: $alias,
                kind: $kind,
                default: $default,
                text: $text,
            };
        )*

        /// All of them, by name.
        pub static TABLE: &[&Variable] = &[$(&$constant),*];
    };
}

table! {
    ADDRESS = "MSCCLRS_ADDRESS", None,
        Kind::Text("host:port, [ipv6%scope]:port, or either behind interface:"), "none",
        "Where rank 0 serves the rendezvous.";
    BOOTSTRAP_TIMEOUT = "MSCCLRS_BOOTSTRAP_TIMEOUT", None,
        Kind::Seconds { zero: "" }, "30",
        "How long ranks wait for each other during set-up.";
    CPU_DEADLOCK_MS = "MSCCLRS_CPU_DEADLOCK_MS", None,
        Kind::Number { from: 0, to: 86_400_000, step: 1 }, "0; 2000 in a simulation",
        "Milliseconds after which kernels of the CPU device are stopped if all their lanes wait and \
         nothing changes; 0 is never.";
    CPU_MULTIPROCESSORS = "MSCCLRS_CPU_MULTIPROCESSORS", None,
        Kind::Number { from: 1, to: 1024, step: 1 }, "4",
        "Multiprocessors of a CPU device.";
    CPU_THREADS = "MSCCLRS_CPU_THREADS", None,
        Kind::Number { from: 32, to: 1024, step: 32 }, "256",
        "Resident lanes of each multiprocessor of a CPU device.";
    DEBUG = "MSCCLRS_DEBUG", Some("MSCCLPP_DEBUG"),
        Kind::Choice(&[
            "off", "error", "warn", "info", "debug", "trace", "none", "version", "abort"
        ]), "off; warn where another variable of the log is set",
        "Turns the log on: which events it shows, the named ones and all that are more urgent.";
    DEBUG_FILE = "MSCCLRS_DEBUG_FILE", Some("MSCCLPP_DEBUG_FILE"),
        Kind::Text(
            "a path, with %h for the host, %p for the process, %r for the rank and %% for a per cent \
             sign"
        ), "standard error",
        "The file that the log is added to.";
    DEBUG_FORMAT = "MSCCLRS_DEBUG_FORMAT", None,
        Kind::Choice(&["text", "json"]), "text",
        "The form of the log's lines.";
    DEBUG_SUBSYS = "MSCCLRS_DEBUG_SUBSYS", Some("MSCCLPP_DEBUG_SUBSYS"),
        Kind::Text(
            "BOOTSTRAP, COLL, CONN, ENV, GPU, INIT, LIVENESS, MEMORY and ALL with commas, ^ in front \
             for all others"
        ), "ALL",
        "The subsystems whose events the log shows.";
    DEVICE = "MSCCLRS_DEVICE", None,
        Kind::Choice(&["auto", "cpu", "cuda"]), "auto",
        "Which devices are used; auto is GPUs where there are some.";
    DEVICE_RUSTC = "MSCCLRS_DEVICE_RUSTC", None,
        Kind::Path, "looked for",
        "The Rust compiler that makes code for GPUs.";
    HOSTID = "MSCCLRS_HOSTID", Some("MSCCLPP_HOSTID"),
        Kind::Text("any text"), "host name and boot id",
        "Ranks with equal values count as on one host.";
    LOCAL_RANK = "MSCCLRS_LOCAL_RANK", None,
        Kind::Number { from: 0, to: MOST_RANKS - 1, step: 1 }, "none",
        "This rank's number on its host, below MSCCLRS_LOCAL_WORLD_SIZE.";
    LOCAL_WORLD_SIZE = "MSCCLRS_LOCAL_WORLD_SIZE", None,
        Kind::Number { from: 1, to: MOST_RANKS, step: 1 }, "none",
        "Number of ranks on this host, at most MSCCLRS_WORLD_SIZE.";
    NCCL_LIBRARY = "MSCCLRS_NCCL_LIBRARY", None,
        Kind::Path, "looked for",
        "The libnccl.so.2 that `bench --compare nccl` opens.";
    RANK = "MSCCLRS_RANK", None,
        Kind::Number { from: 0, to: MOST_RANKS - 1, step: 1 }, "none",
        "This rank, below MSCCLRS_WORLD_SIZE.";
    SECRET = "MSCCLRS_SECRET", None,
        Kind::Secret { least: 8 }, "made from the launcher's job id",
        "What ranks prove to each other; the same on every rank.";
    SIM = "MSCCLRS_SIM", None,
        Kind::Text(
            "ordered, checked or weak, then, with commas between, seed=NUMBER and schedule=random, \
             slowest-last, one-far, round-robin, departures:none or \
             departures:DECISION=ALTERNATIVE+..."
        ), "none",
        "Runs the CPU devices of this process, whose ranks are threads, in an order that follows from \
         the seed or the departures, and looks for faults of kernels. The first is told on standard \
         error, or in the file of MSCCLRS_SIM_REPORT.";
    SIM_REPORT = "MSCCLRS_SIM_REPORT", None,
        Kind::Text("a folder that exists"), "none",
        "With MSCCLRS_SIM, and an error without: a folder in which each process leaves a file of JSON that \
         says what its simulation met, and one of decisions where departures make the run.";
    SIM_TRACE = "MSCCLRS_SIM_TRACE", None,
        Kind::Text("a file in a folder that exists"), "none",
        "With MSCCLRS_SIM, and an error without: a file that gets every access in its order, for Perfetto.";
    SOCKET_FAMILY = "MSCCLRS_SOCKET_FAMILY", Some("MSCCLPP_SOCKET_FAMILY"),
        Kind::Choice(&["AF_INET", "AF_INET6"]), "both",
        "Which version of the internet protocol set-up uses.";
    SOCKET_IFNAME = "MSCCLRS_SOCKET_IFNAME", Some("MSCCLPP_SOCKET_IFNAME"),
        Kind::Text(
            "interface names with commas: eth means names that start so, =eth0 exactly this one, ^ \
             in front all others"
        ), "any but containers' and loopback",
        "Which network interfaces set-up uses.";
    TIMEOUT = "MSCCLRS_TIMEOUT", None,
        Kind::Seconds { zero: "no limit" }, "none",
        "How long a kernel waits for other ranks.";
    WORLD_SIZE = "MSCCLRS_WORLD_SIZE", None,
        Kind::Number { from: 1, to: MOST_RANKS, step: 1 }, "none",
        "Number of ranks.";
}

const MOST_RANKS: u64 = u32::MAX as u64;
