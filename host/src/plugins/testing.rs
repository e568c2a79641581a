//! Small libraries for tests, made with the system's C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The manifest that [`Library`] embeds for `id`.
pub(crate) fn manifest_bytes(id: &str) -> Vec<u8> {
    manifest_text(id).into_bytes()
}

/// As [`manifest_bytes`], as text.
pub(crate) fn manifest_text(id: &str) -> String {
    // Names of backends have at least two letters.
    let backend = match id.strip_prefix("backend-").unwrap_or(id) {
        short if short.len() < 2 => format!("{short}{short}"),
        long => long.to_owned(),
    };
    format!(
        r#"manifest = 1

[plugin]
id = "{id}"
version = "1.2.3"
engine_name = "{upper}"
backend = "{backend}"
library = "libtensorfold_{underscored}.so"
vendor = "tests"
license = "Apache-2.0"
report = "https://example.invalid/report"

[abi]
major = 0
minor = 1
host = ">=0.1, <0.2"
interfaces = ["tensorfold.backend/1", "tensorfold.engine/1"]
host_interfaces = ["tensorfold.host/1"]

[target]
os = "linux"
arch = "{arch}"
libc = "gnu"

[[device]]
kind = "cpu"

[caps]
formats = ["bf16"]

[[family]]
model_type = "qwen3_5"
"#,
        upper = backend.to_uppercase(),
        underscored = id.replace('-', "_"),
        arch = std::env::consts::ARCH,
    )
}

/// A shared library that is built with `cc`.
pub(crate) struct Library {
    id: String,
    source: Option<String>,
    manifest: Vec<u8>,
    flags: Vec<String>,
    extra: String,
}

impl Library {
    /// A library with the manifest of `id` and an empty descriptor.
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.into(),
            source: None,
            manifest: manifest_bytes(id),
            flags: Vec::new(),
            extra: String::new(),
        }
    }

    /// Replaces the whole source.
    pub(crate) fn source(mut self, source: &str) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Replaces the embedded manifest.
    pub(crate) fn manifest(mut self, text: &str) -> Self {
        self.manifest = text.as_bytes().to_vec();
        self
    }

    /// Adds source after the entry points.
    pub(crate) fn extra(mut self, source: &str) -> Self {
        self.extra = source.into();
        self
    }

    /// Adds compiler flags.
    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Builds `libtensorfold_<id>.so` in `folder`.
    pub(crate) fn build(self, folder: &Path) -> PathBuf {
        let underscored = self.id.replace('-', "_");
        let path = folder.join(format!("libtensorfold_{underscored}.so"));
        let source = self.source.unwrap_or_else(|| {
            let bytes: Vec<String> = self.manifest.iter().map(u8::to_string).collect();
            format!(
                "__attribute__((section(\".tensorfold.manifest\"), used, visibility(\"default\")))\n\
                 const unsigned char TENSORFOLD_PLUGIN_MANIFEST[{}] = {{{}}};\n\
                 __attribute__((visibility(\"default\"))) const char tensorfold_plugin_v1[128] = {{0}};\n{}",
                bytes.len(),
                bytes.join(","),
                self.extra
            )
        });
        let source_path = folder.join(format!("{underscored}.c"));
        std::fs::write(&source_path, source).unwrap();
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wl,--no-as-needed", "-o"])
            .arg(&path)
            .arg(&source_path)
            .args(&self.flags)
            .output()
            .expect("the tests need a C compiler called `cc`");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }
}
