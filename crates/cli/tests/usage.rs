//! What the command says to wrong input: one sentence that names what was wrong and what is allowed,
//! and exit status 2.

use assert_cmd::Command;

fn mscclrs(arguments: &str) -> Command {
    let mut command = Command::cargo_bin("mscclrs").expect("built");
    command.args(arguments.split_whitespace());
    command
}

/// Command line, and what the sentence holds.
const WRONG: &[(&str, &[&str])] = &[
    ("", &["needs a command", "bench, check, completion, info, kernel, launch, man"]),
    (
        "dance",
        &["no command 'dance';", "allowed are bench, check, completion, info, kernel, launch, man"],
    ),
    ("bnech", &["no command 'bnech' (did you mean 'bench'?); allowed"]),
    ("hepl", &["no command 'hepl' (did you mean 'help'?)"]),
    (
        "allreduce",
        &["'allreduce' (did you mean 'mscclrs bench allreduce' or 'mscclrs check allreduce'?)"],
    ),
    ("--verison", &["no option '--verison' (did you mean '--version'?)", "--help, --version"]),
    ("bench all", &["(did you mean 'allreduce' or 'allgather'?)"]),
    ("bench allreduce --rnaks=2", &["no option '--rnaks' (did you mean '--ranks'?); allowed"]),
    ("bench allreduce --device cdua", &["'cdua' is not allowed (did you mean 'cuda'?)"]),
    ("bench allreduce -d flaot", &["'flaot' is not an element type (did you mean 'float'?)"]),
    ("bench allreduce -o mni", &["'mni' is not an operation (did you mean 'min'?)"]),
    ("bench allreduce --algorithm dirct", &["has no 'dirct' (did you mean 'direct'?)"]),
    ("kernel biuld", &["no command 'biuld' (did you mean 'build'?); allowed is build"]),
    ("bench", &["needs a command", "allreduce, allgather, signal, packet, limits"]),
    ("bench allreduce --device cpu --bare", &["--bare", "2 GPUs"]),
    ("bench limits --ranks 3", &["--ranks: '3'", "between two", "allowed is 2"]),
    ("bench reduce", &["no command 'reduce'", "allreduce, allgather, signal, packet, limits"]),
    ("bench allreduce --fast", &["'--fast'", "-b, -e, -f"]),
    ("bench allreduce 8", &["does not take '8'", "-b, -e, -f"]),
    (
        "bench allreduce --threads=yes",
        &["--threads takes no value", "'yes'", "allowed is --threads"],
    ),
    (
        "bench allreduce --algorithm foo --device cpu",
        &["allreduce has no 'foo'", "allowed are", "mesh"],
    ),
    ("bench allreduce --algorithm mesh:4x33", &["--algorithm: '4x33'", "multiple of 32"]),
    ("bench allreduce -b", &["-b needs a value"]),
    ("bench allreduce -b 8X", &["-b: '8X' is not a size", "64K"]),
    ("bench allgather -e -5", &["-e", "allowed"]),
    ("bench allreduce -e 100000T", &["-e: '100000T' is too large", "at most"]),
    ("bench allreduce -b 8 -b 9", &["-b was given twice"]),
    ("bench allreduce -b 2M -e 1M --device cpu", &["-b: 2M is larger than -e 1M", "allowed"]),
    ("bench allreduce -f 1", &["-f: '1' is not a factor", "2 to"]),
    ("bench allreduce -f 2 -i 8", &["-f and -i exclude each other"]),
    ("bench allreduce -i 0", &["-i: 0 is not a step", "from 1"]),
    ("bench allreduce -n 0", &["-n: '0'", "1 to"]),
    ("bench allreduce -w x", &["-w: 'x'", "0 to"]),
    ("bench allreduce -c -1", &["-c", "allowed"]),
    ("bench allreduce -G 1.5", &["-G: '1.5'", "0 to"]),
    ("bench allreduce -d double", &["-d: 'double' is not an element type", "bfloat16", "all"]),
    ("bench allgather -d half,int4", &["-d: 'int4'", "float16"]),
    ("bench allreduce -o avg", &["-o: 'avg' is not an operation", "sum, min, max"]),
    ("bench allreduce --ranks 0", &["--ranks: '0'", "1 to"]),
    ("bench signal --ranks 3 --device cpu", &["--ranks: '3'", "between two", "allowed is 2"]),
    ("bench packet --ranks two", &["--ranks: 'two'", "between two", "allowed is 2"]),
    ("bench allgather --device cpu -b 8 -e 16", &["-e", "one element a rank on 8", "32 bytes"]),
    ("bench allreduce --device cpu -b 1 -e 1 -d all", &["-e", "8 ranks", "sizes from 2 bytes"]),
    ("bench allreduce --device cpu -i 1 -e 1G", &["-i: 1073741817 sizes", "at most 100000"]),
    (
        "bench allgather --device cpu --algorithm one-shot-ll8",
        &["--algorithm: allgather", "direct"],
    ),
    ("bench allgather --device cuda --ranks 2 --bare", &["cuda", "allowed"]),
    ("bench allreduce --device cpu --json", &["--json needs a value"]),
    ("bench allreduce --device cpu --json /tmp", &["--json: '/tmp'", "directory"]),
    ("bench allreduce --device cpu --json a.svg --plot ./a.svg", &["--plot", "file of --json"]),
    ("bench allreduce --device cpu -b 1T -e 1T", &["-e: 1T", "are free; allowed are sizes up to"]),
    ("bench allreduce --device cpu -b 1T --threads", &["-b: 1T", "are free"]),
    ("bench packet -n 0", &["-n: '0' is not a number of round trips", "1 to"]),
    ("bench allreduce --device gpu", &["--device: 'gpu'", "auto, cpu, cuda"]),
    ("bench allreduce --buffers heap", &["--buffers: 'heap'", "symmetric, plain"]),
    ("bench allreduce --compare mpi", &["--compare: 'mpi'", "nccl"]),
    ("bench allreduce --device cpu --compare nccl", &["--compare", "--device cuda"]),
    ("bench allreduce --plot out.png", &["--plot: 'out.png'", ".svg"]),
    ("check", &["mscclrs check needs a command; allowed are allreduce, allgather, -- COMMAND"]),
    ("check --", &["mscclrs check needs a command; allowed are"]),
    ("check cargo test", &["no command 'cargo'; allowed are allreduce, allgather, -- COMMAND"]),
    ("check alreduce", &["no command 'alreduce' (did you mean 'allreduce'?)"]),
    ("check allreduce -- true", &["does not take 'true'"]),
    ("check --mode weka -- true", &["--mode: 'weka' is not allowed (did you mean 'weak'?)", "all"]),
    ("check --mode checked,wek allgather", &["--mode: 'wek' is not allowed", "checked, weak"]),
    ("check allreduce --schedule randm", &["(did you mean 'random'?); allowed are random"]),
    ("check --seeds 0 -- true", &["--seeds: '0' is not a number of seeds", "1 to"]),
    ("check --seeds 2 --seeds 3 -- true", &["--seeds was given twice"]),
    ("check --first-seed -1 -- true", &["--first-seed: '-1' is not a seed; allowed are 0 to"]),
    (
        "check --first-seed 18446744073709551615 -- true",
        &["--first-seed: 10 seeds from", "allowed are 0 to 18446744073709551605"],
    ),
    ("check --time-limit 0 -- true", &["--time-limit: '0' is not a time limit", "0.001 to"]),
    ("check --time-limit 5 allreduce", &["--time-limit is for a command; allowed is"]),
    ("check allreduce --sedes 3", &["no option '--sedes' (did you mean '--seeds'?)"]),
    ("check --json /nowhere/x -- true", &["--json: '/nowhere/x'", "folder"]),
    ("check --trace /nowhere/x -- true", &["--trace: '/nowhere/x'", "folder"]),
    ("check --json a --trace ./a -- true", &["--trace: names the file of --json"]),
    ("check allreduce --algorithm dirct", &["has no 'dirct' (did you mean 'direct'?)"]),
    ("check allgather --algorithm mesh:2x33", &["--algorithm: '2x33'", "multiple of 32"]),
    ("check allreduce --ranks 1", &["--ranks: '1'", "2 to 64"]),
    ("check allreduce -b 2K -e 1K", &["-b: 2K is larger than -e 1K"]),
    ("check allreduce -e 1G", &["-e: 1G is too much for a simulation", "16M"]),
    ("check allgather -e 8", &["-e: no size of this check", "on 3 ranks", "12 bytes"]),
    ("completion", &["completion needs <SHELL>; allowed are bash, elvish, fish"]),
    ("completion fsh", &["<SHELL>: 'fsh' is not allowed (did you mean 'fish'?); allowed are bash"]),
    ("completion tcsh", &["<SHELL>: 'tcsh' is not allowed; allowed are bash"]),
    ("man bech", &["mscclrs has no command 'bech' (did you mean 'bench'?)"]),
    ("man bench alreduce", &["mscclrs bench has no command 'alreduce' (did you mean"]),
    ("man bench --out x", &["<COMMAND> and --out exclude each other"]),
    ("man --out /proc/nobody", &["--out: '/proc/nobody' cannot be written", "a folder"]),
    ("kernel build", &["kernel build needs <CRATE>"]),
    ("kernel build /nowhere", &["'/nowhere' is not a crate", "/nowhere/Cargo.toml"]),
    ("kernel build ../../examples", &["no kernels", "mscclrs-device", "kernels!"]),
    ("kernel build ../../examples/ping_pong --arch 91", &["--arch: '91'", "allowed are 80, 86"]),
    (
        "bench allreduce --device cpu --json /nowhere/x.json",
        &["--json: '/nowhere/x.json'", "folder"],
    ),
];

