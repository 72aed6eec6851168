//! Ranks on several hosts: processes in network namespaces of their own, joined by a switch whose
//! links are cut at will.
//!
//! This needs a privileged user, `ip` and `nsenter`; elsewhere the tests say so and check nothing. A
//! namespace ends with its last process, so nothing is left behind however a test ends.

#![allow(clippy::unwrap_used)]

mod process;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use mscclrs_core::bootstrap::{Address, Config, InterfaceFilter, Secret};
use mscclrs_core::{Bootstrap, Liveness, Loss, TcpBootstrap, UniqueId};
use process::{Process, START, say, wait_for_input};

/// Silence of five seconds is a loss; heartbeats come every second.
const LOSS: Duration = Duration::from_secs(9);

/// What a started process does; without a role, as among the tests, nothing.
#[test]
fn started_process() {
    let Some(role) = process::role() else { return };
    let parts: Vec<&str> = role.split_whitespace().collect();
    match parts[..] {
        // Holds a namespace.
        ["host"] => {
            say("here");
            wait_for_input();
        }
        ["id"] => match UniqueId::create(&InterfaceFilter::default()) {
            Ok(id) => say(&format!("id {:?}", id.addresses())),
            Err(error) => say(&format!("error {error}")),
        },
        // Says how it fared, stays until its input ends, and says who is lost meanwhile.
        ["rank", rank, n, address, secret, seconds] => {
            let told = |loss: &Loss| say(&format!("lost {loss}"));
            let met = TcpBootstrap::new(config(rank, n, address, secret, seconds))
                .and_then(|bootstrap| Ok((Liveness::start(&bootstrap, told)?, bootstrap)))
                .and_then(|(liveness, bootstrap)| {
                    bootstrap.barrier().map(|()| (liveness, bootstrap))
                });
            match met {
                Err(error) => say(&format!("error {error}")),
                Ok(held) => {
                    say("ready");
                    wait_for_input();
                    drop(held);
                }
            }
        }
        // Is no member, and does not give up.
        ["stranger", address] => loop {
            if let Err(error) = TcpBootstrap::new(config("1", "2", address, "wrong", "2")) {
                say(&format!("error {error}"));
            }
            thread::sleep(Duration::from_millis(50));
        },
        _ => panic!("{role}"),
    }
}

fn config(rank: &str, n: &str, address: &str, secret: &str, seconds: &str) -> Config {
    let rank: u32 = rank.parse().unwrap();
    let mut config = Config::new(rank, n.parse().unwrap(), address.parse::<Address>().unwrap());
    config.secret = Some(Secret::new(secret));
    config.timeout = Some(Duration::from_secs(seconds.parse().unwrap()));
    // One kernel, and yet several hosts.
    config.host_id = Some(1000 + u64::from(rank));
    config
}

/// In a namespace of its own, or in that of a host.
fn start(role: &str, host: Option<&Process>) -> Process {
    let Some(host) = host else {
        let mut command = process::program();
        // SAFETY: unshare is a plain system call.
        unsafe {
            command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        return Process::start_by(command, role);
    };
    let mut command = inside(host);
    command.arg(process::program().get_program());
    Process::start_by(command, role)
}

/// What runs the program behind it in a process's namespace.
fn inside(host: &Process) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", host.child.id()));
    command
}

