//! What ranks write arrives whole, marked, and soon.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use super::*;

#[test]
fn output_and_errors_are_marked_and_kept_apart() {
    let ended = run(launch("-n 2", "echo out; echo err >&2; printf 'no end'"));
    assert_eq!(ended.status, Some(0));
    for rank in 0..2 {
        assert!(ended.stdout.contains(&format!("[{rank}] out\n")), "{}", ended.stdout);
        assert!(ended.stdout.contains(&format!("[{rank}] no end")), "{}", ended.stdout);
        assert!(ended.stderr.contains(&format!("[{rank}] err\n")), "{}", ended.stderr);
    }
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    assert_eq!(ended.stderr.lines().count(), 2, "{}", ended.stderr);
}

#[test]
fn lines_are_whole_however_ranks_write_them() {
    // Each line in pieces, all ranks at once, both streams into one pipe.
    let script = "i=0; while [ $i -lt 300 ]; do printf 'rank %s ' $RANK; printf 'line %s ' $i >&2; \
                  printf 'line %s\n' $i; printf 'of %s\n' $RANK >&2; i=$((i+1)); done";
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(program());
    command.args(["launch", "-n", "4", "--", "sh", "-c", script]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = run(command);
    assert_eq!(ended.status, Some(0), "{}", ended.stdout);
    let mut next = BTreeMap::<(usize, bool), usize>::new();
    for line in ended.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (rank, number, is_error) = match words[..] {
            [_, "rank", rank, "line", number] => (rank, number, false),
            [_, "line", number, "of", rank] => (rank, number, true),
            _ => panic!("torn: {line}"),
        };
        assert_eq!(words[0], format!("[{rank}]"), "{line}");
        let expected = next.entry((rank.parse().expect("a rank"), is_error)).or_default();
        assert_eq!(number.parse(), Ok(*expected), "{line}");
        *expected += 1;
    }
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|&count| count == 300));
}

#[test]
fn any_bytes_pass() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bytes");
    // All bytes in all pairs, and more than a pipe holds.
    let bytes: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b])).collect();
    std::fs::write(&file, &bytes).expect("written");
    let mut command = Command::new(program());
    command.args(["launch", "-n", "1", "cat"]).arg(&file).stdin(Stdio::null());
    let found = command.output().expect("ran").stdout;
    let lines = found.split_inclusive(|&byte| byte == b'\n');
    let stripped: Vec<u8> = lines
        .flat_map(|line| line.strip_prefix(b"[0] ").expect("marked").iter().copied())
        .collect();
    assert!(stripped == bytes);
}

#[test]
fn lines_arrive_while_ranks_go_on() {
    let mut running = Running::start(launch("-n 2", "echo begun; sleep 60"));
    let mut lines = BufReader::new(running.0.stdout.take().expect("piped")).lines();
    for _ in 0..2 {
        assert!(lines.next().expect("a line").expect("text").ends_with("] begun"));
    }
    running.signal(Signal::TERM);
    assert_eq!(running.ended().status, Some(143));
}

#[test]
fn a_failure_is_told_behind_what_the_rank_said() {
    let script = "test $RANK = 1 && { i=0; while [ $i -lt 2000 ]; do echo word $i >&2; i=$((i+1)); \
                  done; exit 4; }; sleep 60";
    let ended = run(launch("-n 2", script));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 2001);
    assert_eq!(lines[1999], "[1] word 1999");
    assert!(lines[2000].contains("exited with status 4"), "{}", lines[2000]);
}

#[test]
fn each_rank_has_its_own_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = folder.path().join("new/logs");
    let options = format!("-n 2 --output {}", logs.display());
    // The second fails when the first has written.
    let script = format!(
        "echo out $RANK; echo err $RANK >&2; test $RANK = 0 || \
         until test -s {}/0.err; do sleep 0.01; done; exit $RANK",
        logs.display()
    );
    let ended = run(launch(&options, &script));
    assert_eq!(ended.status, Some(1));
    assert_eq!(ended.stdout, "");
    let hint = format!("(see {}/1.err)", logs.display());
    assert!(ended.stderr.trim_end().ends_with(&hint), "{}", ended.stderr);
    for rank in 0..2 {
        for kind in ["out", "err"] {
            let text = std::fs::read_to_string(logs.join(format!("{rank}.{kind}"))).expect("there");
            assert_eq!(text, format!("{kind} {rank}\n"));
        }
    }
}

#[test]
fn without_marks_ranks_write_for_themselves() {
    let script = "printf same; test $(readlink /proc/$$/fd/1) = $(readlink /proc/$PPID/fd/1)";
    let ended = run(launch("-n 1 --no-prefix", script));
    assert_eq!((ended.status, ended.stdout.as_str()), (Some(0), "same"), "{}", ended.stderr);
}

#[test]
fn a_reader_that_stands_still_does_not_hold_up_the_end() {
    let census = Census::new();
    let script = format!("{}; yes", census.note("rank$RANK"));
    let mut running = Running::start(launch("-n 2 --grace 1", &script));
    let pids = census.wait(2);
    let unread = running.0.stdout.take().expect("piped");
    // Until every pipe on the way is full.
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(running.ended().status, Some(143));
    assert!(since.elapsed() < Duration::from_secs(20));
    assert!(pids.iter().all(|&pid| is_gone(pid)));
    drop(unread);
}

#[test]
fn ranks_learn_that_nobody_reads_any_more() {
    let mut running = Running::start(launch("-n 2", "exec yes"));
    let mut lines = BufReader::new(running.0.stdout.take().expect("piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    drop(lines);
    // As in any pipeline.
    let ended = running.ended();
    assert_eq!(ended.status, Some(141), "{}", ended.stderr);
    assert!(ended.stderr.contains("SIGPIPE"), "{}", ended.stderr);
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let mut command = launch("-n 1", "echo lost");
    command.stdout(std::fs::File::options().write(true).open("/dev/full").expect("there"));
    let ended = run(command);
    assert_eq!(ended.status, Some(1), "{}", ended.stderr);
    let words = "mscclrs: standard output cannot be written: No space left";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
}
