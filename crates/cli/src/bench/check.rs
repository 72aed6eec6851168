//! Whether a call's results are right: every element, the bytes around the output, the input of a call
//! out of place, and that all ranks hold the same.

use anyhow::Result;
use mscclrs_device::{DataType, ReduceOp};
use mscclrs_gpu::Stream;

use crate::bench::data::{Expected, Pattern, Purpose, Wrong, repeat};
use crate::bench::memory::{Block, GUARD, Memory};
use crate::options::Fault;
use crate::ranks::Rank;
use crate::rival::{Call, Collective};

/// What guards hold. Outputs hold another byte before a call, so that what was not written shows.
const GUARD_BYTE: u8 = 0xa5;
const UNWRITTEN_BYTE: u8 = 0x5c;

/// Checks calls on a rank's memory.
pub(crate) struct Checker<'a> {
    pub(crate) rank: &'a Rank,
    pub(crate) memory: &'a Memory,
    /// Broken on the last rank before each look.
    pub(crate) fault: Option<Fault>,
}

/// What a check found, over all ranks and rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Wrong elements and bytes.
    pub(crate) wrong: u64,
    /// The first on this rank, in words.
    pub(crate) first: Option<String>,
}

impl Found {
    fn add(&mut self, wrong: u64, first: impl FnOnce() -> String) {
        if wrong > 0 {
            self.wrong += wrong;
            self.first.get_or_insert_with(first);
        }
    }
}

