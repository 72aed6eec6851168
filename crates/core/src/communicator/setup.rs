//! Steps that all ranks take together.
//!
//! Invariant: in a step every rank sends what it has or why it failed, and decides only from what
//! all sent; so all ranks go on or all return the same error. Such a step is also a barrier.

use std::time::Instant;

use mscclrs_gpu::{BackendKind, Device};

use super::Shared;
use crate::wire::{Reader, Writer};
use crate::{Bootstrap, Error, Result};

/// Raised when the messages of this crate change.
const VERSION: u32 = 1;

/// Most bytes of a step's message, and of an error in it.
const MAX_STEP: u64 = 16 << 20;
pub(super) const MAX_ERROR: u64 = 4096;

/// A rank of the group.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) rank: u32,
    pub(crate) host: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) backend: u8,
}

/// The first byte of a step's message, see [`Part`].
const MADE: u8 = 0;
const FAILED: u8 = 1;
const WAITED: u8 = 2;

/// Sends this rank's part of a step, or why it has none; gives all parts, by rank.
pub(crate) fn agree(
    bootstrap: &dyn Bootstrap,
    call: &'static str,
    mine: Result<Vec<u8>>,
) -> Result<Vec<Vec<u8>>> {
    let message = match &mine {
        Ok(part) => Writer::new().u8(MADE).bytes(part).finish(),
        Err(error) => {
            let waited = matches!(error, Error::Deadline { .. } | Error::PeerGone { .. });
            let status = if waited { WAITED } else { FAILED };
            Writer::new().u8(status).text(&error.to_string(), MAX_ERROR).finish()
        }
    };
    let messages = match bootstrap.all_gather(&message) {
        Ok(messages) => messages,
        // What this rank could not do is the cause, where another waited for it in vain.
        Err(error) => return Err(mine.err().unwrap_or(error)),
    };
    let mut parts = Vec::with_capacity(messages.len());
    let mut waited = None;
    for (rank, message) in messages.iter().enumerate() {
        match read_part(call, message)? {
            Part::Made(part) => parts.push(part.to_vec()),
            Part::Failed(why) => return Err(Error::Peer { call, rank: rank as u32, why }),
            Part::Waited(why) => {
                waited.get_or_insert(Error::Peer { call, rank: rank as u32, why });
            }
        }
    }
    waited.map_or(Ok(parts), Err)
}

/// How a rank comes to a step.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    Made(&'a [u8]),
    Failed(String),
    /// It waited for another rank in vain, whose own trouble says more.
    Waited(String),
}

pub(crate) fn read_part<'a>(call: &'static str, message: &'a [u8]) -> Result<Part<'a>> {
    let mut reader = Reader::new(call, message);
    let part = match reader.u8("status")? {
        MADE => Part::Made(reader.bytes("part", MAX_STEP)?),
        FAILED => Part::Failed(reader.text("error", MAX_ERROR)?),
        WAITED => Part::Waited(reader.text("error", MAX_ERROR)?),
        other => return Err(reader.fail("status", format!("{other} is not from 0 to 2"))),
    };
    reader.end()?;
    Ok(part)
}

/// A step that gives no more than whether every rank made its part; the error is the same on all.
pub(super) fn agree_on<T>(
    bootstrap: &dyn Bootstrap,
    call: &'static str,
    mine: Result<T>,
) -> Result<T> {
    let (mine, part) = match mine {
        Ok(made) => (Some(made), Ok(Vec::new())),
        Err(error) => (None, Err(error)),
    };
    agree(bootstrap, call, part)?;
    // With an error of its own a rank has got one from the step.
    mine.ok_or_else(|| Error::Malformed {
        what: call,
        field: "status",
        why: "this rank's error was lost".into(),
    })
}

/// An error, the same on every rank, if the values differ.
pub(crate) fn require_equal<T: PartialEq>(
    call: &'static str,
    what: &'static str,
    values: &[T],
    show: impl Fn(&T) -> String,
) -> Result<()> {
    let Some(first) = values.first() else { return Ok(()) };
    if values.iter().all(|value| value == first) {
        return Ok(());
    }
    // Ranks with the same value together, in the order of the lowest.
    let mut groups: Vec<(&T, Vec<String>)> = Vec::new();
    for (rank, value) in values.iter().enumerate() {
        match groups.iter_mut().find(|(of, _)| *of == value) {
            Some((_, ranks)) => ranks.push(rank.to_string()),
            None => groups.push((value, vec![rank.to_string()])),
        }
    }
    let groups: Vec<String> = groups
        .iter()
        .map(|(value, ranks)| match ranks.len() {
            1 => format!("rank {} gave {}", ranks[0], show(value)),
            _ => format!("ranks {} gave {}", ranks.join(", "), show(value)),
        })
        .collect();
    Err(Error::Disagreement { call, what, values: groups.join(", ") })
}

/// What a rank tells of itself. The version comes first in every version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) backend: u8,
    pub(crate) uuid: [u8; 16],
    pub(crate) count: u64,
}

impl Introduction {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Introduction { backend, uuid, count } = self;
        Writer::new().u32(VERSION).u8(*backend).array(uuid).u64(*count).finish()
    }

    /// Of the same version; the caller has looked.
    pub(crate) fn decode(call: &'static str, part: &[u8]) -> Result<Introduction> {
        let mut reader = Reader::new(call, part);
        reader.u32("version")?;
        let (backend, uuid) = (reader.u8("backend")?, reader.array("uuid")?);
        let introduction = Introduction { backend, uuid, count: reader.u64("count")? };
        reader.end()?;
        Ok(introduction)
    }
}

