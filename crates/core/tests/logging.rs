//! The log of a program that uses the library: this test binary starts itself again.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Rank;
use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, Communicator, LocalBootstrap, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device};
use mscclrs_log::{Level, Settings, install};

const ROLE: &str = "CORE_LOGGING_TEST_ROLE";

/// What a started process does.
#[test]
#[ignore = "a program that the other tests start"]
fn a_program_of_its_own() {
    match std::env::var(ROLE).unwrap().as_str() {
        "plain" => {}
        // It has a subscriber, which shows errors only.
        "own" => {
            let own = Settings { level: Level::Error, ..Settings::default() };
            assert!(install(own).unwrap());
        }
        "leaves" | "panics" => return last_words(),
        role => panic!("{role}"),
    }
    let ranks = LocalBootstrap::create(2, Duration::from_secs(10));
    let errors = std::thread::scope(|scope| {
        let rank = |rank: LocalBootstrap| {
            let device = Device::open(BackendKind::Cpu, rank.rank()).unwrap();
            let made = Communicator::new(Arc::new(rank), device);
            made.map(drop).map_err(|error| error.to_string())
        };
        let threads: Vec<_> = ranks.into_iter().map(|one| scope.spawn(move || rank(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for error in errors.into_iter().filter_map(Result::err) {
        println!("failed: {error}");
    }
}

/// Two ranks meet by TCP. One goes, as its role says; the other stays until it has heard of that by the
/// communicator and by the bootstrap.
fn last_words() {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    let id = UniqueId::create(&lo).unwrap();
    let ready = |rank| {
        let mut config = Config::new(rank, 2, id.clone());
        config.timeout = Some(Duration::from_secs(10));
        let bootstrap = Arc::new(TcpBootstrap::new(config).unwrap());
        let device = Device::open(BackendKind::Cpu, rank).unwrap();
        let rank = Rank::new(Communicator::new(bootstrap.clone(), device).unwrap());
        let peer = 1 - rank.rank();
        let semaphore = rank.semaphore(&rank.connect(peer, 1), 1);
        bootstrap.barrier().unwrap();
        (bootstrap, rank, semaphore)
    };
    std::thread::scope(|scope| {
        let goes = scope.spawn(|| {
            let _held = ready(1);
            assert!(std::env::var(ROLE).unwrap() == "leaves", "as it is to");
        });
        let stays = scope.spawn(|| {
            let (bootstrap, rank, semaphore) = ready(0);
            rank.launch_semaphore("wait_signals", &semaphore, 1).unwrap();
            rank.synchronize().unwrap_err();
            let since = Instant::now();
            while !bootstrap.barrier().unwrap_err().to_string().contains(" left")
                && bootstrap.lost().is_none()
            {
                assert!(since.elapsed() < Duration::from_secs(10), "the bootstrap does not know");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _ = goes.join();
        stays.join().unwrap();
    });
}

fn start(role: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        // Whoever runs the tests may want a log of something else.
        let name = name.to_string_lossy();
        if name.contains("_DEBUG") || name.starts_with("MSCCLPP_LOG") {
            command.env_remove(name.as_ref());
        }
    }
    command
        .args(["a_program_of_its_own", "--exact", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn nothing_is_said_unless_it_is_asked_for() {
    assert_eq!(stderr(&start("plain", &[])), "");
    assert_eq!(stderr(&start("plain", &[("MSCCLRS_DEBUG", "off")])), "");
}

#[test]
fn first_communicator_begins_the_log() {
    let said = stderr(&start("plain", &[("MSCCLRS_DEBUG", "info")]));
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    assert_eq!(count("[-] INFO INIT mscclrs begins"), 1, "{said}");
    assert_eq!(count("INFO ENV a variable is set name=MSCCLRS_DEBUG value=info"), 1, "{said}");
    assert_eq!(count("INIT a communicator is made"), 2, "{said}");
    assert_eq!(count("[1] INFO INIT a communicator is made"), 1, "{said}");
    assert!(said.lines().all(mscclrs_log::is_line), "{said}");
}

#[test]
fn who_goes_is_told_once_for_a_communicator_and_of_the_bootstrap_to_who_looks_closer() {
    for (role, line) in [("leaves", "a rank has left"), ("panics", "a rank is lost")] {
        let count = |level: &str, text: &str| {
            let said = stderr(&start(role, &[("MSCCLRS_DEBUG", level)]));
            said.lines().filter(|said| said.contains(text) && said.contains(line)).count()
        };
        assert_eq!(count("info", "[0] INFO LIVENESS "), 1, "{line}");
        assert_eq!(count("debug", "[0] DEBUG LIVENESS "), 1, "{line}");
        assert_eq!(count("info", "bootstrap"), 0, "{line}");
    }
}

#[test]
fn spelling_of_mscclpp_works_too() {
    let said =
        stderr(&start("plain", &[("MSCCLPP_DEBUG", "INFO"), ("MSCCLPP_DEBUG_SUBSYS", "ENV")]));
    assert!(said.contains("name=MSCCLPP_DEBUG value=INFO"), "{said}");
    assert!(!said.contains(" INIT "), "{said}");
}

#[test]
fn subscriber_of_the_program_stays_and_no_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let variables = [("MSCCLRS_DEBUG", "trace"), ("MSCCLRS_DEBUG_FILE", file.to_str().unwrap())];
    assert_eq!(stderr(&start("own", &variables)), "");
    assert!(!file.exists());
}

#[test]
fn a_secret_is_not_in_the_log() {
    let variables = [("MSCCLRS_DEBUG", "trace"), ("MSCCLRS_SECRET", "hunter2hunter2")];
    let said = stderr(&start("plain", &variables));
    assert!(said.contains("name=MSCCLRS_SECRET value=\"set, 14 bytes\""), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

#[test]
fn a_wrong_log_is_the_same_error_on_every_rank() {
    for (name, value, says) in [
        ("MSCCLRS_DEBUG", "loud", "MSCCLRS_DEBUG=loud: allowed is off, error"),
        ("MSCCLRS_DEBUG_FILE", "/nowhere/log", "the log file \"/nowhere/log\" cannot be opened: "),
    ] {
        let output = start("plain", &[(name, value)]);
        let said = String::from_utf8(output.stdout).unwrap();
        let failed: Vec<_> = said.lines().filter_map(|line| line.split_once("failed: ")).collect();
        assert_eq!(failed.len(), 2, "{said}");
        assert!(failed.iter().all(|(_, error)| error.contains(says)), "{said}");
    }
}
