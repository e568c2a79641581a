//! Reference pages of the book against the tables they describe.

use std::path::Path;

use tensorfold::plugins::environment::KNOWN_VARIABLES;
use tensorfold::plugins::lifecycle::Code;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_code_of_the_life_cycle_is_in_the_reference_with_its_state() {
    let page = page("reference/exit-codes.md");
    for code in Code::ALL {
        let row = format!("| `{code}` | {} |", code.state());
        assert!(page.contains(&row), "docs/src/reference/exit-codes.md lacks the row {row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, Code::ALL.len(), "docs/src/reference/exit-codes.md has codes that do not exist");
}

#[test]
fn every_variable_that_is_read_is_in_the_reference() {
    let page = page("reference/environment.md");
    for name in KNOWN_VARIABLES {
        assert!(page.contains(&format!("`{name}`")), "docs/src/reference/environment.md lacks {name}");
    }
}

#[test]
fn every_file_that_the_walk_through_the_code_names_exists() {
    let page = page("walk.md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|code| code.ends_with(".rs")).collect();
    assert!(files.len() > 30, "the page names its files as code: {files:?}");
    for file in files {
        assert!(root.join(file).is_file(), "docs/src/walk.md names {file}, which does not exist");
    }
}
