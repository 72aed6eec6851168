//! The rules of device code, as searches over PTX and over what ptxas reports.
//!
//! Each rule answers a way in which correct-looking Rust becomes wrong or slow machine code without a
//! word from the compiler. They look at the produced text, because that is where it shows.

use std::fmt;

use crate::{Module, Resources};

/// One broken rule at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The entry, or "module".
    pub place: String,
    /// The instruction or figure that was found.
    pub found: String,
    /// The rule and what to do.
    pub rule: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.place, self.found, self.rule)
    }
}

/// The kernel whose barriers are counted: it has two, around divergent branches.
pub const SENTINEL: &str = "contract";

const FUNCTIONS: &str = "a function besides the entries: a panic, a bounds check, a division by a \
    run-time zero or something that was not inlined; index through pointers and mark helpers #[inline(always)]";
const TRAPS: &str = "a trap: kernels end early by returning an error, they do not kill the context";
const ATOMICS: &str = "an atomic without order or scope is relaxed and for one GPU; use the scoped \
    atomics of mscclrs-device";
const READ_ONLY: &str = "a read-only load never sees what another GPU writes; reach device memory \
    through mscclrs-device's pointers, not through references";
const DIVISIONS: &str = "a division at run time takes dozens of instructions; let the host divide";
const LOCAL: &str =
    "local memory: an array is indexed at run time; use ParamArray or fixed indexes";
const BARRIERS: &str = "the compiler copied or dropped a barrier; this compiler cannot be used";
const STACK: &str = "a stack frame means local memory in the kernel; index arrays by constants";
const SPILLS: &str =
    "registers spill to memory; the kernel keeps too much alive for its block size";
const NOT_ASSEMBLED: &str = "the assembler reports nothing for this entry";

/// All searches over one module's text.
pub fn check_module(module: &Module) -> Vec<Violation> {
    let mut found = Vec::new();
    found.extend(functions(&module.text));
    for entry in &module.entries {
        for instruction in instructions(&entry.body) {
            if let Some(rule) = broken_by(instruction) {
                found.push(violation(&entry.name, instruction, rule));
            }
        }
        if entry.name == SENTINEL {
            let barriers = barriers(&entry.body);
            if barriers != 2 {
                found.push(violation(
                    SENTINEL,
                    &format!("{barriers} barriers, 2 in the source"),
                    BARRIERS,
                ));
            }
        }
    }
    found
}

/// What ptxas reported for the entries of a module.
pub fn check_resources(module: &Module, resources: &[Resources]) -> Vec<Violation> {
    let mut found = Vec::new();
    for entry in &module.entries {
        let Some(used) = resources.iter().find(|used| used.entry == entry.name) else {
            found.push(violation(&entry.name, "no report", NOT_ASSEMBLED));
            continue;
        };
        if used.stack_bytes > 0 {
            found.push(violation(
                &entry.name,
                &format!("{} bytes of stack", used.stack_bytes),
                STACK,
            ));
        }
        if used.spill_bytes > 0 {
            found.push(violation(
                &entry.name,
                &format!("{} bytes of spills", used.spill_bytes),
                SPILLS,
            ));
        }
    }
    found
}

/// Functions that are not entries, defined or declared.
fn functions(text: &str) -> Vec<Violation> {
    text.lines()
        .filter(|line| line.split_whitespace().any(|word| word == ".func"))
        .map(|line| violation("module", line.trim(), FUNCTIONS))
        .collect()
}

/// The rule that an instruction breaks by itself.
fn broken_by(instruction: &str) -> Option<&'static str> {
    let code = opcode(instruction);
    let mut parts = code.split('.');
    let name = parts.next().unwrap_or("");
    let parts: Vec<&str> = parts.collect();
    let has = |words: &[&str]| parts.iter().any(|part| words.contains(part));
    match name {
        "atom" | "red" if !has(&["relaxed", "acquire", "release", "acq_rel"]) => Some(ATOMICS),
        "atom" | "red" if !has(&["cta", "cluster", "gpu", "sys"]) => Some(ATOMICS),
        "ld" if has(&["nc"]) => Some(READ_ONLY),
        "ldu" => Some(READ_ONLY),
        "ld" | "st" if has(&["local"]) => Some(LOCAL),
        "" if has(&["local"]) => Some(LOCAL),
        "div" | "rem" if !has(&["f16", "f32", "f64", "bf16"]) => Some(DIVISIONS),
        "trap" | "brkpt" => Some(TRAPS),
        "call" => Some(FUNCTIONS),
        _ => None,
    }
}

/// Barriers of a block in an entry's text.
fn barriers(body: &str) -> usize {
    instructions(body)
        .map(opcode)
        .filter(|code| code.starts_with("bar.sync") || code.starts_with("barrier."))
        .count()
}