/// Runs `ip` in a process's namespace.
#[track_caller]
fn ip(host: &Process, arguments: &str) {
    let output = inside(host).arg("ip").args(arguments.split_whitespace()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// Hosts with 10.77.0.N, fd77::N and fe80::77:N on eth0, N from 1, and the switch between them.
struct Hosts {
    switch: Process,
    hosts: Vec<Process>,
}

impl Hosts {
    /// Nothing where namespaces cannot be made.
    fn new(count: usize) -> Option<Hosts> {
        if let Some(why) = impossible() {
            eprintln!("not tested here: {why}");
            return None;
        }
        let switch = start("host", None);
        assert_eq!(switch.hear(START), "here");
        ip(&switch, "link add br0 type bridge");
        ip(&switch, "link set br0 up");
        let hosts = (1..=count)
            .map(|n| {
                let host = start("host", None);
                assert_eq!(host.hear(START), "here");
                let pid = host.child.id();
                ip(&switch, &format!("link add p{n} type veth peer name eth0 netns {pid}"));
                ip(&switch, &format!("link set p{n} master br0 up"));
                ip(&host, "link set lo up");
                ip(&host, &format!("addr add 10.77.0.{n}/24 dev eth0"));
                ip(&host, "link set eth0 up");
                ip(&host, &format!("addr add fd77::{n}/64 dev eth0 nodad"));
                ip(&host, &format!("addr add fe80::77:{n}/64 dev eth0 nodad"));
                host
            })
            .collect();
        Some(Hosts { switch, hosts })
    }

    /// Rank `rank` of `n` on the host of that number.
    fn rank(&self, rank: usize, n: usize, address: &str, seconds: u32) -> Process {
        let role = format!("rank {rank} {n} {address} right {seconds}");
        start(&role, Some(&self.hosts[rank]))
    }

    fn cut(&self, host: usize) {
        ip(&self.switch, &format!("link set p{} down", host + 1));
    }
}

fn impossible() -> Option<String> {
    // SAFETY: asks a number.
    if unsafe { libc::geteuid() } != 0 {
        return Some("network namespaces need a privileged user".into());
    }
    for tool in ["ip", "nsenter"] {
        if Command::new(tool).arg("--version").output().is_err()
            && Command::new(tool).arg("-V").output().is_err()
        {
            return Some(format!("there is no `{tool}`"));
        }
    }
    let tried =
        Command::new("unshare").args(["--net", "ip", "link", "add", "type", "veth"]).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

#[test]
fn hosts_meet_while_a_stranger_keeps_trying() {
    let Some(hosts) = Hosts::new(3) else { return };
    let address = "10.77.0.1:29400";
    let first = hosts.rank(0, 2, address, 20);
    let stranger = start(&format!("stranger {address}"), Some(&hosts.hosts[2]));
    let refused = stranger.hear(START);
    assert!(refused.contains("secret"), "{refused}");
    let second = hosts.rank(1, 2, address, 20);
    assert_eq!(first.hear(START), "ready");
    assert_eq!(second.hear(START), "ready");
}

#[test]
fn every_form_of_address_meets() {
    let Some(hosts) = Hosts::new(2) else { return };
    for address in [
        "eth0:10.77.0.1:29401",
        "[fd77::1]:29402",
        "eth0:[fd77::1]:29403",
        "[fe80::77:1%eth0]:29404",
    ] {
        let ranks = [0, 1].map(|rank| hosts.rank(rank, 2, address, 20));
        for rank in &ranks {
            assert_eq!(rank.hear(START), "ready", "{address}");
        }
    }
}

#[test]
fn a_host_that_is_cut_off_is_lost_to_the_others_and_they_to_it() {
    let Some(hosts) = Hosts::new(3) else { return };
    let ranks = [0, 1, 2].map(|rank| hosts.rank(rank, 3, "10.77.0.1:29405", 20));
    for rank in &ranks {
        assert_eq!(rank.hear(START), "ready");
    }
    let cut = Instant::now();
    hosts.cut(2);
    for rank in &ranks[..2] {
        let lost = rank.hear(LOSS);
        assert!(lost.starts_with("lost rank 2 "), "{lost}");
    }
    let lost = ranks[2].hear(LOSS);
    assert!(lost.starts_with("lost rank "), "{lost}");
    assert!(cut.elapsed() < LOSS, "{:?}", cut.elapsed());
}

#[test]
fn a_host_that_is_cut_off_before_all_have_met_is_named() {
    let Some(hosts) = Hosts::new(3) else { return };
    let address = "10.77.0.1:29406";
    let first = hosts.rank(0, 3, address, 6);
    let second = hosts.rank(1, 3, address, 6);
    // Time for rank 1 to come to the rendezvous.
    thread::sleep(Duration::from_millis(700));
    hosts.cut(1);
    let third = hosts.rank(2, 3, address, 6);
    for rank in [&first, &third] {
        let error = rank.hear(START);
        assert!(error.starts_with("error ") && error.contains("rank 1"), "{error}");
    }
    let error = second.hear(START);
    assert!(error.starts_with("error "), "{error}");
}

#[test]
fn a_host_without_a_network_is_told_so() {
    if let Some(why) = impossible() {
        eprintln!("not tested here: {why}");
        return;
    }
    let alone = start("id", None);
    let error = alone.hear(START);
    assert!(error.starts_with("error no network interface"), "{error}");
}
