//! Fuzz targets of this crate: what ranks send each other, and what comes from launchers and users.
//! In tests and under `cfg(fuzzing)` only.

use mscclrs_fuzz::Target;
use mscclrs_gpu::{ExportedHandle, HandleKind};

use crate::communicator::{Introduction, Part, read_answer, read_part, read_sizes};
use crate::env::Source;
use crate::future::{Kind, parse_message, write_message};
use crate::memory::{Offered, Serialized, head};
use crate::semaphore::Given;
use crate::wire::Writer;
use crate::{Endpoint, FdTicket, bootstrap, launch, liveness, logging};

/// All of them.
pub const TARGETS: &[Target] = &[
    bootstrap::fuzz::ADDRESS,
    bootstrap::fuzz::FILTER,
    bootstrap::fuzz::GATHER,
    bootstrap::fuzz::HANDSHAKE,
    bootstrap::fuzz::ID,
    bootstrap::fuzz::JOINS,
    bootstrap::fuzz::LETTERS,
    bootstrap::fuzz::REPORTS,
    bootstrap::fuzz::VERDICT,
    launch::fuzz::ENVIRONMENT,
    liveness::fuzz::FRAMES,
    Target { name: "endpoint", run: endpoint, seeds: endpoint_seeds },
    Target { name: "log_settings", run: log_settings, seeds: log_seeds },
    Target { name: "peer_message", run: peer_message, seeds: peer_message_seeds },
    Target { name: "registered_memory", run: registered_memory, seeds: memory_seeds },
    Target { name: "semaphore", run: semaphore, seeds: semaphore_seeds },
    Target { name: "setup_step", run: setup_step, seeds: step_seeds },
];

const CALL: &str = "a call";
const GROUP: u64 = 7;

fn endpoint(input: &[u8]) -> bool {
    let Ok(endpoint) = Endpoint::deserialize(input) else { return false };
    assert_eq!(endpoint.serialize(), input);
    true
}

fn endpoint_seeds() -> Vec<Vec<u8>> {
    vec![[&[1, 3, 0, 0, 0], &[7; 8][..], &[9; 16]].concat()]
}

/// A variable's value in lines of NAME=VALUE.
pub(crate) fn value_in(lines: &str, name: &str) -> Option<String> {
    let mut pairs = lines.lines().filter_map(|line| line.split_once('='));
    pairs.find(|(given, _)| *given == name).map(|(_, value)| value.to_owned())
}

/// What the environment says of the log.
fn log_settings(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let value = |name: &str| value_in(text, name);
    match logging::read(Source::new(&value)) {
        Ok(settings) => settings.is_some(),
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains("MSCCL") && words.contains("allowed"), "{words}");
            false
        }
    }
}

