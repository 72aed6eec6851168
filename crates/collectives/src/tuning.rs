//! The tables that choose an algorithm by size.
//!
//! A table is data, equal on every rank. The built-in ones were measured where the module comment of
//! each function says; other machines and rank counts use the nearest.

use crate::agreement::Agreed;

/// How an allreduce is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllReduce {
    /// Zero copy on registered memory; [`AllReduce::Mesh`] where it is not registered.
    Direct,
    /// Two phases through scratch.
    Mesh,
    /// One shot by LL16 packets.
    OneShotLl16,
    /// One shot by LL8 packets.
    OneShotLl8,
    /// One shot by plain stores.
    Push,
    /// Two shots by LL16 packets.
    TwoShotLl16,
    /// Two shots by LL8 packets.
    TwoShotLl8,
}

impl AllReduce {
    /// All of them.
    pub const ALL: [AllReduce; 7] = [
        AllReduce::Direct,
        AllReduce::Mesh,
        AllReduce::OneShotLl16,
        AllReduce::OneShotLl8,
        AllReduce::Push,
        AllReduce::TwoShotLl16,
        AllReduce::TwoShotLl8,
    ];

    /// Its name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            AllReduce::Direct => "direct",
            AllReduce::Mesh => "mesh",
            AllReduce::OneShotLl16 => "one-shot-ll16",
            AllReduce::OneShotLl8 => "one-shot-ll8",
            AllReduce::Push => "push",
            AllReduce::TwoShotLl16 => "two-shot-ll16",
            AllReduce::TwoShotLl8 => "two-shot-ll8",
        }
    }
}

/// How an allgather is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllGather {
    /// Zero copy on registered memory; [`AllGather::Mesh`] where it is not registered.
    Direct,
    /// Through scratch by plain stores.
    Mesh,
    /// By LL16 packets.
    PacketLl16,
    /// By LL8 packets.
    PacketLl8,
}

impl AllGather {
    /// All of them.
    pub const ALL: [AllGather; 4] =
        [AllGather::Direct, AllGather::Mesh, AllGather::PacketLl16, AllGather::PacketLl8];

    /// Its name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            AllGather::Direct => "direct",
            AllGather::Mesh => "mesh",
            AllGather::PacketLl16 => "packet-ll16",
            AllGather::PacketLl8 => "packet-ll8",
        }
    }
}

/// Blocks and lanes a block; cut down to what every rank's device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Lanes a block, a multiple of 32.
    pub threads: u32,
}

impl Shape {
    const fn new(blocks: u32, threads: u32) -> Shape {
        Shape { blocks, threads }
    }
}

/// One line of a table: messages up to a size are done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule<A> {
    /// Bytes a rank, inclusive; the last rule has `u64::MAX`.
    pub up_to: u64,
    /// The algorithm.
    pub algorithm: A,
    /// The launch. Packet algorithms use fewer blocks where there are not enough packets.
    pub shape: Shape,
}

/// The tables of a communicator's collectives, by bytes a rank contributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// For allreduce.
    pub all_reduce: Vec<Rule<AllReduce>>,
    /// For allgather.
    pub all_gather: Vec<Rule<AllGather>>,
}

