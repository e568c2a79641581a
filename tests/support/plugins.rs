//! Compiles the plugins in `tests/plugins/`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Sandbox, workspace};

/// A plugin in C or C++, about to be compiled.
#[derive(Clone)]
pub(crate) struct NativePlugin {
    source: &'static str,
    manifest: String,
    defines: Vec<String>,
    flags: Vec<String>,
}

/// A compiled plugin with its sidecar.
#[derive(Clone, Debug)]
pub(crate) struct BuiltPlugin {
    pub(crate) library: PathBuf,
    pub(crate) sidecar: PathBuf,
}

/// The sound plugin in C that is a whole backend.
pub(crate) fn successor() -> NativePlugin {
    NativePlugin::new("successor.c")
}

/// The same with one fault: a switch of `faulty.c`, such as `INIT_CRASHES` or `INIT_STATUS=-3`. An empty one is none.
pub(crate) fn faulty(fault: &str) -> NativePlugin {
    let plugin = NativePlugin::new("faulty.c");
    if fault.is_empty() { plugin } else { plugin.define(fault) }
}

/// The plugin in C++, with a switch of `thrower.cpp`; an empty one is none.
pub(crate) fn thrower(switch: &str) -> NativePlugin {
    let plugin = NativePlugin::new("thrower.cpp")
        .renamed("thrower")
        .replace(", \"tensorfold.engine/1\"", "")
        .replace("[[family]]\nmodel_type = \"qwen3_5\"\n", "");
    if switch.is_empty() { plugin } else { plugin.define(switch) }
}

impl NativePlugin {
    fn new(source: &'static str) -> NativePlugin {
        let template = workspace().join("tests/plugins/successor.toml");
        let manifest = std::fs::read_to_string(&template).unwrap().replace("@ARCH@", std::env::consts::ARCH);
        NativePlugin { source, manifest, defines: Vec::new(), flags: Vec::new() }
    }

    /// Another id, backend and library: `backend-NAME`, `NAME`, `libtensorfold_backend_NAME.so`; no alias.
    pub(crate) fn renamed(self, name: &str) -> NativePlugin {
        let renamed = self.manifest.replace("aliases = [\"counting\"]\n", "").replace("successor", name);
        NativePlugin { manifest: renamed.replace("Successor", &capitalised(name)), ..self }
    }

    /// Changes the manifest. What is to be replaced must be there.
    pub(crate) fn replace(mut self, old: &str, new: &str) -> NativePlugin {
        assert!(self.manifest.contains(old), "the manifest has no {old:?}:\n{}", self.manifest);
        self.manifest = self.manifest.replace(old, new);
        self
    }

    /// Adds drafters to the manifest, and the interfaces that drive them.
    pub(crate) fn drafting(self, tables: &str) -> NativePlugin {
        const ENGINE: &str = "\"tensorfold.engine/1\"";
        self.replace(ENGINE, &format!("{ENGINE}, \"tensorfold.mtp/1\", \"tensorfold.dflash/1\""))
            .append(tables)
    }

    /// Adds to the manifest's end.
    pub(crate) fn append(mut self, text: &str) -> NativePlugin {
        self.manifest.push_str(text);
        self
    }

    /// `NAME` or `NAME=VALUE` for the compiler.
    pub(crate) fn define(mut self, switch: &str) -> NativePlugin {
        self.defines.push(format!("-D{switch}"));
        self
    }

    /// Leaves this file when its code runs, be it only a constructor. For the plugins of `faulty.c`.
    pub(crate) fn with_marker(self, file: &Path) -> NativePlugin {
        assert_eq!(self.source, "faulty.c");
        let text = file.to_str().expect("a temporary folder's name is text");
        self.define(&format!("MARKER=\"{text}\""))
    }

    /// A flag for compiler and linker.
    pub(crate) fn flag(mut self, flag: impl Into<String>) -> NativePlugin {
        self.flags.push(flag.into());
        self
    }

    pub(crate) fn manifest(&self) -> &str {
        &self.manifest
    }

    fn key(&self, key: &str) -> String {
        let start = format!("{key} = \"");
        let found = self.manifest.lines().find_map(|line| line.strip_prefix(&start)?.split('"').next());
        found.unwrap_or_else(|| panic!("the manifest has no {key}")).to_owned()
    }

    /// Compiles the library into a folder, without a sidecar.
    pub(crate) fn library_in(&self, folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let bytes: Vec<String> = self.manifest.bytes().map(|byte| byte.to_string()).collect();
        std::fs::write(scratch.path().join("manifest.inc"), bytes.join(",")).unwrap();
        let library = folder.join(self.key("library"));
        let sources = workspace().join("tests/plugins");
        let (compiler, standard) = match self.source.ends_with(".cpp") {
            true => ("g++", "-std=c++17"),
            false => ("gcc", "-std=c11"),
        };
        let output = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-fvisibility=hidden", "-shared"])
            .arg(format!("-Wl,-z,now,--version-script={}", sources.join("exports.map").display()))
            .args(&self.defines)
            .arg("-I")
            .arg(scratch.path())
            .arg("-I")
            .arg(workspace().join("plugin-api/include"))
            .arg("-o")
            .arg(&library)
            .arg(sources.join(self.source))
            .args(&self.flags)
            .output()
            .unwrap_or_else(|error| panic!("these tests need {compiler}; install it ({error})"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {:?} does not compile:\n{said}", self.source, self.defines);
        library
    }

    /// Compiles the library into a folder, with the sidecar that its own manifest gives.
    pub(crate) fn build_in(&self, folder: &Path) -> BuiltPlugin {
        let library = self.library_in(folder);
        let sidecar = folder.join(format!("{}.tensorfold.toml", self.key("id")));
        write_sidecar(&library, &sidecar);
        BuiltPlugin { library, sidecar }
    }

    /// As [`build_in`](Self::build_in), with the sidecar written from this text instead of by the program, for
    /// manifests that the program refuses.
    pub(crate) fn build_with_plain_sidecar(&self, folder: &Path) -> BuiltPlugin {
        let library = self.library_in(folder);
        let sidecar = folder.join(format!("{}.tensorfold.toml", self.key("id")));
        std::fs::write(&sidecar, &self.manifest).unwrap();
        BuiltPlugin { library, sidecar }
    }
}

/// Writes a sidecar as a vendor's build does: from the library, by the program.
pub(crate) fn write_sidecar(library: &Path, sidecar: &Path) {
    let sandbox = Sandbox::new();
    let printed = sandbox
        .tensorfold(["plugins".as_ref(), "manifest".as_ref(), "--from".as_ref(), library.as_os_str()])
        .run();
    printed.exits(0);
    std::fs::write(sidecar, &printed.stdout).unwrap();
}

fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
