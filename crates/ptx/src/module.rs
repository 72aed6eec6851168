//! A PTX file as its entries: found by the text that rustc writes, changed only between an entry's
//! parameters and its body.

use crate::{Error, Result};

/// One entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Layout hash of its parameters, from the global `abi_NAME`.
    pub abi: u64,
    /// Most lanes a block, from the global `threads_NAME`.
    pub max_threads: u32,
    /// The text between its braces.
    pub body: String,
}

/// A PTX file with launch bounds in place.
#[derive(Clone, Debug)]
pub struct Module {
    /// The whole text.
    pub text: String,
    /// Its entries, in the order of the file.
    pub entries: Vec<Entry>,
}

impl Module {
    /// Reads what rustc wrote: gives each entry the `.maxntid` that its `threads_NAME` asks for, and
    /// takes these globals out, since nothing reads them at run time.
    pub fn from_compiler(text: &str) -> Result<Module> {
        let mut out = String::with_capacity(text.len() + 4096);
        let mut names = Vec::new();
        let mut current: Option<String> = None;
        for line in text.lines() {
            if let Some(name) = entry_name(line) {
                names.push(name.to_owned());
                current = Some(name.to_owned());
            }
            if global_name(line).is_some_and(|name| name.starts_with("threads_")) {
                continue;
            }
            if line == "{"
                && let Some(name) = current.take()
            {
                let threads = global_value(text, &format!("threads_{name}"))?;
                // One resident block is enough to ask for: without it the assembler guesses that
                // more are wanted and spills registers to fit them.
                out.push_str(&format!(".maxntid {threads}, 1, 1\n.minnctapersm 1\n"));
            }
            out.push_str(line);
            out.push('\n');
        }
        let entries = names
            .into_iter()
            .map(|name| {
                let threads = global_value(text, &format!("threads_{name}"))?;
                Ok(Entry {
                    abi: global_value(text, &format!("abi_{name}"))?,
                    max_threads: u32::try_from(threads).map_err(|_| Error::Module {
                        place: format!("threads_{name}"),
                        why: format!("{threads} is no number of lanes"),
                    })?,
                    body: body(&out, &name)?.to_owned(),
                    name,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Module { text: out, entries })
    }

    /// The entry of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

fn entry_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix(".visible .entry ")?;
    Some(rest.split('(').next().unwrap_or(rest).trim())
}

/// The name that a line `.visible .global .align N .TYPE NAME[..] = ..;` defines.
fn global_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix(".visible .global ")?;
    let declared = rest.split(['=', ';']).next()?.trim();
    let name = declared.rsplit(' ').next()?;
    Some(name.split('[').next().unwrap_or(name))
}

/// The number in a global, written as one number or as little-endian bytes.
fn global_value(text: &str, name: &str) -> Result<u64> {
    let wrong = |why: &str| Error::Module { place: name.to_owned(), why: why.to_owned() };
    let line = text.lines().find(|line| global_name(line) == Some(name)).ok_or_else(|| {
        wrong(
            "there is no such global; declare entries with the macro `kernels!` of mscclrs-device",
        )
    })?;
    let Some((_, value)) = line.split_once('=') else {
        // A global without a value is zero.
        return Ok(0);
    };
    let value = value.trim().trim_end_matches(';').trim();
    let bytes = value.strip_prefix('{').and_then(|v| v.strip_suffix('}'));
    let Some(bytes) = bytes else {
        return value.parse().map_err(|_| wrong("its value is not a number"));
    };
    let bytes = bytes
        .split(',')
        .map(|byte| byte.trim().parse::<u8>())
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|_| wrong("its value is not a list of bytes"))?;
    if bytes.len() > 8 {
        return Err(wrong("it has more than 8 bytes"));
    }
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn body<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let wrong =
        || Error::Module { place: name.to_owned(), why: "the entry has no body".to_owned() };
    let start = text.find(&format!(".entry {name}(")).ok_or_else(wrong)?;
    let rest = &text[start..];
    let open = rest.find("\n{\n").ok_or_else(wrong)?;
    let close = rest[open..].find("\n}").ok_or_else(wrong)?;
    Ok(&rest[open + 3..open + close])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TEXT: &str = "\
.version 8.2
.target sm_90
.address_size 64

.visible .global .align 8 .b8 abi_one[8] = {1, 2, 0, 0, 0, 0, 0, 128};
.visible .global .align 4 .u32 threads_one = 1024;
.visible .global .align 8 .b8 abi_two[8];
.visible .global .align 4 .b8 threads_two[4] = {0, 1, 0, 0};

.visible .entry one(
\t.param .align 8 .b8 one_param_0[8]
)
{
\tret;
}
.visible .entry two(
\t.param .align 8 .b8 two_param_0[8]
)
{
\tbarrier.sync \t0;
\tret;
}
";

    #[test]
    fn entries_get_their_launch_bounds() {
        let module = Module::from_compiler(TEXT).unwrap();
        let one = module.entry("one").unwrap();
        assert_eq!((one.abi, one.max_threads), (0x8000_0000_0000_0201, 1024));
        let two = module.entry("two").unwrap();
        assert_eq!((two.abi, two.max_threads), (0, 256));
        assert!(module.text.contains("one_param_0[8]\n)\n.maxntid 1024, 1, 1\n.minnctapersm 1\n{"));
        assert!(module.text.contains("two_param_0[8]\n)\n.maxntid 256, 1, 1\n.minnctapersm 1\n{"));
        assert!(!module.text.contains("threads_"));
        assert!(module.text.contains("abi_one"));
    }

    #[test]
    fn bodies_are_told_apart() {
        let module = Module::from_compiler(TEXT).unwrap();
        assert_eq!(module.entry("one").unwrap().body.trim(), "ret;");
        assert!(module.entry("two").unwrap().body.contains("barrier.sync"));
    }

    #[test]
    fn entry_without_its_globals_is_named() {
        let text = TEXT.replace("threads_two", "threads_too");
        let error = Module::from_compiler(&text).unwrap_err().to_string();
        assert!(error.contains("threads_two"), "{error}");
    }
}
