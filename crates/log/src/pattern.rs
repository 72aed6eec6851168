//! The name of the log's file, which may name host, process and rank.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A name with `%h` for the host, `%p` for the process's number, `%r` for the rank and `%%` for a
/// per cent sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Host,
    Process,
    Rank,
    Text(String),
}

impl FilePattern {
    /// Whether each rank has a file of its own.
    pub fn names_rank(&self) -> bool {
        self.parts.contains(&Part::Rank)
    }

    /// The name for a rank; what no rank says is filed under `none`.
    pub(crate) fn path(&self, host: &str, process: u32, rank: Option<u32>) -> PathBuf {
        let mut name = String::new();
        for part in &self.parts {
            match part {
                // A host's name is no path.
                Part::Host => name.push_str(&host.replace('/', "_")),
                Part::Process => name.push_str(&process.to_string()),
                Part::Rank => match rank {
                    Some(rank) => name.push_str(&rank.to_string()),
                    None => name.push_str("none"),
                },
                Part::Text(text) => name.push_str(text),
            }
        }
        name.into()
    }
}

/// A name with a `%` that means nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAPattern {
    text: String,
    sign: String,
}

impl FromStr for FilePattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<FilePattern, NotAPattern> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut signs = text.chars();
        while let Some(sign) = signs.next() {
            if sign != '%' {
                plain.push(sign);
                continue;
            }
            let part = match signs.next() {
                Some('%') => {
                    plain.push('%');
                    continue;
                }
                Some('h') => Part::Host,
                Some('p') => Part::Process,
                Some('r') => Part::Rank,
                other => {
                    let sign = other.map_or("%".into(), |other| format!("%{other}"));
                    return Err(NotAPattern { text: text.to_owned(), sign });
                }
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(part);
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(FilePattern { parts })
    }
}

impl fmt::Display for NotAPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotAPattern { text, sign } = self;
        write!(
            f,
            "'{sign}' in '{text}' means nothing; allowed are %h for the host, %p for the process, %r \
             for the rank and %% for a per cent sign"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn host_process_and_rank_are_put_in() {
        let pattern: FilePattern = "/tmp/100%%/%h.%p-%r.log".parse().unwrap();
        assert!(pattern.names_rank());
        assert_eq!(pattern.path("gpu/7", 12, Some(3)), Path::new("/tmp/100%/gpu_7.12-3.log"));
        assert_eq!(pattern.path("a", 1, None), Path::new("/tmp/100%/a.1-none.log"));
        let plain: FilePattern = "log".parse().unwrap();
        assert!(!plain.names_rank());
        assert_eq!(plain.path("a", 1, Some(1)), Path::new("log"));
    }

    #[test]
    fn other_signs_are_a_mistake() {
        for (text, sign) in [("a%d", "'%d'"), ("a%", "'%'"), ("%%%H", "'%H'")] {
            let error = text.parse::<FilePattern>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{sign} in '{text}' means nothing; allowed are")));
        }
    }
}
