//! ptxas: cubins, and what each entry takes of the machine.

use std::path::Path;
use std::process::Command;

use crate::tools::run;
use crate::{Assembler, Error, Result};

/// What one entry takes on one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The entry's name.
    pub entry: String,
    /// Registers a lane.
    pub registers: u32,
    /// Bytes of stack a lane.
    pub stack_bytes: u32,
    /// Bytes that are stored to and loaded from memory for want of registers.
    pub spill_bytes: u32,
}

/// Assembles PTX for one architecture; blocks until done.
pub(crate) fn assemble(
    assembler: &Assembler,
    sm: u32,
    ptx: &Path,
    cubin: &Path,
) -> Result<Vec<Resources>> {
    let mut command = Command::new(&assembler.path);
    command.arg("-v").arg(format!("-arch=sm_{sm}")).arg(ptx).arg("-o").arg(cubin);
    let output = run(&format!("assembling for sm_{sm}"), &mut command)?;
    parse_resources(&output)
}

/// Reads what `ptxas -v` writes.
pub fn parse_resources(output: &str) -> Result<Vec<Resources>> {
    let mut all: Vec<Resources> = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            all.push(Resources {
                entry: rest.split('\'').next().unwrap_or("").to_owned(),
                registers: 0,
                stack_bytes: 0,
                spill_bytes: 0,
            });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        if line.contains(" bytes stack frame") {
            last.stack_bytes = number_before(line, " bytes stack frame")?;
            last.spill_bytes = number_before(line, " bytes spill stores")?
                .max(number_before(line, " bytes spill loads")?);
        } else if line.contains(" registers") && line.contains("Used ") {
            last.registers = number_before(line, " registers")?;
        }
    }
    Ok(all)
}

fn number_before(line: &str, words: &str) -> Result<u32> {
    line.split(words)
        .next()
        .and_then(|before| before.rsplit([' ', ',']).next())
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Error::Module {
            place: "the assembler's report".to_owned(),
            why: format!("no number before `{words}` in `{line}`"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_the_assembler_is_read() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 23 registers, used 1 barriers
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
    64 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, 72 bytes cmem[0]
";
        let all = parse_resources(text).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].entry.as_str(), all[0].registers), ("one", 23));
        assert_eq!((all[1].stack_bytes, all[1].spill_bytes, all[1].registers), (64, 12, 255));
    }

    #[test]
    fn unknown_report_is_an_error() {
        let text = "Compiling entry function 'k' for 'sm_90'\n many bytes stack frame\n";
        assert!(parse_resources(text).is_err());
    }
}
