//! What the algorithms of a communicator use again and again: scratch regions, pointer tables and
//! kernels made ready. Made once, held by every graph that a launch was captured into.
//!
//! Small messages have scratch of their own at the beginning of the arena, close together, so that its
//! place can be chosen: see `near`.

use mscclrs_core::{Communicator, Region};
use mscclrs_device::{Global, MAX_BLOCKS, ParamArray};
use mscclrs_kernels::ranks::{INLINE_RANKS, Peers};

use crate::kernels::Kernels;
use crate::near;
use crate::{AllGather, AllReduce, Result};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Most bytes of a message that one-shot packets carry.
pub(crate) const MOST_ONE_SHOT: u64 = 512 * KIB;
/// Bytes of the one-shot scratch for small messages, all slots together.
const SMALL_ONE_SHOT_SCRATCH: u64 = MIB;
/// Most bytes of a message that two-shot packets carry.
pub(crate) const MOST_TWO_SHOT: u64 = MIB;
/// Most bytes of a message that one-shot stores carry.
pub(crate) const MOST_PUSH: u64 = 4 * MIB;
/// Most bytes a rank that allgather packets carry between two ranks, and among more, where scratch
/// grows with them.
pub(crate) const MOST_GATHER_PACKET: u64 = 512 * KIB;
const MOST_GATHER_PACKET_MANY: u64 = 128 * KIB;
/// Bytes of all slots of one part of a mesh region together.
const MESH_PART: u64 = 8 * MIB;
/// Most ranks whose one-shot scratch is allocated; with more, two shots serve.
const MOST_ONE_SHOT_RANKS: u32 = 8;

pub(crate) const fn most_all_reduce(algorithm: AllReduce) -> u64 {
    match algorithm {
        AllReduce::OneShotLl8 | AllReduce::OneShotLl16 => MOST_ONE_SHOT,
        AllReduce::TwoShotLl8 | AllReduce::TwoShotLl16 => MOST_TWO_SHOT,
        AllReduce::Push => MOST_PUSH,
        AllReduce::Direct | AllReduce::Mesh => u64::MAX,
    }
}

pub(crate) const fn most_all_gather(algorithm: AllGather) -> u64 {
    match algorithm {
        AllGather::PacketLl8 | AllGather::PacketLl16 => MOST_GATHER_PACKET,
        AllGather::Direct | AllGather::Mesh => u64::MAX,
    }
}

/// One algorithm's scratch.
pub(crate) struct Scratch {
    pub(crate) region: Region,
    pub(crate) peers: Peers,
    /// Bytes a slot.
    pub(crate) slot: u64,
    /// Bytes from the slots of the first half to those of the second, where a half has a slot a peer.
    pub(crate) half: u64,
    /// Where the flags begin, in 8-byte words.
    pub(crate) flags: u32,
    _table: Option<Table>,
}

/// The scratch of packets in one hop, by the size of the message. Each collective has its own: ranks
/// that call different ones wait in vain, and are told so, instead of taking each other's packets.
pub(crate) struct Packets {
    /// Where it lies at places that were chosen.
    small: Option<Scratch>,
    large: Scratch,
}

impl Packets {
    /// The scratch for a message of `bytes` bytes, on every rank the same; none if it does not fit.
    pub(crate) fn scratch(&self, bytes: u64) -> Option<&Scratch> {
        // A packet carries half of its bytes.
        self.all().find(|scratch| 2 * bytes <= scratch.slot)
    }

    fn all(&self) -> impl Iterator<Item = &Scratch> {
        self.small.iter().chain([&self.large])
    }
}

/// Everything that launches use.
pub(crate) struct Context {
    pub(crate) one_shot: Option<Packets>,
    pub(crate) two_shot: Scratch,
    pub(crate) push: Option<Scratch>,
    pub(crate) mesh: Scratch,
    pub(crate) direct: Scratch,
    pub(crate) gather_packet: Packets,
    pub(crate) gather_mesh: Scratch,
    pub(crate) gather_direct: Scratch,
    pub(crate) kernels: Kernels,
}

