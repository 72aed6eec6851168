//! Ranks that a launcher starts wrongly: what they say, and when.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a rank of two said, and its exit status.
struct Ended {
    said: String,
    status: Option<i32>,
    took: Duration,
}

/// A rank of two that sets up for five seconds at most.
fn start(rank: u32, variables: &[(&str, &str)]) -> std::thread::JoinHandle<Ended> {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("mscclrs"));
    command
        .args(["bench", "allreduce", "--device", "cpu", "-e", "8", "-n", "1"])
        .env("MSCCLRS_RANK", rank.to_string())
        .env("MSCCLRS_WORLD_SIZE", "2")
        .env("MSCCLRS_BOOTSTRAP_TIMEOUT", "5")
        .env("MSCCLRS_SECRET", "a secret of this test")
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    std::thread::spawn(move || {
        let since = Instant::now();
        let output = command.output().expect("ran");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ended { said, status: output.status.code(), took: since.elapsed() }
    })
}

fn free_address() -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("an address").to_string()
}

#[test]
fn a_rank_that_waits_for_long_says_once_for_whom() {
    let (here, there) = (free_address(), free_address());
    let alone = [
        (start(0, &[("MSCCLRS_ADDRESS", &here)]), &here, "for 1 of 2 ranks (1)"),
        (start(1, &[("MSCCLRS_ADDRESS", &there)]), &there, "for rank 0"),
    ];
    for (rank, address, whom) in alone {
        let Ended { said, status, .. } = rank.join().expect("ran");
        assert_eq!(status, Some(1), "{said}");
        let told: Vec<_> = said.lines().filter(|line| line.contains("has waited")).collect();
        assert_eq!(told.len(), 1, "{said}");
        assert!(told[0].contains(address) && told[0].contains(whom), "{said}");
        assert!(told[0].ends_with("it gives up after 5 s"), "{said}");
    }
}

#[test]
fn a_wrong_secret_is_told_by_both_sides_at_once() {
    let address = free_address();
    let at = ("MSCCLRS_ADDRESS", address.as_str());
    let first = start(0, &[at, ("MSCCLRS_SECRET", "another secret")]);
    let second = start(1, &[at]);
    let second = second.join().expect("ran");
    assert_eq!(second.status, Some(2), "{}", second.said);
    assert!(second.said.contains("its secret differs"), "{}", second.said);
    let first = first.join().expect("ran");
    let refused = first.said.lines().next().unwrap_or_default();
    assert!(refused.starts_with("a connection from 127.0.0.1:"), "{}", first.said);
    assert!(refused.contains("its secret differs"), "{}", first.said);
}

#[test]
fn an_unknown_host_ends_every_rank_at_once() {
    // No resolver is asked for a name with so long a part.
    let address = format!("{}:29500", "x".repeat(70));
    let ranks = [0, 1].map(|rank| {
        let at = ("MSCCLRS_ADDRESS", address.as_str());
        start(rank, &[at, ("MSCCLRS_BOOTSTRAP_TIMEOUT", "60")])
    });
    for rank in ranks {
        let Ended { said, status, took } = rank.join().expect("ran");
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(&address) && said.contains("is not known"), "{said}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn another_program_at_the_address_is_told_from_a_wrong_secret() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    // It serves until the test's process ends.
    std::thread::spawn(move || {
        while let Ok((mut stranger, _)) = listener.accept() {
            // Who hangs up before the answer has one try less.
            let _ = stranger.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            let mut rest = [0; 256];
            while stranger.read(&mut rest).is_ok_and(|count| count > 0) {}
        }
    });
    let at = ("MSCCLRS_ADDRESS", address.as_str());
    let Ended { said, status, .. } =
        start(1, &[at, ("MSCCLRS_BOOTSTRAP_TIMEOUT", "1")]).join().expect("ran");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("what listens there is another program"), "{said}");
}
