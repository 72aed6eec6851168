//! Pages of which a part is made: what stands between two marks.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::shell::root;

/// A page of the book with a part that `cargo xtask NAME` makes.
pub(crate) struct Page {
    /// The subcommand that makes the part.
    pub(crate) command: &'static str,
    /// The page's file, from the project's folder.
    pub(crate) path: &'static str,
}

impl Page {
    /// Puts the text between the marks.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let old = self.read()?;
        let new = self.replaced(&old, text)?;
        if new != old {
            let path = self.file();
            fs::write(&path, new).with_context(|| path.display().to_string())?;
            println!("{}: written", self.path);
        }
        Ok(())
    }

    /// Fails if something else stands there; `sources` says what the part is made from.
    pub(crate) fn check(&self, text: &str, sources: &str) -> Result<()> {
        let is = self.read()?;
        if let Some(difference) = first_difference(&is, &self.replaced(&is, text)?) {
            bail!(
                "{}: {difference}; change {sources}, run `cargo xtask {}` and commit both",
                self.path,
                self.command
            );
        }
        println!("{} is what {sources} make", self.path);
        Ok(())
    }

    fn file(&self) -> PathBuf {
        root().join(self.path)
    }

    fn read(&self) -> Result<String> {
        fs::read_to_string(self.file()).with_context(|| self.path.to_owned())
    }

    /// The page with other text between its marks.
    pub(crate) fn replaced(&self, page: &str, text: &str) -> Result<String> {
        let (begin, end) = (self.mark("begin"), self.mark("end"));
        let inside = page.split_once(&begin).and_then(|(head, rest)| {
            let (_, tail) = rest.split_once(&end)?;
            Some((head, tail))
        });
        let Some((head, tail)) = inside else {
            bail!("{} lacks the lines `{begin}` and `{end}`", self.path);
        };
        Ok(format!("{head}{begin}\n\n{}\n\n{end}{tail}", text.trim_end()))
    }

    fn mark(&self, which: &str) -> String {
        format!("<!-- made by `cargo xtask {}`: {which} -->", self.command)
    }
}

fn first_difference(is: &str, should: &str) -> Option<String> {
    if is == should {
        return None;
    }
    let (mut old, mut new) = (is.lines(), should.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                let quoted =
                    |line: Option<&str>| line.map_or("nothing".into(), |l| format!("`{l}`"));
                return Some(format!("line {number} is {}, not {}", quoted(old), quoted(new)));
            }
        }
    }
    Some("its line ends differ".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page = Page { command: "thing", path: "docs/src/thing.md" };

    #[test]
    fn text_between_the_marks_is_replaced_and_a_change_is_found_with_its_line() {
        let page = format!("# Title\n\n{}\nold\n{}\nmore\n", PAGE.mark("begin"), PAGE.mark("end"));
        let page = PAGE.replaced(&page, "one\ntwo\n").unwrap();
        assert!(
            page.ends_with("\n\none\ntwo\n\n<!-- made by `cargo xtask thing`: end -->\nmore\n")
        );
        assert_eq!(first_difference(&page, &page), None);
        let difference = first_difference(&page.replace("two", "2"), &page).unwrap();
        assert_eq!(difference, "line 6 is `2`, not `two`");
    }

    #[test]
    fn a_page_without_marks_is_an_error() {
        let error = PAGE.replaced("no marks", "x").unwrap_err().to_string();
        assert!(error.contains("docs/src/thing.md lacks the lines"), "{error}");
    }
}