/// The lines of a table that serve any size.
fn tell_rules<A: Copy>(
    collective: &'static str,
    rules: &[Rule<A>],
    name: impl Fn(A) -> &'static str,
    agreed: Agreed,
) {
    let mut from = 0;
    for rule in rules {
        if rule.up_to < from {
            continue;
        }
        let Shape { blocks, threads } = agreed.fit(rule.shape);
        let up_to = Some(rule.up_to).filter(|&up_to| up_to < u64::MAX);
        mscclrs_log::debug!(
            COLL,
            collective,
            algorithm = name(rule.algorithm),
            from_bytes = from,
            to_bytes = up_to,
            blocks,
            threads,
            "an algorithm is chosen for messages of these sizes"
        );
        from = rule.up_to.saturating_add(1);
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn rule<A>(up_to: u64, algorithm: A, blocks: u32, threads: u32) -> Rule<A> {
    Rule { up_to, algorithm, shape: Shape::new(blocks, threads) }
}

impl Tuning {
    /// One algorithm for every size: for tests and measurements. Where a message does not fit a packet
    /// algorithm's scratch, mesh.
    pub fn only(all_reduce: AllReduce, all_gather: AllGather, shape: Shape) -> Tuning {
        let most = |limit: u64, a| Rule { up_to: limit, algorithm: a, shape };
        Tuning {
            all_reduce: vec![
                most(crate::context::most_all_reduce(all_reduce), all_reduce),
                Rule { up_to: u64::MAX, algorithm: AllReduce::Mesh, shape },
            ],
            all_gather: vec![
                Rule {
                    up_to: crate::context::most_all_gather(all_gather),
                    algorithm: all_gather,
                    shape,
                },
                Rule { up_to: u64::MAX, algorithm: AllGather::Mesh, shape },
            ],
        }
    }

    /// Writes the table into the log, each line as it is launched here. Afterwards nothing is said for
    /// each call.
    pub(crate) fn tell(&self, own: bool, agreed: Agreed) {
        mscclrs_log::info!(
            COLL,
            table = if own { "the program's" } else { "built in" },
            most_blocks = agreed.blocks,
            most_threads = agreed.threads,
            "a table of algorithms is chosen"
        );
        tell_rules("allreduce", &self.all_reduce, |algorithm| algorithm.name(), agreed);
        tell_rules("allgather", &self.all_gather, |algorithm| algorithm.name(), agreed);
    }

    pub(crate) fn built_in(ranks: u32, agreed: Agreed) -> Tuning {
        if agreed.cpu {
            Tuning::cpu(ranks)
        } else if ranks == 2 {
            Tuning::two_gpus()
        } else {
            Tuning::gpus(ranks)
        }
    }

    /// Two H200s joined by NVLink.
    fn two_gpus() -> Tuning {
        use AllGather as G;
        use AllReduce as R;
        Tuning {
            all_reduce: vec![
                rule(KIB, R::OneShotLl8, 2, 128),
                rule(2 * KIB, R::OneShotLl8, 8, 128),
                rule(4 * KIB, R::OneShotLl8, 4, 256),
                rule(64 * KIB, R::OneShotLl8, 64, 256),
                rule(128 * KIB, R::OneShotLl16, 64, 256),
                rule(256 * KIB, R::OneShotLl16, 64, 512),
                rule(512 * KIB, R::Push, 64, 512),
                rule(4 * MIB, R::Push, 128, 512),
                rule(u64::MAX, R::Direct, 128, 512),
            ],
            all_gather: vec![
                rule(32 * KIB, G::PacketLl8, 32, 256),
                rule(128 * KIB, G::PacketLl8, 64, 512),
                rule(256 * KIB, G::PacketLl16, 64, 512),
                rule(512 * KIB, G::PacketLl16, 128, 512),
                rule(2 * MIB, G::Mesh, 64, 512),
                rule(u64::MAX, G::Direct, 64, 512),
            ],
        }
    }

    /// Other counts of NVLink-connected GPUs. Not measured: hops and volumes as for two.
    fn gpus(ranks: u32) -> Tuning {
        use AllGather as G;
        use AllReduce as R;
        let one_shot = (256 * KIB / ranks.max(1) as u64).min(64 * KIB);
        Tuning {
            all_reduce: vec![
                rule(one_shot, R::OneShotLl8, 64, 512),
                rule(512 * KIB, R::TwoShotLl16, 64, 512),
                rule(u64::MAX, R::Direct, 64, 512),
            ],
            all_gather: vec![
                rule(16 * KIB, G::PacketLl8, 32, 512),
                rule(64 * KIB, G::PacketLl16, 32, 512),
                rule(u64::MAX, G::Direct, 64, 512),
            ],
        }
    }

    /// The CPU device: a lane is a fiber, so a few lanes do much each.
    fn cpu(ranks: u32) -> Tuning {
        use AllGather as G;
        use AllReduce as R;
        let two_shot = if ranks > 2 { 64 * KIB } else { 0 };
        Tuning {
            all_reduce: vec![
                rule(8 * KIB, R::OneShotLl8, 1, 32),
                rule(two_shot, R::TwoShotLl16, 1, 64),
                rule(u64::MAX, R::Direct, 2, 64),
            ],
            all_gather: vec![rule(8 * KIB, G::PacketLl8, 1, 32), rule(u64::MAX, G::Direct, 2, 64)],
        }
    }
}

/// The first rule whose size is enough.
pub(crate) fn choose<A: Copy>(rules: &[Rule<A>], bytes: u64) -> Option<Rule<A>> {
    rules.iter().find(|rule| bytes <= rule.up_to).copied()
}

impl Tuning {
    /// An error for a rule that cannot be followed.
    pub(crate) fn check(&self) -> crate::Result<()> {
        check("allreduce", &self.all_reduce, crate::context::most_all_reduce)?;
        check("allgather", &self.all_gather, crate::context::most_all_gather)
    }
}

fn check<A: Copy>(
    collective: &'static str,
    rules: &[Rule<A>],
    most: impl Fn(A) -> u64,
) -> crate::Result<()> {
    let fail = |index, why: String| Err(crate::Error::TuningRule { collective, index, why });
    for (index, rule) in rules.iter().enumerate() {
        let most = most(rule.algorithm);
        if rule.up_to > most {
            return fail(
                index,
                format!("its algorithm carries at most {most} bytes, not {}", rule.up_to),
            );
        }
        if rule.shape.blocks == 0 || rule.shape.threads == 0 || rule.shape.threads % 32 != 0 {
            return fail(
                index,
                format!("{:?} needs blocks, and threads in multiples of 32", rule.shape),
            );
        }
    }
    match rules.last() {
        Some(last) if last.up_to == u64::MAX => Ok(()),
        _ => fail(rules.len(), "the last rule must go up to u64::MAX".into()),
    }
}
