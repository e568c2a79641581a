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

/// A plugin in C, written from the header alone; `define` changes one thing about it.
pub(crate) struct CPlugin {
    library: Library,
    source: Option<String>,
    extra: String,
}

impl CPlugin {
    /// A plugin with the manifest of `id` and one CPU device.
    pub(crate) fn new(id: &str) -> Self {
        Self { library: Library::new(id), source: None, extra: String::new() }
    }

    /// Replaces the manifest.
    pub(crate) fn manifest(mut self, text: &str) -> Self {
        self.library = self.library.manifest(text);
        self
    }

    /// Replaces a value: see the `#ifndef` lines of the source below.
    pub(crate) fn define(mut self, name: &str, value: &str) -> Self {
        self.library = self.library.flags(&[&format!("-D{name}={value}")]);
        self
    }

    /// Replaces the whole source.
    pub(crate) fn source(mut self, source: &str) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds source at the end.
    pub(crate) fn extra(mut self, source: &str) -> Self {
        self.extra = source.into();
        self
    }

    /// Builds it in `folder`.
    pub(crate) fn build(self, folder: &Path) -> PathBuf {
        let include = format!("-I{}/../plugin-api/include", env!("CARGO_MANIFEST_DIR"));
        let source = self.source.unwrap_or_else(|| {
            let bytes: Vec<String> = self.library.manifest.iter().map(u8::to_string).collect();
            format!(
                "#include \"tensorfold_plugin.h\"\n\
                 TENSORFOLD_MANIFEST const unsigned char TENSORFOLD_PLUGIN_MANIFEST[] = {{{}}};\n{}\n{}",
                bytes.join(","),
                C_PLUGIN,
                self.extra
            )
        });
        self.library.source(&source).flags(&[&include, "-fvisibility=hidden"]).build(folder)
    }
}

const C_PLUGIN: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifndef MAGIC
#define MAGIC TF_PLUGIN_MAGIC
#endif
#ifndef SIZE
#define SIZE sizeof(TfDescriptor)
#endif
#ifndef ABI_MAJOR
#define ABI_MAJOR TF_ABI_MAJOR
#endif
#ifndef ABI_MINOR
#define ABI_MINOR TF_ABI_MINOR
#endif
#ifndef VERSION
#define VERSION "1.2.3"
#endif
#ifndef GET_INTERFACE
#define GET_INTERFACE get_interface
#endif
#ifndef IN_INIT
#define IN_INIT
#endif
#ifndef ENGINE
#define ENGINE (const void *)&engine
#endif
#define STR(text) { (const uint8_t *)(text), sizeof(text) - 1 }

static int32_t init(const TfInit *arguments, TfError *error) { (void)arguments; (void)error; IN_INIT; return 0; }
static int32_t list_devices(TfDeviceInfo *devices, uint64_t capacity, uint64_t *count, TfError *error) {
    (void)error;
    *count = 1;
    if (capacity > 0) {
        TfDeviceInfo device = {0};
        device.struct_size = sizeof device;
        device.identity.struct_size = sizeof device.identity;
        device.identity.kind = TF_DEVICE_CPU;
        TfStr name = STR("test device");
        device.identity.name = name;
        devices[0] = device;
    }
    return 0;
}
static int32_t fit_device(const TfDeviceIdentity *identity, TfDeviceFit *fit, TfError *error) {
    (void)identity; (void)error; fit->reasons = 0; return 0;
}
static int32_t open_device(const TfDeviceIdentity *identity, uint64_t *device, TfError *error) {
    (void)identity; (void)error; *device = 1; return 0;
}
static int32_t close_device(uint64_t device, TfError *error) { (void)device; (void)error; return 0; }
static void set_log_level(uint32_t level) { (void)level; }
static int32_t shut(TfError *error) { (void)error; return 0; }
static void release_error(TfError *error) { (void)error; }

static const TfBackendV1 backend = {
    .struct_size = sizeof(TfBackendV1), .init = init, .list_devices = list_devices, .fit_device = fit_device,
    .open_device = open_device, .close_device = close_device, .set_log_level = set_log_level, .shutdown = shut,
    .release_error = release_error,
};
/* Never called by these tests: the addresses only have to be there. */
static int32_t unsupported(void) { return TF_STATUS_UNSUPPORTED; }
static struct { uint32_t size, reserved; void *functions[32]; } engine;
__attribute__((constructor)) static void fill(void) {
    engine.size = sizeof(TfEngineV1);
    for (int i = 0; i < 32; i++) engine.functions[i] = (void *)unsupported;
}
static const void *get_interface(const uint8_t *id, uint64_t length) {
    if (length == 20 && memcmp(id, "tensorfold.backend/1", 20) == 0) return &backend;
    if (length == 19 && memcmp(id, "tensorfold.engine/1", 19) == 0) return ENGINE;
    return 0;
}
TENSORFOLD_EXPORT const TfDescriptor tensorfold_plugin_v1 = {
    .magic = MAGIC, .struct_size = SIZE, .abi_major = ABI_MAJOR, .abi_minor = ABI_MINOR,
    .min_host_minor = 1, .manifest = TENSORFOLD_PLUGIN_MANIFEST, .manifest_length = sizeof TENSORFOLD_PLUGIN_MANIFEST,
    .get_interface = GET_INTERFACE, .version = STR(VERSION), .build_id = STR("test-build"),
};
"#;
