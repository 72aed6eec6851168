//! Mistakes on the command line of `launch`: one sentence, and exit status 2.

use super::*;

/// Options and command, and what the sentence holds.
const WRONG: &[(&str, &[&str])] = &[
    ("", &["launch needs <COMMAND>"]),
    ("-n 2", &["launch needs <COMMAND>"]),
    ("-- true", &["needs a number of ranks", "-n N and --hosts"]),
    ("-n 0 -- true", &["-n: '0'", "1 to 1024"]),
    ("-n -1 -- true", &["-n"]),
    ("-n 2000 -- true", &["-n: '2000'", "1 to 1024"]),
    ("-n 2 -n 3 -- true", &["-n was given twice"]),
    ("-n 2 --fast -- true", &["'--fast'", "-n, --hosts, --run"]),
    ("-n 2 --run -- true", &["launch needs", "--hosts"]),
    ("-n 2 --remote-command x -- true", &["launch needs", "--hosts"]),
    ("--hosts a,b -- true", &["--hosts: 'a' says no number of ranks", "a:N", "-n N"]),
    ("--hosts a,,b -n 1 -- true", &["--hosts: '' is not a host", "HOST:N"]),
    ("--hosts a:0 -- true", &["--hosts: 'a:0'", "1 to 1024"]),
    ("--hosts a;b -n 1 -- true", &["--hosts: 'a;b' is not a host"]),
    ("--hosts a:1,a:2 -- true", &["'a' is named twice"]),
    ("-n 2 --address a%b -- true", &["--address", "host name"]),
    ("-n 2 --address a:70000 -- true", &["--address", "port"]),
    ("-n 2 --grace -1 -- true", &["--grace"]),
    ("-n 2 --grace soon -- true", &["--grace: 'soon' is not a time", "0 to 86400"]),
    ("-n 2 -x RANK=1 -- true", &["-x: RANK is set by launch itself"]),
    ("-n 2 -x =1 -- true", &["-x: '' is not the name of a variable"]),
    ("-n 2 -x MSCCLRS_TEST_UNSET -- true", &["-x: MSCCLRS_TEST_UNSET is not set here"]),
    ("-n 2 --output /dev/null/x -- true", &["--output: '/dev/null/x' cannot be written", "folder"]),
    ("-n 2 --output x --no-prefix -- true", &["--output", "--no-prefix", "exclude each other"]),
    ("-n 2 --first-rank 0 -- true", &["launch needs", "--world-size"]),
    ("-n 2 --world-size 4 -- true", &["launch needs", "--first-rank"]),
    ("-n 2 --secret-stdin -- true", &["launch needs", "--first-rank"]),
    (
        "-n 2 --first-rank 3 --world-size 4 --address a:5 -- true",
        &["--first-rank: ranks 3 to 4 are not all below --world-size 4", "0 to 2"],
    ),
    ("-n 2 --first-rank 0 --world-size 4 --address a -- true", &["--address HOST:PORT"]),
    (
        "-n 2 --first-rank 0 --world-size 4 --address a:5000 --secret-stdin -- true",
        &["--secret-stdin: the secret has 0 bytes", "8 to 4096"],
    ),
    ("-n 2 --hosts a --first-rank 0 --world-size 2 -- true", &["--first-rank", "--hosts"]),
];

#[test]
fn mistakes_are_answered_by_one_sentence_and_status_2() {
    for (arguments, words) in WRONG {
        let mut command = Command::new(program());
        command.arg("launch").args(arguments.split_whitespace()).stdin(Stdio::null());
        let ended = run({
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        });
        assert_eq!(ended.status, Some(2), "{arguments}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{arguments}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{arguments}");
        for word in *words {
            assert!(ended.stderr.contains(word), "{arguments}: {:?} lacks {word:?}", ended.stderr);
        }
    }
}

#[test]
fn a_chosen_port_that_is_taken_is_a_mistake() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("an address").port();
    let ended = run(launch(&format!("-n 1 --address 127.0.0.1:{port}"), "true"));
    assert_eq!(ended.status, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("port {port}")), "{}", ended.stderr);
}

#[test]
fn options_behind_the_command_are_its_own() {
    let mut command = Command::new(program());
    command.args(["launch", "-n", "1", "echo", "-n", "--hosts", "--", "x"]);
    let ended = run({
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    assert_eq!(ended.stdout, "[0] --hosts -- x", "{}", ended.stderr);
}