impl Peer {
    /// Tells the others who this rank is and gives who they are.
    ///
    /// `count` numbers this process's communicators; `log` is how the log began here. The second result names the group.
    pub(super) fn exchange(
        bootstrap: &dyn Bootstrap,
        device: &Device,
        count: u64,
        log: Result<()>,
    ) -> Result<(Vec<Peer>, u64)> {
        const CALL: &str = "Communicator::new";
        let backend = backend_code(device.kind());
        let mine = log.map(|()| Introduction { backend, uuid: device.uuid(), count }.encode());
        let parts = agree(bootstrap, CALL, mine)?;
        let versions = parts.iter().map(|part| Reader::new(CALL, part).u32("version"));
        let versions = versions.collect::<Result<Vec<u32>>>()?;
        require_equal(CALL, "the version of mscclrs's messages", &versions, u32::to_string)?;
        let mut peers = Vec::with_capacity(parts.len());
        let mut counts = Vec::with_capacity(parts.len());
        for (rank, part) in parts.iter().enumerate() {
            let rank = rank as u32;
            let Introduction { backend, uuid, count } = Introduction::decode(CALL, part)?;
            peers.push(Peer { rank, backend, uuid, host: bootstrap.host_id(rank) });
            counts.push(count);
        }
        let backends: Vec<u8> = peers.iter().map(|peer| peer.backend).collect();
        require_equal(CALL, "the kind of device", &backends, |&code| backend_name(code))?;
        let group = bootstrap.process_id(0).rotate_left(32) ^ counts[0];
        Ok((peers, group))
    }
}

fn backend_code(kind: BackendKind) -> u8 {
    match kind {
        BackendKind::Cpu => 1,
        BackendKind::Cuda => 2,
    }
}

fn backend_name(code: u8) -> String {
    match code {
        1 => BackendKind::Cpu.name().into(),
        2 => BackendKind::Cuda.name().into(),
        other => format!("a device of unknown kind {other}"),
    }
}

impl Shared {
    /// A step of a collective call.
    pub(crate) fn agree(&self, call: &'static str, mine: Result<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.health.check()?;
        let began = Instant::now();
        let parts = agree(&*self.bootstrap, call, mine);
        mscclrs_log::trace!(
            INIT,
            done = parts.is_ok(),
            milliseconds = began.elapsed().as_millis() as u64,
            "a step that all ranks take"
        );
        parts.map_err(|error| self.blame(error))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::LocalBootstrap;

    fn on_ranks<T: Send>(n: u32, body: impl Fn(&dyn Bootstrap) -> T + Sync) -> Vec<T> {
        let ranks = LocalBootstrap::create(n, Duration::from_secs(5));
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> =
                ranks.into_iter().map(|rank| scope.spawn(move || body(&rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_one_rank_cannot_do_is_the_same_error_on_all() {
        let errors = on_ranks(4, |bootstrap| {
            let mine = match bootstrap.rank() {
                1 | 2 => {
                    let what = format!("rank {}'s trouble", bootstrap.rank());
                    Err(Error::Order { what: what.repeat(1000) })
                }
                rank => Ok(rank),
            };
            agree_on(bootstrap, "a call", mine).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| *error == errors[0]));
        assert!(errors[0].starts_with("a call: rank 1 failed: rank 1's trouble"), "{}", errors[0]);
        assert!(errors[0].len() < MAX_ERROR as usize + 100);
    }

    #[test]
    fn trouble_says_more_than_having_waited_for_the_rank_in_trouble() {
        let errors = on_ranks(3, |bootstrap| {
            let (operation, waited) = ("a call".into(), Duration::ZERO);
            let mine = match bootstrap.rank() {
                rank @ 0 => Err(Error::Deadline { operation, rank, peer: 2, waited }),
                2 => Err(Error::Order { what: "rank 2's trouble".into() }),
                rank => Ok(rank),
            };
            agree_on(bootstrap, "a call", mine).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error == "a call: rank 2 failed: rank 2's trouble"));
    }

    #[test]
    fn a_rank_names_its_own_trouble_where_another_does_not_come() {
        let ranks = LocalBootstrap::create(2, Duration::from_millis(50));
        let mine = Err::<(), _>(Error::Order { what: "this rank's trouble".into() });
        let error = agree_on(&ranks[0], "a call", mine).unwrap_err().to_string();
        assert_eq!(error, "this rank's trouble");
        // Who comes later hears that it was waited for.
        let late = agree_on(&ranks[1], "a call", Ok(())).unwrap_err().to_string();
        assert!(late.starts_with("rank 0 waited") && late.contains("for rank 1"), "{late}");
    }

    #[test]
    fn parts_of_a_step_come_by_rank() {
        let parts = on_ranks(3, |bootstrap| {
            agree(bootstrap, "a call", Ok(vec![bootstrap.rank() as u8])).unwrap()
        });
        assert!(parts.iter().all(|parts| *parts == [[0], [1], [2]]));
    }

    #[test]
    fn different_values_are_named_with_their_ranks() {
        let show = |&code: &u8| backend_name(code);
        require_equal("a call", "the kind of device", &[1, 1, 1], show).unwrap();
        require_equal("a call", "the kind of device", &[], show).unwrap();
        let error = require_equal("a call", "the kind of device", &[1, 2, 1, 9], show).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a call: ranks have to agree on the kind of device, but ranks 0, 2 gave cpu, rank 1 gave \
             cuda, rank 3 gave a device of unknown kind 9"
        );
    }
}