impl Context {
    /// Collective.
    pub(crate) fn new(communicator: &Communicator, kernels: Kernels) -> Result<Context> {
        let (rank, ranks) = (communicator.rank(), communicator.world_size());
        let n = ranks as u64;
        // Slots that a rank's peers send to.
        let peers = n.saturating_sub(1).max(1);
        let flags = n * MAX_BLOCKS as u64 * 8;
        // A packet carries half of its bytes.
        let has_one_shot = ranks <= MOST_ONE_SHOT_RANKS;
        let one_shot = if has_one_shot { MOST_ONE_SHOT } else { 0 };
        let gather = if ranks <= 2 { MOST_GATHER_PACKET } else { MOST_GATHER_PACKET_MANY };
        let slot = if has_one_shot { near::slot_bytes(SMALL_ONE_SHOT_SCRATCH, ranks) } else { 0 };
        // For more ranks no places are chosen.
        let near_gather = if ranks == 2 { slot } else { 0 };
        let push = if ranks <= 2 { MOST_PUSH } else { 0 };
        let two_shot = (MOST_TWO_SHOT / n).next_multiple_of(16) + 16;
        let mesh = MESH_PART / n / 256 * 256;
        let sizes = [
            near::region_bytes(slot, ranks),
            if near_gather > 0 { near::region_bytes(near_gather, ranks) } else { 0 },
            2 * peers * 2 * gather,
            flags,
            flags,
            2 * peers * 2 * one_shot,
            2 * 2 * n * 2 * two_shot,
            2 * peers * push + flags,
            2 * n * mesh + flags,
            2 * n * mesh + flags,
            // The pointer tables of the ten regions before.
            10 * 8 * n,
        ]
        .map(|bytes| bytes.max(256));
        let regions = communicator.create_regions(&sizes)?;
        let tables = write_tables(communicator, &regions)?;
        let mut tables = tables.into_iter();
        let mut regions = regions.into_iter();
        let mut scratch = |slot: u64, data: u64| -> Result<Scratch> {
            let region = regions.next().ok_or_else(|| mscclrs_gpu::Error::Invalid {
                what: "regions",
                value: "too few".into(),
                allowed: "as many as asked for".into(),
            })?;
            let table = tables.next().flatten();
            Ok(Scratch::new(rank, ranks, region, table, slot, (data / 8) as u32))
        };
        // In the order of their sizes.
        let mut small = scratch(slot, 0)?;
        let mut small_gather = scratch(near_gather, 0)?;
        let large_gather = scratch(2 * gather, 0)?;
        let direct = scratch(0, 0)?;
        let gather_direct = scratch(0, 0)?;
        let large = scratch(2 * one_shot, 0)?;
        for small in [&mut small, &mut small_gather].into_iter().filter(|small| small.slot > 0) {
            let places = near::places(communicator, &small.region, small.slot)?;
            small.lie(&places, rank, ranks);
        }
        let small_gather = Some(small_gather).filter(|small| small.slot > 0);
        Ok(Context {
            one_shot: has_one_shot.then_some(Packets { small: Some(small), large }),
            two_shot: scratch(2 * two_shot, 0)?,
            push: Some(scratch(push, 2 * peers * push)?).filter(|_| push > 0),
            mesh: scratch(mesh, 2 * n * mesh)?,
            gather_mesh: scratch(mesh, 2 * n * mesh)?,
            direct,
            gather_packet: Packets { small: small_gather, large: large_gather },
            gather_direct,
            kernels,
        })
    }
}

impl Context {
    /// The scratch of all algorithms.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        let packets = self.one_shot.iter().chain([&self.gather_packet]).flat_map(Packets::all);
        let all =
            [&self.two_shot, &self.mesh, &self.direct, &self.gather_mesh, &self.gather_direct];
        packets.chain(&self.push).chain(all).map(|scratch| &scratch.region)
    }
}

impl Scratch {
    fn new(
        rank: u32,
        ranks: u32,
        region: Region,
        table: Option<Table>,
        slot: u64,
        flags: u32,
    ) -> Scratch {
        let pointers: Vec<u64> = circle(rank, ranks).map(|rank| region.of(rank)).collect();
        let peers = Peers {
            inline: pointer_array(&pointers),
            table: table.as_ref().map_or(Global::null(), |t| Global::from_address(t.address)),
        };
        let half = slot * ranks.saturating_sub(1) as u64;
        Scratch { region, peers, slot, half, flags, _table: table }
    }
}

/// The ranks in the order in which [`Peers`] has their pointers.
fn circle(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (rank..ranks).chain(0..rank)
}

impl Scratch {
    /// Puts the slots where they are fast.
    fn lie(&mut self, places: &near::Places, rank: u32, ranks: u32) {
        let shift = |rank: u32| places.shifts.get(rank as usize).unwrap_or(&0);
        let base = |rank: u32| self.region.of(rank) + shift(rank);
        let pointers: Vec<u64> = circle(rank, ranks).map(base).collect();
        self.peers.inline = pointer_array(&pointers);
        self.half = places.half;
    }
}

/// The pointers of a region, in device memory.
struct Table {
    address: u64,
    /// Where it lies.
    _region: Region,
}

/// Writes the pointers of every region but the last into the last, where a kernel's arguments do not
/// hold them all.
fn write_tables(communicator: &Communicator, regions: &[Region]) -> Result<Vec<Option<Table>>> {
    let ranks = communicator.world_size();
    let Some((last, regions)) = regions.split_last().filter(|_| ranks as usize > INLINE_RANKS)
    else {
        return Ok(Vec::new());
    };
    let device = communicator.device();
    let rank = communicator.rank();
    let pointers =
        regions.iter().flat_map(|region| circle(rank, ranks).map(|rank| region.of(rank)));
    let bytes: Vec<u8> = pointers.flat_map(u64::to_le_bytes).collect();
    // SAFETY: the region holds the memory, and nobody else has it yet.
    let memory = unsafe { device.adopt(last.local(), bytes.len() as u64)? };
    let stream = device.create_stream()?;
    memory.write(&stream, 0, &bytes)?;
    stream.synchronize()?;
    let table =
        |at: u64| Table { address: last.local() + at * 8 * ranks as u64, _region: last.clone() };
    Ok((0..regions.len() as u64).map(|at| Some(table(at))).collect())
}

/// The first pointers of a list, as a kernel takes them.
pub(crate) fn pointer_array<T>(pointers: &[u64]) -> ParamArray<Global<T>, INLINE_RANKS> {
    let mut array = [Global::null(); INLINE_RANKS];
    for (slot, pointer) in array.iter_mut().zip(pointers) {
        *slot = Global::from_address(*pointer);
    }
    ParamArray::new(array)
}

/// An address of each rank; 0 past the last.
pub(crate) fn every_rank(ranks: u32, address: impl Fn(u32) -> u64) -> [u64; INLINE_RANKS] {
    let mut all = [0; INLINE_RANKS];
    for (rank, slot) in all.iter_mut().enumerate().take(ranks as usize) {
        *slot = address(rank as u32);
    }
    all
}