impl Checker<'_> {
    /// Runs the call with new data in `rounds` rounds, and once more with random values where rounding
    /// matters. `run` enqueues the call on the rank's stream. Every rank calls it.
    pub(crate) fn check(
        &self,
        call: &Call,
        rounds: u64,
        mut run: impl FnMut() -> Result<()>,
    ) -> Result<Found> {
        let mut found = Found::default();
        let exact = match call.collective {
            Collective::AllGather => Purpose::Move,
            Collective::AllReduce => Purpose::Exact(call.op),
        };
        let rounding = matches!(call.data_type, DataType::F16 | DataType::Bf16 | DataType::F32)
            && exact == Purpose::Exact(ReduceOp::Sum);
        let random = (rounding && rounds > 0).then_some(Purpose::RandomSum);
        let purposes = std::iter::repeat_n(exact, rounds as usize).chain(random);
        for (seed, purpose) in purposes.enumerate() {
            let pattern = Pattern {
                data_type: call.data_type,
                purpose,
                ranks: self.rank.communicator.world_size(),
                seed: seed as u64,
            };
            self.round(call, &pattern, &mut run, &mut found)?;
        }
        let all = self.rank.communicator.bootstrap().all_gather(&found.wrong.to_le_bytes())?;
        let each = all.iter().filter_map(|of_rank| of_rank.as_slice().try_into().ok());
        found.wrong = each.map(u64::from_le_bytes).sum();
        Ok(found)
    }

    fn round(
        &self,
        call: &Call,
        pattern: &Pattern,
        run: &mut dyn FnMut() -> Result<()>,
        found: &mut Found,
    ) -> Result<()> {
        let communicator = &self.rank.communicator;
        let stream = &self.rank.stream;
        let (me, ranks) = (communicator.rank(), communicator.world_size());
        let bytes = call.output_bytes(ranks);
        let table = pattern.table(me, call.count);
        let input = |from, chunk: &mut [u8]| {
            repeat(&table, call.data_type, from / u64::from(call.data_type.size()), chunk);
        };

        let output = &self.memory.output;
        fill(output, stream, -(GUARD as i64), GUARD, GUARD_BYTE)?;
        fill(output, stream, 0, bytes, UNWRITTEN_BYTE)?;
        fill(output, stream, bytes as i64, GUARD, GUARD_BYTE)?;
        if call.in_place {
            let offset = call.input_offset_in_place(me) as i64;
            output.write(stream, offset, call.input_bytes(), input)?;
        } else {
            self.memory.input.write(stream, 0, call.input_bytes(), input)?;
        }
        run()?;
        communicator.synchronize(stream)?;
        self.inject(call, bytes)?;

        let hash = self.compare_output(call, pattern, found)?;
        for (offset, side) in [(-(GUARD as i64), "before"), (bytes as i64, "behind")] {
            let mut changed = 0;
            output.read(stream, offset, GUARD, |_, chunk| {
                changed += chunk.iter().filter(|&&byte| byte != GUARD_BYTE).count() as u64;
            })?;
            found.add(changed, || format!("{changed} bytes {side} the output were overwritten"));
        }
        if !call.in_place {
            let expected = Expected::Bits(table);
            let size = u64::from(call.data_type.size());
            let mut changed = 0;
            self.memory.input.read(stream, 0, call.input_bytes(), |from, chunk| {
                changed += expected.compare(call.data_type, from / size, chunk).0;
            })?;
            found.add(changed, || format!("{changed} elements of the input were changed"));
        }
        let hashes = communicator.bootstrap().all_gather(&hash.to_le_bytes())?;
        let differs = hashes.iter().any(|of_rank| of_rank != &hashes[0]);
        // Elements that were found wrong are counted; the same bits are due also where rounding is
        // allowed.
        if differs && found.wrong == 0 && hash.to_le_bytes().as_slice() != hashes[0].as_slice() {
            found.add(1, || "the output differs from rank 0's".into());
        }
        Ok(())
    }

    /// Compares the output; gives a hash of it.
    fn compare_output(&self, call: &Call, pattern: &Pattern, found: &mut Found) -> Result<u64> {
        let ranks = self.rank.communicator.world_size();
        let size = u64::from(call.data_type.size());
        let mut hash = 0xcbf2_9ce4_8422_2325;
        let (mut wrong, mut first) = (0, None::<Wrong>);
        let parts: Vec<Expected> = match call.collective {
            Collective::AllReduce => vec![pattern.reduced(call.count)],
            Collective::AllGather => {
                (0..ranks).map(|rank| Expected::Bits(pattern.table(rank, call.count))).collect()
            }
        };
        for (part, expected) in parts.iter().enumerate() {
            let begin = part as u64 * call.input_bytes();
            let look = |from: u64, chunk: &[u8]| {
                hash = mix(hash, chunk);
                let (count, where_first) = expected.compare(call.data_type, from / size, chunk);
                wrong += count;
                let whole = where_first.map(|at| Wrong { index: at.index + begin / size, ..at });
                first = first.or(whole);
            };
            self.memory.output.read(&self.rank.stream, begin as i64, call.input_bytes(), look)?;
        }
        found.add(wrong, || match first {
            Some(Wrong { index, expected, found }) => {
                format!("{wrong} wrong, first element {index}: {found} instead of {expected}")
            }
            None => format!("{wrong} wrong"),
        });
        Ok(hash)
    }

    fn inject(&self, call: &Call, bytes: u64) -> Result<()> {
        let communicator = &self.rank.communicator;
        if communicator.rank() + 1 != communicator.world_size() {
            return Ok(());
        }
        let (block, offset) = match self.fault {
            None => return Ok(()),
            Some(Fault::Guard) => (&self.memory.output, bytes),
            Some(Fault::Input) => (&self.memory.input, call.input_bytes() / 2),
            Some(Fault::Output) => (&self.memory.output, bytes / 2),
        };
        let mut byte = 0;
        block.read(&self.rank.stream, offset as i64, 1, |_, chunk| byte = chunk[0])?;
        block.write(&self.rank.stream, offset as i64, 1, |_, chunk| chunk[0] = byte ^ 0x40)
    }
}

fn fill(block: &Block, stream: &Stream, offset: i64, bytes: u64, byte: u8) -> Result<()> {
    block.write(stream, offset, bytes, |_, chunk| chunk.fill(byte))
}

fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let rest = rest.iter().map(|&byte| u64::from(byte));
    for word in words.iter().map(|word| u64::from_le_bytes(*word)).chain(rest) {
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_sees_every_byte_and_the_order() {
        let bytes: Vec<u8> = (0..29).collect();
        let hash = mix(1, &bytes);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert_ne!(mix(1, &changed), hash, "{at}");
        }
        let mut swapped = bytes.clone();
        swapped.swap(3, 20);
        assert_ne!(mix(1, &swapped), hash);
    }
}
