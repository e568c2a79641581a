//! The C header is generated and current, and C and C++ compilers agree with Rust about it.
//!
//! `TENSORFOLD_UPDATE=1 cargo test -p tensorfold-plugin-api --test header` rewrites it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tensorfold_plugin_api::abi::layout::struct_layouts;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    root().join("include/tensorfold_plugin.h")
}

const PREAMBLE: &str = "\
// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The contract between tensorfold and its backend plugins, for C and C++.
// Generated from the Rust crate tensorfold-plugin-api; do not edit.
//
// A plugin exports two data symbols, declared at the end of this file: its
// manifest and its descriptor. Link with hidden visibility and export nothing
// else. Functions that are C++ must be noexcept: no exception may cross.
//
// - Structs passed by pointer begin with struct_size, the size that the sender
//   knows. Refuse a smaller one than you need, accept a larger one.
// - Strings are pointer and length, UTF-8, without a terminating zero. A null
//   pointer with length 0 is an empty string or list.
// - Arguments are borrowed for the duration of the call unless the field says
//   otherwise. Who allocates frees.
// - Functions return a status TF_STATUS_*. Other than TF_STATUS_OK, they fill
//   the caller's TfError, which the caller hands to release_error once.
// - Thread classes: [any] from any thread, also concurrently; [engine] one call
//   at a time for each engine; [control] one call at a time for the whole
//   plugin, from one fixed thread.
// - Handles are never 0 and never used again.
// - Nothing happens before init: no constructor opens, starts or prints.

#ifndef TENSORFOLD_PLUGIN_H
#define TENSORFOLD_PLUGIN_H

";

const EXPORTS: &str = r#"
#if defined(__APPLE__)
#define TENSORFOLD_MANIFEST_PLACE "__DATA,__tf_manifest"
#else
#define TENSORFOLD_MANIFEST_PLACE ".tensorfold.manifest"
#endif

/**
 * Marks the definition of the manifest, so that a host finds it without loading the library:
 *
 *     TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {
 *     #include "manifest.inc" // the bytes of the TOML file, as made by `xxd -i < FILE`
 *     };
 */
#define TENSORFOLD_MANIFEST __attribute__((section(TENSORFOLD_MANIFEST_PLACE), used))

/** Marks the definition of the descriptor. */
#define TENSORFOLD_EXPORT __attribute__((used))

#ifdef __cplusplus
extern "C" {
#endif

// Both are visible by these declarations; a definition need not say so again.

/** The manifest's TOML. */
extern __attribute__((visibility("default"))) const unsigned char TENSORFOLD_PLUGIN_MANIFEST[];

/** What the plugin states about itself. */
extern __attribute__((visibility("default"))) const TfDescriptor tensorfold_plugin_v1;

#ifdef __cplusplus
} // extern "C"
#endif

#ifdef __cplusplus
#define TENSORFOLD_ASSERT(condition, text) static_assert(condition, text)
#else
#define TENSORFOLD_ASSERT(condition, text) _Static_assert(condition, text)
#endif
"#;

fn assertions() -> String {
    let mut text = String::from("\n#if UINTPTR_MAX == UINT64_MAX\n");
    for layout in struct_layouts() {
        let name = layout.name;
        writeln!(text, "TENSORFOLD_ASSERT(sizeof({name}) == {}, \"size of {name}\");", layout.size).unwrap();
        for (field, offset) in layout.fields {
            writeln!(
                text,
                "TENSORFOLD_ASSERT(offsetof({name}, {field}) == {offset}, \"place of {name}.{field}\");"
            )
            .unwrap();
        }
    }
    text.push_str("#endif\n\n#endif // TENSORFOLD_PLUGIN_H\n");
    text
}

fn generate() -> String {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["mod", "status", "value", "descriptor", "host", "backend", "round", "engine", "drafters"] {
        builder = builder.with_src(root().join(format!("src/abi/{file}.rs")));
    }
    let mut bytes = Vec::new();
    builder.generate().unwrap().write(&mut bytes);
    let body = String::from_utf8(bytes).unwrap();
    // Rust's link brackets mean nothing in C.
    let body = body.replace("[`", "`").replace("`]", "`");
    format!("{PREAMBLE}{}\n{EXPORTS}{}", body.trim(), assertions())
}

#[test]
fn the_committed_header_is_what_the_crate_generates() {
    let generated = generate();
    if std::env::var_os("TENSORFOLD_UPDATE").is_some() {
        std::fs::write(header_path(), &generated).unwrap();
    }
    let committed = std::fs::read_to_string(header_path()).unwrap_or_default();
    assert!(
        committed == generated,
        "include/tensorfold_plugin.h is out of date; \
         run TENSORFOLD_UPDATE=1 cargo test -p tensorfold-plugin-api --test header"
    );
}

fn compile(compiler: &str, standard: &str, flags: &[&str], source: &str) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(if compiler == "g++" { "check.cpp" } else { "check.c" });
    std::fs::write(&file, source).unwrap();
    Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
        .args(flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg(&file)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is needed to check the header: {error}"))
}

#[test]
fn c_and_cpp_compilers_find_every_field_where_rust_has_it() {
    let source = "#include \"tensorfold_plugin.h\"\nint main(void) { return TF_STATUS_OK; }\n";
    for (compiler, standard) in [("gcc", "-std=c11"), ("g++", "-std=c++17")] {
        let output = compile(compiler, standard, &[], source);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn c_and_cpp_define_the_exported_symbols_without_a_warning() {
    // g++ takes no visibility with the definition of a constant, so the declarations give it.
    let source = "#include \"tensorfold_plugin.h\"\n\
                  #ifdef __cplusplus\nextern \"C\" {\n#endif\n\
                  TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {'#'};\n\
                  TENSORFOLD_EXPORT const TfDescriptor tensorfold_plugin_v1 = {TF_PLUGIN_MAGIC};\n\
                  #ifdef __cplusplus\n}\n#endif\n";
    for (compiler, standard) in [("gcc", "-std=c11"), ("g++", "-std=c++17")] {
        let output = compile(
            compiler,
            standard,
            &["-fvisibility=hidden", "-fPIC", "-Wno-missing-field-initializers"],
            source,
        );
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_field_in_another_place_fails_the_vendors_build() {
    let source = "#include \"tensorfold_plugin.h\"\n\
                  TENSORFOLD_ASSERT(offsetof(TfError, message) == 4, \"moved\");\n\
                  int main(void) { return 0; }\n";
    let output = compile("gcc", "-std=c11", &[], source);
    assert!(!output.status.success(), "the assertion macro asserts nothing");
}