/// The statements of a body, without comments, labels and guards.
fn instructions(body: &str) -> impl Iterator<Item = &str> {
    body.lines()
        .map(|line| line.split("//").next().unwrap_or("").trim())
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// The opcode of a statement: without braces, labels and the predicate before it.
fn opcode(instruction: &str) -> &str {
    let mut rest = instruction.trim_start_matches(['{', '}', ' ', '\t']);
    if let Some(after) = rest.strip_prefix('$')
        && let Some((_, after)) = after.split_once(':')
    {
        rest = after.trim_start();
    }
    if rest.starts_with('@') {
        rest = rest.split_once(char::is_whitespace).map_or("", |(_, after)| after.trim_start());
    }
    rest.split(char::is_whitespace).next().unwrap_or("")
}

fn violation(place: &str, found: &str, rule: &'static str) -> Violation {
    Violation { place: place.to_owned(), found: found.to_owned(), rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;

    fn module(name: &str, body: &str) -> Module {
        Module {
            text: format!(".visible .entry {name}()\n{{\n{body}\n}}\n"),
            entries: vec![Entry { name: name.into(), abi: 0, max_threads: 1, body: body.into() }],
        }
    }

    fn rules(body: &str) -> Vec<&'static str> {
        check_module(&module("k", body)).into_iter().map(|v| v.rule).collect()
    }

    #[test]
    fn functions_are_found() {
        let mut with = module("k", "ret;");
        with.text.push_str(".visible .func panic_fmt()\n");
        assert_eq!(check_module(&with)[0].rule, FUNCTIONS);
        with.text = with.text.replace(".visible .func", ".extern .func");
        assert_eq!(check_module(&with).len(), 1);
        assert_eq!(rules("call.uni panic_fmt, ();"), [FUNCTIONS]);
    }

    #[test]
    fn atomics_need_order_and_scope() {
        assert_eq!(rules("atom.global.add.u32 %r1, [%rd1], 1;"), [ATOMICS]);
        assert_eq!(rules("@%p1 red.global.add.u32 [%rd1], 1;"), [ATOMICS]);
        assert_eq!(rules("red.release.global.add.u64 [%rd1], 1;"), [ATOMICS]);
        assert_eq!(rules("red.sys.global.add.u64 [%rd1], 1;"), [ATOMICS]);
        assert!(rules("red.release.sys.global.add.u64 [%rd1], 1;").is_empty());
        assert!(rules("$L__BB0_1: atom.acq_rel.gpu.global.cas.b32 %r1, [%rd1], 0, 1;").is_empty());
        assert!(rules("redux.sync.add.s32 %r1, %r2, -1;").is_empty());
    }

    #[test]
    fn read_only_loads_are_found() {
        assert_eq!(rules("ld.global.nc.u32 %r1, [%rd1];"), [READ_ONLY]);
        assert_eq!(rules("{ ld.global.nc.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1]; }"), [READ_ONLY]);
        assert!(rules("ld.relaxed.sys.global.u32 %r1, [%rd1];").is_empty());
    }

    #[test]
    fn divisions_of_integers_are_found() {
        for code in ["div.u32", "div.s32", "rem.u64", "rem.s16"] {
            assert_eq!(rules(&format!("{code} %r1, %r2, %r3;")), [DIVISIONS]);
        }
        assert!(rules("div.rn.f32 %f1, %f2, %f3;").is_empty());
    }

    #[test]
    fn local_memory_is_found() {
        assert_eq!(rules(".local .align 8 .b8 __local_depot0[64];"), [LOCAL]);
        assert_eq!(rules("st.local.u32 [%rd1], %r1;"), [LOCAL]);
        assert!(rules("st.shared.u32 [%r1], %r1;").is_empty());
    }

    #[test]
    fn traps_are_found_but_not_in_comments() {
        assert_eq!(rules("trap;"), [TRAPS]);
        assert!(rules("// trap;\nmov.u32 %r1, 1; // ld.global.nc").is_empty());
    }

    #[test]
    fn sentinel_has_two_barriers() {
        let two = "barrier.sync 0;\nmov.b32 %r1, 1;\nbarrier.sync 0;";
        assert!(check_module(&module(SENTINEL, two)).is_empty());
        for wrong in ["barrier.sync 0;", &format!("{two}\nbar.sync 0;")] {
            assert_eq!(check_module(&module(SENTINEL, wrong))[0].rule, BARRIERS);
        }
        assert!(rules("bar.warp.sync -1;").is_empty());
        assert!(check_module(&module(SENTINEL, &format!("{two}\nbar.warp.sync -1;"))).is_empty());
    }

    #[test]
    fn stack_and_spills_are_found() {
        let module = module("k", "ret;");
        let used = |stack, spill| Resources {
            entry: "k".into(),
            registers: 8,
            stack_bytes: stack,
            spill_bytes: spill,
        };
        assert!(check_resources(&module, &[used(0, 0)]).is_empty());
        assert_eq!(check_resources(&module, &[used(8, 0)])[0].rule, STACK);
        assert_eq!(check_resources(&module, &[used(0, 8)])[0].rule, SPILLS);
        assert_eq!(check_resources(&module, &[])[0].rule, NOT_ASSEMBLED);
    }
}
