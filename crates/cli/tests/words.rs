//! What is made of the command's own definition works where it is used: in a shell, as files of man.

use assert_cmd::Command;

fn mscclrs(arguments: &[&str]) -> String {
    let mut command = Command::cargo_bin("mscclrs").expect("built");
    let output = command.args(arguments).output().expect("ran");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What bash offers for the last of these words.
fn offered(script: &str, words: &[&str]) -> Vec<String> {
    let (last, before) = words.split_last().expect("words");
    let program = format!(
        "{script}\nCOMP_WORDS=({} '{last}'); COMP_CWORD={}; _mscclrs mscclrs '{last}' '{}'; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        before.join(" "),
        before.len(),
        before[before.len() - 1],
    );
    let output = Command::new("bash").args(["-c", &program]).output().expect("bash");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    if std::process::Command::new("bash").arg("--version").output().is_err() {
        return;
    }
    let script = mscclrs(&["completion", "bash"]);
    assert!(offered(&script, &["mscclrs", "be"]).contains(&"bench".into()));
    assert_eq!(offered(&script, &["mscclrs", "bench", "allr"]), ["allreduce"]);
    let options = offered(&script, &["mscclrs", "bench", "allreduce", "--o"]);
    assert_eq!(options, ["--op", "--oversubscribe"]);
    let devices = offered(&script, &["mscclrs", "bench", "allreduce", "--device", ""]);
    assert_eq!(devices, ["auto", "cpu", "cuda"]);
}

#[test]
fn pages_are_written_to_a_new_folder_and_each_is_the_one_that_is_printed() {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("share/man1");
    let names = mscclrs(&["man", "--out", out.to_str().expect("text")]);
    let written = std::fs::read_dir(&out).expect("made").count();
    assert_eq!(names.lines().count(), written);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(mscclrs(&["man"]), read("mscclrs.1"));
    assert_eq!(mscclrs(&["man", "bench", "allreduce"]), read("mscclrs-bench-allreduce.1"));
}

#[test]
fn a_reader_that_stops_early_ends_it_without_a_word() {
    // Before it begins: what it writes would find room in the pipe.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("mscclrs"));
    command.args(["completion", "zsh"]).stdout(writer).stderr(std::process::Stdio::piped());
    let output = command.output().expect("ended");
    assert_eq!(output.status.code(), Some(128 + 13));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
