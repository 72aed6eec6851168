//! The limits of two GPUs by the bare kernels.

use anyhow::Result;
use mscclrs_gpu::{Grid, Stream};

use super::report::{Direction, Kind, Report, Row};
use super::{GPU_COPY_BYTES, Progress, one_way};
use crate::bench::sizes::format_size;
use crate::harness::{Candidate, Harness};
use crate::yardstick::{Bare, Copy, HOP_ROUNDS, best};

/// Sizes of the bare allreduces.
pub(super) const SIZES: [u64; 13] = [
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
];

pub(super) fn measure(
    bare: &mut Bare,
    harness: &mut Harness<'_>,
    stream: &Stream,
    report: &mut Report,
    progress: &mut Progress<'_>,
) -> Result<()> {
    if bare.sharing() > 1 {
        report.note(
            "both ranks share one GPU: copies stay inside it, and hops do not cross a link".into(),
        );
    }
    progress("empty kernel");
    empty(bare, harness, report)?;
    progress("hops");
    hops(bare, harness, report)?;
    bare.finish(stream)?;
    for direction in [Direction::OneWay, Direction::BothWays] {
        progress(direction.name());
        copies(bare, direction, harness, report)?;
    }
    bare.finish(stream)?;
    for bytes in SIZES {
        progress(&format!("allreduce of {}", format_size(bytes)));
        let timings = bare.measure(bytes, harness, stream)?;
        let Some((best, _)) = best(&timings).copied() else {
            report.note(format!(
                "no bare allreduce of {bytes} bytes fits: all its blocks have to be resident at once"
            ));
            continue;
        };
        for (shape, timing) in timings {
            let mut row = Row::new(Kind::AllReduce, shape.method.name(), timing);
            row.grid = Some((shape.blocks, shape.threads));
            // Two ranks: the bus bandwidth is the algorithm's.
            row.moved(bytes);
            row.best = shape == best;
            report.push(row);
        }
    }
    Ok(())
}

fn empty(bare: &Bare, harness: &mut Harness<'_>, report: &mut Report) -> Result<()> {
    let grids = [(1, 32), (32, 512)];
    let mut candidates = grids.map(|(blocks, threads)| {
        Candidate::new("empty kernel", bare.empty(Grid::new(blocks, threads)))
    });
    for (grid, timing) in grids.into_iter().zip(harness.measure(&mut candidates)?) {
        let mut row = Row::new(Kind::Empty, "graph node", timing);
        row.grid = Some(grid);
        report.push(row);
    }
    Ok(())
}

fn hops(bare: &Bare, harness: &mut Harness<'_>, report: &mut Report) -> Result<()> {
    let names = ["signal", "LL8 packet"];
    let mut candidates = [
        Candidate::new("bare signal ping-pong", bare.hop(false)),
        Candidate::new("bare packet ping-pong", bare.hop(true)),
    ];
    for (name, timing) in names.into_iter().zip(harness.measure(&mut candidates)?) {
        report.push(Row::new(Kind::Hop, name, timing.divided(2.0 * f64::from(HOP_ROUNDS))));
    }
    Ok(())
}

fn copies(
    bare: &Bare,
    direction: Direction,
    harness: &mut Harness<'_>,
    report: &mut Report,
) -> Result<()> {
    // The last number of blocks is every multiprocessor.
    let all = bare.communicator().device().limits().multiprocessors;
    let ways = [
        Copy::Stores(16),
        Copy::Stores(64),
        Copy::Stores(all),
        Copy::Loads(32),
        Copy::BulkPush(8),
        Copy::BulkPush(16),
        Copy::BulkPush(64),
        Copy::BulkPull(8),
        Copy::BulkPull(16),
        Copy::BulkPull(64),
        Copy::Engine,
    ];
    let mut candidates = Vec::with_capacity(ways.len());
    for way in ways {
        let work = bare.copy(way, GPU_COPY_BYTES)?;
        let name = format!("{}, {}", way.name(), direction.name());
        candidates.push(match direction {
            Direction::BothWays => Candidate::new(name, work),
            Direction::OneWay => {
                one_way(bare.communicator(), name, work, bare.empty(Grid::new(1, 32)))
            }
        });
    }
    for (way, timing) in ways.into_iter().zip(harness.measure(&mut candidates)?) {
        let mut row = Row::new(Kind::Bandwidth, way.name(), timing);
        row.grid = way.grid();
        row.direction = Some(direction);
        row.moved(GPU_COPY_BYTES);
        report.push(row);
    }
    Ok(())
}
