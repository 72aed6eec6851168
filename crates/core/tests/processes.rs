//! Ranks that are processes: this test binary starts itself again, one process a rank.

#![allow(clippy::unwrap_used)]

mod process;

use std::fs::File;
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use mscclrs_core::bootstrap::{Config, InterfaceFilter};
use mscclrs_core::{Bootstrap, FdService, FdTicket, Liveness, Loss, TcpBootstrap, UniqueId};
use process::{Process, START, say, wait_for_input};

const LIMIT: Duration = Duration::from_secs(2);

/// What a started process does; without a role, as among the tests, nothing.
#[test]
fn started_process() {
    let Some(role) = process::role() else { return };
    let parts: Vec<&str> = role.split_whitespace().collect();
    if let ["fetch", ticket] = parts[..] {
        let ticket: FdTicket = serde_json::from_str(ticket).unwrap();
        let fd = ticket.fetch(Instant::now() + LIMIT).unwrap();
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).unwrap();
        say(&format!("read {text}"));
        return;
    }
    let [end, rank, n, id] = parts[..] else { panic!("{role}") };
    let id: UniqueId = id.parse().unwrap();
    let mut config = Config::new(rank.parse().unwrap(), n.parse().unwrap(), id);
    config.timeout = Some(Duration::from_secs(8));
    let bootstrap = TcpBootstrap::new(config).unwrap();
    let liveness = Liveness::start(&bootstrap, |loss: &Loss| say(&format!("lost {loss}"))).unwrap();
    bootstrap.barrier().unwrap();
    say("ready");
    match end {
        // Until it is killed, or its input ends.
        "stay" => {
            wait_for_input();
            drop(liveness);
        }
        // Exits without dropping anything.
        "exit" => {
            wait_for_input();
            std::process::exit(0);
        }
        // A child of a fork exits as programs do, another lives on; then this process is killed.
        "fork" => {
            wait_for_input();
            // SAFETY: the children only exit, sleep and exit at once.
            unsafe {
                match libc::fork() {
                    0 => libc::exit(0),
                    child => libc::waitpid(child, std::ptr::null_mut(), 0),
                };
                if libc::fork() == 0 {
                    for fd in 0..3 {
                        libc::close(fd);
                    }
                    libc::sleep(5);
                    libc::_exit(0);
                }
                thread::sleep(Duration::from_millis(200));
                say("forked");
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
        }
        other => panic!("{other}"),
    }
}

/// Processes of which one ends in its own way.
fn start(n: usize, odd: usize, end: &str) -> Vec<Process> {
    let lo: InterfaceFilter = "=lo".parse().unwrap();
    let id = UniqueId::create(&lo).unwrap();
    let processes: Vec<_> = (0..n)
        .map(|rank| {
            let end = if rank == odd { end } else { "stay" };
            Process::start(&format!("{end} {rank} {n} {id}"))
        })
        .collect();
    for process in &processes {
        assert_eq!(process.hear(START), "ready");
    }
    processes
}

#[test]
fn a_killed_process_is_named_by_all_others() {
    for victim in [0, 1, 4] {
        let mut processes = start(5, victim, "stay");
        let mut killed = processes.remove(victim);
        killed.child.kill().unwrap();
        let started = Instant::now();
        for process in &processes {
            let lost = format!("lost rank {victim} was lost: its process ended without leaving");
            assert_eq!(process.hear(LIMIT), lost);
        }
        println!("a killed process was known to all after {:?}", started.elapsed());
    }
}

#[test]
fn a_process_that_exits_says_goodbye() {
    let mut processes = start(3, 1, "exit");
    processes[1].go();
    assert!(processes[1].child.wait().unwrap().success());
    for process in [&processes[0], &processes[2]] {
        assert!(process.lines.recv_timeout(Duration::from_millis(300)).is_err());
    }
}

#[test]
fn children_of_a_fork_neither_say_goodbye_nor_keep_their_parent_alive() {
    let mut processes = start(3, 1, "fork");
    processes[1].go();
    assert_eq!(processes[1].hear(Duration::from_secs(5)), "forked");
    for process in [&processes[0], &processes[2]] {
        let lost = "lost rank 1 was lost: its process ended without leaving";
        assert_eq!(process.hear(LIMIT), lost);
    }
}

#[test]
fn a_descriptor_reaches_another_process() {
    let service = FdService::current().unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    File::from(writer).write_all(b"hello").unwrap();
    let offer = service.offer(reader).unwrap();
    let ticket = serde_json::to_string(offer.ticket()).unwrap();
    let process = Process::start(&format!("fetch {ticket}"));
    assert_eq!(process.hear(START), "read hello");
}
