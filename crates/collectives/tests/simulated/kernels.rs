//! Every kernel of the library, each instance: the collectives' by all types and forms of memory, and those
//! that measure.

use std::collections::BTreeSet;

use half::{bf16, f16};
use mscclrs_collectives::{AllGather, AllReduce, Pointer, Shape, Tuning};
use mscclrs_core::{EndpointConfig, Transport};
use mscclrs_device::{DataType, Family, Global, KernelArgs, ParamArray, ReduceOp};
use mscclrs_gpu::simulation::{Check, Mode};
use mscclrs_gpu::{Function, Grid};
use mscclrs_kernels::all_kernels;
use mscclrs_kernels::hop::{PacketHopArgs, SignalHopArgs, packet_hop, signal_hop};
use mscclrs_kernels::near::{NearArgs, near};
use mscclrs_kernels::probe::{ContractArgs, EmptyArgs, contract, empty};
use mscclrs_kernels::ranks::INLINE_RANKS;
use mscclrs_kernels::ways::{HandleWayArgs, WaitWayArgs, handle_way, wait_way};

use crate::{Rank, seeds, simulate};

/// Seeds that are always the same, and new ones, of each check.
const FIXED: u64 = 2;
const NEW: u64 = 1;
/// Elements of a call: a whole number of 16 bytes of each type and rank count, and one more than that.
const COUNT: u64 = 64;
/// Bytes between what a test uses in one buffer.
const APART: u64 = 4096;
/// Bytes to what a hop counts round trips in.
const COUNT_AT: u64 = 256;
/// Round trips of a hop.
const ROUNDS: u32 = 5;

fn value(rank: u32, index: u64) -> u32 {
    // Small, so that sums of eight are exact in every type.
    ((u64::from(rank) * 5 + index * 3) % 14) as u32
}

fn encode(values: impl Iterator<Item = u32>, data_type: DataType) -> Vec<u8> {
    let encode = |value: u32| match data_type {
        DataType::F16 => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        DataType::I32 | DataType::U32 => value.to_le_bytes().to_vec(),
    };
    values.flat_map(encode).collect()
}

/// Both collectives of all types, with aligned memory and with memory at one element past that.
fn collect(rank: &Rank) -> Result<(), String> {
    let told = |error: mscclrs_collectives::Error| error.to_string();
    let Rank { collectives, stream } = rank;
    let (me, ranks) = (rank.communicator().rank(), rank.communicator().world_size());
    let alloc = |bytes: u64| collectives.alloc(bytes).unwrap();
    let (input, output) = (alloc(APART), alloc(u64::from(ranks) * APART));
    let cases = DataType::ALL.into_iter().flat_map(|data_type| [(data_type, 0), (data_type, 1)]);
    for (data_type, beside) in cases {
        let (size, count) = (u64::from(data_type.size()), COUNT + beside);
        let (from, to) = (input.buffer(), output.buffer());
        let at = |address: u64| Pointer::from(address + beside * size);
        let mine = encode((0..count).map(|index| value(me, index)), data_type);
        from.write(stream, beside * size, &mine).unwrap();
        let check = |what: &str, wanted: Vec<u8>| {
            rank.communicator().synchronize(stream).map_err(|error| error.to_string())?;
            let mut found = vec![0; wanted.len()];
            to.read(stream, beside * size, &mut found).unwrap();
            rank.finish()?;
            let right = found == wanted;
            right
                .then_some(())
                .ok_or_else(|| format!("{what} of {data_type:?} beside {beside} is wrong"))
        };
        let op = if data_type == DataType::U32 { ReduceOp::Max } else { ReduceOp::Sum };
        // SAFETY: the buffers are long enough and live until all has been waited for.
        unsafe {
            collectives
                .all_reduce_raw(at(from.address()), at(to.address()), count, data_type, op, stream)
                .map_err(told)?;
        }
        let reduced = |index| {
            let all = (0..ranks).map(|r| value(r, index));
            if op == ReduceOp::Max { all.max().unwrap() } else { all.sum() }
        };
        check("allreduce", encode((0..count).map(reduced), data_type))?;
        // SAFETY: as above.
        unsafe {
            collectives
                .all_gather_raw(at(from.address()), at(to.address()), count, data_type, stream)
                .map_err(told)?;
        }
        let gathered = (0..ranks).flat_map(|r| (0..count).map(move |index| value(r, index)));
        check("allgather", encode(gathered, data_type))?;
    }
    Ok(())
}

fn instances<A: KernelArgs>(rank: &Rank, family: &Family<A>) -> Vec<Function> {
    let device = rank.communicator().device();
    family.instances().iter().map(|kernel| device.function(kernel).unwrap()).collect()
}

