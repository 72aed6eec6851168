//! `cargo xtask environment`: the tables of docs/src/environment.md, made of the registry.

use anyhow::Result;
use mscclrs_env::{TABLE, Variable, foreign, internal};

use crate::page::Page;

const PAGE: Page = Page { command: "environment", path: "docs/src/environment.md" };

/// Writes the tables into the page.
pub(crate) fn write() -> Result<()> {
    PAGE.write(&tables())
}

/// Fails if the page is not what the registry makes.
pub(crate) fn check() -> Result<()> {
    PAGE.check(&tables(), "the tables in crates/env/src")
}

fn tables() -> String {
    let mut text = String::from(
        "## For users\n\n| variable | what it does | allowed | default |\n|---|---|---|---|\n",
    );
    for variable in TABLE {
        let cells = [names(variable), cell(variable.text), cell(&variable.allowed())];
        text.push_str(&format!("| {} | {} |\n", cells.join(" | "), cell(variable.default)));
    }
    text.push_str(
        "\n## Of launchers, libraries and tools\n\n\
         Their owners set them; this is what they are read for.\n\n",
    );
    text.push_str(&plain(foreign::TABLE));
    text.push_str(
        "\n## Set by the project's own programs\n\n\
         For processes that they start, and for nobody else.\n\n",
    );
    text.push_str(&plain(internal::TABLE));
    text
}

fn plain(table: &[&Variable]) -> String {
    let mut text = String::from("| variable | what it is |\n|---|---|\n");
    for variable in table {
        text.push_str(&format!("| {} | {} |\n", names(variable), cell(variable.text)));
    }
    text
}

fn names(variable: &Variable) -> String {
    let ours = format!("`{}`", variable.name);
    variable.alias.map_or(ours.clone(), |alias| format!("{ours}, `{alias}`"))
}

/// A bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_what_the_registry_makes() {
        check().unwrap();
    }

    #[test]
    fn every_variable_has_a_row() {
        let tables = tables();
        for variable in mscclrs_env::registered() {
            assert!(tables.contains(&format!("| `{}`", variable.name)), "{}", variable.name);
        }
        assert!(tables.contains("`MSCCLPP_HOSTID`"));
    }
}