fn log_seeds() -> Vec<Vec<u8>> {
    [
        "MSCCLRS_DEBUG=INFO\nMSCCLRS_DEBUG_SUBSYS=^MEMORY, coll\nMSCCLRS_DEBUG_FILE=/tmp/100%%/%h.%p-%r",
        "MSCCLRS_DEBUG_FORMAT=json\nMSCCLRS_DEBUG_SUBSYS=ALL\nMSCCLRS_RANK=1\nMSCCLRS_WORLD_SIZE=2",
        "MSCCLPP_DEBUG=ABORT\nMSCCLPP_DEBUG_SUBSYS=ALLOC,TUNING,PROXY\nMSCCLPP_DEBUG_FILE=log",
        "MSCCLPP_LOG_LEVEL=DEBUG\nMSCCLPP_LOG_SUBSYS=GPU,CONN\nMSCCLPP_LOG_FILE=log.%r",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Which message is awaited, then one.
fn peer_message(input: &[u8]) -> bool {
    let Some((&awaited, message)) = input.split_first() else { return false };
    let kind = [Kind::Memory, Kind::Endpoint, Kind::Semaphore][usize::from(awaited) % 3];
    let number = u64::from(awaited) / 3;
    let Ok(body) = parse_message(message, kind, number) else { return false };
    assert_eq!(write_message(body, kind, number), message);
    true
}

fn peer_message_seeds() -> Vec<Vec<u8>> {
    let first = write_message(b"what was sent", Kind::Memory, 0);
    let second = write_message(b"", Kind::Semaphore, 1);
    vec![[&[0], &first[..]].concat(), [&[5], &second[..]].concat()]
}

fn registered_memory(input: &[u8]) -> bool {
    let read = |bytes| Serialized::read(bytes, GROUP, 0, 4);
    let Ok(Serialized { rank, offered }) = read(input) else { return false };
    assert!((1..4).contains(&rank));
    is_sound(&offered);
    let mut writer = head(GROUP, rank);
    offered.write(&mut writer);
    let again = read(&writer.finish()).map(|again| (again.rank, again.offered)).ok();
    assert_eq!(again, Some((rank, offered)));
    true
}

fn memory_seeds() -> Vec<Vec<u8>> {
    let seed = |offered: &Offered| {
        let mut writer = head(GROUP, 2);
        offered.write(&mut writer);
        writer.finish()
    };
    offers().iter().map(seed).collect()
}

fn semaphore(input: &[u8]) -> bool {
    let Ok(given) = Given::read(input) else { return false };
    is_sound(&given.offered);
    let again = given.write(|writer| given.offered.write(writer));
    assert_eq!(Given::read(&again).ok(), Some(given));
    true
}

fn semaphore_seeds() -> Vec<Vec<u8>> {
    let seed = |offered: &Offered| {
        let mut writer = Writer::new();
        writer.u64(3).u64(24);
        offered.write(&mut writer);
        writer.list(&[1, 2, 5]).finish()
    };
    offers().iter().map(seed).collect()
}

/// Which message of a step, then one.
fn setup_step(input: &[u8]) -> bool {
    let Some((&which, message)) = input.split_first() else { return false };
    match which % 4 {
        0 => {
            let Ok(introduction) = Introduction::decode(CALL, message) else { return false };
            // Its version has been looked at by then.
            assert_eq!(introduction.encode()[4..], message[4..]);
        }
        1 => {
            let Ok(part) = read_part(CALL, message) else { return false };
            let again = match part {
                Part::Made(part) => Writer::new().u8(0).bytes(part).finish(),
                Part::Failed(why) => Writer::new().u8(1).text(&why, u64::MAX).finish(),
                Part::Waited(why) => Writer::new().u8(2).text(&why, u64::MAX).finish(),
            };
            assert_eq!(again, message);
        }
        2 => {
            let Ok(sizes) = read_sizes(CALL, message) else { return false };
            assert_eq!(Writer::new().list(&sizes).finish(), message);
        }
        _ => {
            let Ok(answer) = read_answer(CALL, message, Offered::read) else { return false };
            if let Ok(offered) = answer {
                is_sound(&offered);
            }
        }
    }
    true
}

fn step_seeds() -> Vec<Vec<u8>> {
    let introduction = Introduction { backend: 1, uuid: [4; 16], count: 2 }.encode();
    let part = Writer::new().u8(0).bytes(b"a part").finish();
    let why = |status| Writer::new().u8(status).text("out of memory", u64::MAX).finish();
    let sizes = Writer::new().list(&[256, 4096]).finish();
    let cannot = Writer::new().u8(0).text("no peer access", u64::MAX).finish();
    let mut seeds = vec![
        [&[0], &introduction[..]].concat(),
        [&[1], &part[..]].concat(),
        [&[1], &why(1)[..]].concat(),
        [&[1], &why(2)[..]].concat(),
        [&[2], &sizes[..]].concat(),
        [&[3], &cannot[..]].concat(),
    ];
    for offered in offers() {
        let mut writer = Writer::new();
        offered.write(writer.u8(3).u8(1));
        seeds.push(writer.finish());
    }
    seeds
}

/// What whoever maps an offer relies on.
fn is_sound(offered: &Offered) {
    let ExportedHandle { kind, offset, bytes, allocation_bytes, .. } = offered.handle;
    assert!(bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= allocation_bytes));
    assert_eq!(kind == HandleKind::PosixFd, offered.ticket.is_some());
}

fn offers() -> Vec<Offered> {
    let handle = |kind, payload: &[u8]| ExportedHandle {
        kind,
        device_uuid: [7; 16],
        allocation: 9,
        allocation_bytes: 32768,
        offset: 256,
        bytes: 512,
        payload: payload.to_vec(),
    };
    let token = vec!["7"; 32].join(",");
    let ticket = format!("{{\"name\":\"mscclrs-0011\",\"id\":3,\"token\":[{token}]}}");
    let ticket: Option<FdTicket> = serde_json::from_str(&ticket).ok();
    vec![
        Offered { handle: handle(HandleKind::PosixFd, &[]), ticket },
        Offered { handle: handle(HandleKind::Fabric, &[5; 84]), ticket: None },
        Offered { handle: handle(HandleKind::RuntimeIpc, &[6; 84]), ticket: None },
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_hold_for_their_corpora_and_what_is_close_to_them() {
        mscclrs_fuzz::walk(super::TARGETS);
    }
}