/// The kernels that measure, between two ranks.
fn measure(rank: &Rank) -> Result<(), String> {
    let (communicator, stream) = (rank.communicator(), &rank.stream);
    let (me, peer) = (communicator.rank(), 1 - communicator.rank());
    let guard = communicator.guard(0);
    let words = communicator.alloc(64 * APART).unwrap();
    let (here, there) = (words.registration().local(), words.registration().of(peer));
    let mut next = 0;
    // What counts round trips lies behind what the peer writes.
    let mut place = || {
        next += APART;
        words.buffer().write(stream, next + COUNT_AT, &[0; 8]).unwrap();
        (here + next, there + next)
    };

    let connection = communicator.connect(&EndpointConfig::new(Transport::PeerMemory), peer, 1);
    let connection = connection.unwrap().get().unwrap();
    let semaphore = communicator.build_semaphore(&connection, 1).unwrap().get().unwrap();
    for function in instances(rank, &signal_hop) {
        let args =
            SignalHopArgs { guard, semaphore: semaphore.device_handle(), rounds: ROUNDS, rank: me };
        // SAFETY: here and below: what the arguments point to lives until all has been waited for.
        unsafe { stream.launch(&function, Grid::new(1, 32), &args).unwrap() };
    }
    for function in instances(rank, &packet_hop) {
        let (local, remote) = place();
        let args = PacketHopArgs {
            guard,
            local: Global::from_address(local),
            remote: Global::from_address(remote),
            count: Global::from_address(local + COUNT_AT),
            rounds: ROUNDS,
            rank: me,
        };
        // SAFETY: see above.
        unsafe { stream.launch(&function, Grid::new(1, 32), &args).unwrap() };
    }
    for function in instances(rank, &wait_way) {
        let (local, remote) = place();
        let args = WaitWayArgs {
            guard,
            remote: Global::from_address(remote),
            inbound: Global::from_address(local),
            count: Global::from_address(local + COUNT_AT),
            rounds: ROUNDS,
            rank: me,
        };
        // SAFETY: see above.
        unsafe { stream.launch(&function, Grid::new(1, 32), &args).unwrap() };
    }
    for (function, measures) in instances(rank, &near).iter().flat_map(|f| [(f, 0), (f, 1)]) {
        // Four places of 64 bytes, and the same again.
        let args = NearArgs {
            guard,
            here: Global::from_address(here),
            there: Global::from_address(there),
            cycles: Global::from_address(here + 2048),
            count: 4,
            step: 8,
            half: 64,
            _pad: 0,
            rank: me,
            measures,
        };
        // SAFETY: see above.
        unsafe { stream.launch(function, Grid::new(1, 32), &args).unwrap() };
    }
    let (data, _) = place();
    words.buffer().write(stream, data - here, &[1; 512]).unwrap();
    for function in instances(rank, &handle_way) {
        let (table, _) = place();
        let entries = data.to_le_bytes().repeat(INLINE_RANKS);
        words.buffer().write(stream, table - here, &entries).unwrap();
        let args = HandleWayArgs {
            array: ParamArray::new([Global::from_address(data); INLINE_RANKS]),
            table: Global::from_address(table),
            output: Global::from_address(table + 1024),
            index: 3,
            _pad: 0,
        };
        // SAFETY: see above.
        unsafe { stream.launch(&function, Grid::new(1, 64), &args).unwrap() };
    }
    for function in instances(rank, &contract) {
        let args = ContractArgs { data: Global::from_address(place().0) };
        words.buffer().write(stream, args.data.address() - here, &[1; 512]).unwrap();
        // SAFETY: see above.
        unsafe { stream.launch(&function, Grid::new(1, 128), &args).unwrap() };
    }
    for function in instances(rank, &empty) {
        // SAFETY: see above.
        unsafe { stream.launch(&function, Grid::new(2, 64), &EmptyArgs { guard }).unwrap() };
    }
    rank.finish()
}

fn run_all(check: Check, seed: u64) -> BTreeSet<&'static str> {
    let mode = Mode::new(check, seed);
    let mut ran = BTreeSet::new();
    for ranks in [2, 3, 4, 8] {
        for (at, all_reduce) in AllReduce::ALL.into_iter().enumerate() {
            let all_gather = AllGather::ALL[at % AllGather::ALL.len()];
            let shape = Shape { blocks: 1 + (seed % 2) as u32, threads: 32 };
            let tuning = Tuning::only(all_reduce, all_gather, shape);
            let what = format!("{all_reduce:?}, {all_gather:?}, {ranks} ranks, {shape:?}");
            ran.append(&mut simulate(mode.clone(), &what, ranks, &tuning, collect));
        }
    }
    let any = Tuning::only(AllReduce::Mesh, AllGather::Mesh, Shape { blocks: 1, threads: 32 });
    ran.append(&mut simulate(mode, "measuring", 2, &any, measure));
    ran
}

fn check_all(check: Check) {
    for seed in seeds(FIXED, NEW) {
        let ran = run_all(check, seed);
        let all = all_kernels().map(|kernel| kernel.name);
        let left: Vec<&str> = all.filter(|name| !ran.contains(name)).collect();
        assert!(left.is_empty(), "not run: {left:?}");
    }
}

#[test]
fn every_kernel_runs_in_any_order() {
    check_all(Check::Ordered);
}

#[test]
fn no_kernel_has_a_race() {
    check_all(Check::Checked);
}

#[test]
fn no_kernel_leans_on_writes_that_are_seen_at_once() {
    check_all(Check::Weak);
}
