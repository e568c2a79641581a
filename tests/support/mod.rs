//! What the end-to-end tests share: a sandbox for the real program, plugins compiled on the spot, traces of system
//! calls, and a small client for the server.
//!
//! Nothing here is inherited from the person who runs the tests but `PATH`, and nothing is left behind.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub(crate) mod border;
pub(crate) mod http;
pub(crate) mod plugins;
pub(crate) mod program;
pub(crate) mod replies;
pub(crate) mod server;
pub(crate) mod trace;

use std::path::{Path, PathBuf};

#[allow(unused_imports, reason = "as above")]
pub(crate) use {plugins::*, program::*};

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tensorfold"))
}

/// The folder that holds the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the host lies in the workspace").to_owned()
}

/// The small model of the tests.
pub(crate) fn demo_model() -> PathBuf {
    workspace().join("tests/models/demo")
}

/// A drafter that fits [`demo_model`].
pub(crate) fn demo_drafter() -> PathBuf {
    workspace().join("tests/models/demo-DFlash2")
}

/// A plugin that was built with the workspace, such as `tensorfold_backend_hip`.
pub(crate) fn built_with_the_workspace(library: &str) -> PathBuf {
    let name = format!("lib{library}.so");
    let beside = program().parent().expect("the program lies in a folder");
    let places = [beside.join("deps").join(&name), beside.join(&name)];
    let found = places.iter().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} was not built: it is in none of {places:?}")).clone()
}

/// Text as JSON; says what is there when it is none.
pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("no JSON ({error}):\n{text}"))
}

/// The codes of all findings of a level (`error`, `warning`, `note`) in a document, in their order.
pub(crate) fn findings(document: &serde_json::Value, level: &str) -> Vec<String> {
    let mut codes = Vec::new();
    collect(document, level, &mut codes);
    codes
}

fn collect(value: &serde_json::Value, level: &str, codes: &mut Vec<String>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, level, codes)),
        serde_json::Value::Object(members) => {
            if members.get("level").is_some_and(|found| found == level)
                && let Some(code) = members.get("code").and_then(|code| code.as_str())
            {
                codes.push(code.to_owned());
            }
            members.values().for_each(|member| collect(member, level, codes));
        }
        _ => {}
    }
}