#[test]
fn wrong_input_is_answered_by_one_sentence_and_status_2() {
    for (arguments, words) in WRONG {
        let output = mscclrs(arguments).output().expect("ran");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments}: {text}");
        assert!(output.stdout.is_empty(), "{arguments}");
        for word in *words {
            assert!(text.contains(word), "{arguments}: {text:?} lacks {word:?}");
        }
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [
        "--help",
        "bench --help",
        "bench allreduce --help",
        "check --help",
        "check allgather -h",
        "man -h",
    ] {
        let output = mscclrs(arguments).output().expect("ran");
        assert_eq!(output.status.code(), Some(0), "{arguments}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: mscclrs"), "{arguments}");
    }
    let output = mscclrs("--version").output().expect("ran");
    assert_eq!(output.stdout, format!("mscclrs {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
}

#[test]
fn every_option_is_explained() {
    let output = mscclrs("bench allreduce --help").output().expect("ran");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for option in ["-b", "-e", "-f", "-i", "-n", "-w", "-c", "-d", "-o", "-G"] {
        assert!(text.contains(&format!("{option}, --")), "{option}");
    }
    assert!(!text.contains("inject"), "the fault is for tests only");
}

/// Environment, command line, and what the sentence holds.
type Launched = (&'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

const LAUNCHED: &[Launched] = &[
    (&[("MSCCLRS_RANK", "1")], "bench allreduce", &["MSCCLRS_WORLD_SIZE is not set"]),
    (
        &[("MSCCLRS_RANK", "2"), ("MSCCLRS_WORLD_SIZE", "2")],
        "bench allreduce",
        &["MSCCLRS_RANK=2", "below MSCCLRS_WORLD_SIZE=2"],
    ),
    (
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a b"), ("MASTER_PORT", "1234")],
        "bench allreduce",
        &["MASTER_ADDR=a b"],
    ),
    (
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MSCCLRS_ADDRESS", "here")],
        "bench allreduce",
        &["MSCCLRS_ADDRESS=here", "port is missing"],
    ),
    (&[("RANK", "0"), ("WORLD_SIZE", "2")], "bench allreduce", &["MSCCLRS_ADDRESS=host:port"]),
    (&[("RANK", "0"), ("WORLD_SIZE", "2")], "bench allreduce --ranks 8", &["--ranks: 8", "is 2"]),
    (&[("RANK", "0"), ("WORLD_SIZE", "2")], "bench allreduce --threads", &["--threads", "process"]),
    (&[("RANK", "0"), ("WORLD_SIZE", "4")], "bench signal", &["torchrun started 4 ranks", "is 2"]),
    (
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", NO_HOST), ("MASTER_PORT", "1234")],
        "bench allreduce",
        &[NO_HOST, ":1235", "is not known", "MASTER_ADDR"],
    ),
    (
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MSCCLRS_ADDRESS", "no-such-interface:127.0.0.1:5")],
        "bench allreduce",
        &["network interface"],
    ),
];

/// No resolver is asked for a name with so long a part.
const NO_HOST: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

#[test]
fn wrong_launches_are_answered_by_one_sentence_and_status_2() {
    for (environment, arguments, words) in LAUNCHED {
        let output = mscclrs(&format!("{arguments} --device cpu"))
            .envs(environment.iter().copied())
            .output()
            .expect("ran");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{environment:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{environment:?}: {text}");
        for word in *words {
            assert!(text.contains(word), "{environment:?}: {text:?} lacks {word:?}");
        }
    }
}

#[test]
fn every_variable_is_checked_before_ranks_start() {
    for variable in mscclrs_core::env::TABLE {
        for threads in ["", "--threads"] {
            // Nothing is wrong as a host's id, as the name of a new file, nor as a path that nobody
            // looks at.
            let any = [
                "MSCCLRS_DEBUG_FILE",
                "MSCCLRS_DEVICE_RUSTC",
                "MSCCLRS_HOSTID",
                "MSCCLRS_NCCL_LIBRARY",
            ];
            if any.contains(&variable.name) {
                continue;
            }
            let value = "=,wrong";
            let output = mscclrs(&format!("bench allreduce --device cpu -e 8 {threads}"))
                .env(variable.name, value)
                .output()
                .expect("ran");
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{}: {text}", variable.name);
            assert_eq!(text.lines().count(), 1, "{text}");
            let shown = if variable.name == "MSCCLRS_SECRET" { "" } else { value };
            assert!(text.contains(variable.name) && text.contains(shown), "{text}");
            assert!(text.contains("allowed") || text.contains("write host:port"), "{text}");
            assert!(output.stdout.is_empty());
        }
    }
}

/// Who marks the ranks that it starts, as this program does.
fn mark(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let behind = stat.rsplit(") ").next().expect("fields");
    format!("{pid}@{}", behind.split_whitespace().nth(19).expect("when it began"))
}

#[test]
fn a_rank_never_starts_ranks() {
    let output = mscclrs("bench allreduce --device cpu --ranks 2")
        .env("MSCCLRS_BENCH_RANK", mark(std::process::id()))
        .output()
        .expect("ran");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a rank tried to start ranks"));
}

#[test]
fn what_an_earlier_run_left_in_the_environment_means_nothing() {
    let id = "mscclrs1:30313233343536373839616263646566@127.0.0.1:5";
    for left in ["1".to_owned(), mark(1), "nonsense".to_owned()] {
        let output = mscclrs("bench allreduce --device cpu --ranks 2 -e 8 -n 1")
            .env("MSCCLRS_BENCH_RANK", &left)
            .env("MSCCLRS_BENCH_RENDEZVOUS", id)
            .output()
            .expect("ran");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{left}: {text}");
    }
}

#[test]
fn ranks_as_processes_are_not_simulated_one_by_one() {
    let run = |threads: &str| {
        mscclrs(&format!("bench allreduce --device cpu --ranks 2 -b 64 -e 64 -n 1 -w 0 {threads}"))
            .env("MSCCLRS_SIM", "checked,seed=3")
            .output()
            .expect("ran")
    };
    let refused = run("");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("MSCCLRS_SIM=checked,seed=3") && text.contains("--threads"), "{text}");
    let simulated = run("--threads");
    assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
}
