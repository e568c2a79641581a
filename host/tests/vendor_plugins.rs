//! The CUDA, HIP and MLX plugins through the border, with and without the
//! vendor's library.
//!
//! A vendor's library stays mapped once it was opened, and where it is found
//! depends on the environment of the process. So every plugin is started in a
//! process of its own: this test program again, running [`in_a_process_of_its_own`].

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tensorfold::plugins::{image, open};
use tensorfold_plugin_api::abi::{ABI_MINOR, BACKEND_INTERFACE, TF_LOG_INFO};
use tensorfold_plugin_api::host::{HostServices, InitOptions, LogRecord, PluginClient};

/// Names the plugin to start in the process of its own.
const PLUGIN: &str = "VENDOR_PLUGIN_TO_START";

#[test]
fn a_missing_library_is_one_line_with_the_names_tried_and_the_fix() {
    for (plugin, names, fix) in [
        ("cuda", &["libcuda.so.1"][..], "install the NVIDIA driver"),
        ("hip", &["/opt/rocm/lib/libamdhip64.so.7", "libamdhip64.so.7", "libamdhip64.so.6"], "install ROCm"),
        ("mlx", &["libmlx.so"], "pip install mlx-cpu"),
    ] {
        let outcome = start(plugin, &[]);
        if outcome["devices"].is_array() {
            // A machine that has it; then the devices speak for the plugin.
            assert_ne!(outcome["devices"], json!([]), "{plugin}: {outcome}");
            continue;
        }
        let message = outcome["error"].as_str().unwrap_or_else(|| panic!("{plugin}: {outcome}"));
        assert!(!message.contains('\n'), "{plugin}: {message}");
        if outcome["code"] != "runtime-missing" {
            // The library is there and there is nothing to use it with.
            continue;
        }
        for name in names {
            assert!(message.contains(name), "{plugin} does not name {name}: {message}");
        }
        assert!(message.contains(fix), "{plugin}: {message}");
    }
}

#[test]
fn the_cuda_plugin_lists_the_gpus_of_its_driver_and_offers_none_for_models() {
    let folder = tempfile::tempdir().unwrap();
    compile("backend-cuda/tests/fake_libcuda.c", &folder.path().join("libcuda.so.1"));
    let outcome = start("cuda", &[("LD_LIBRARY_PATH", folder.path())]);
    let devices = &outcome["devices"];
    assert_eq!(devices[0]["name"], "NVIDIA Fake 0", "{outcome}");
    assert_eq!(devices[0]["pci_address"], "0000:c1:00.0");
    assert_eq!(devices[0]["arch"], "sm_90");
    assert_eq!(devices[0]["memory_bytes"], 1_u64 << 34);
    assert_eq!(devices[1]["arch"], "sm_121");
    for device in devices.as_array().unwrap() {
        assert!(device["unfit"].as_str().unwrap().contains("runs no model"), "{outcome}");
        assert!(device["open_error"].as_str().unwrap().contains("runs no model"), "{outcome}");
    }
    // What the plugin logged came over the border.
    assert!(outcome["log"].as_str().unwrap().contains("opened NVIDIA's driver"), "{outcome}");
}

#[test]
fn the_hip_plugin_takes_the_runtime_of_rocm_path_first() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    compile("backend-hip/tests/fake_libamdhip64.c", &folder.path().join("lib/libamdhip64.so.7"));
    let outcome = start("hip", &[("ROCM_PATH", folder.path())]);
    if outcome["devices"].is_array() {
        // This machine has the kernel's compute node.
        assert_eq!(outcome["devices"][0]["arch"], "gfx1151", "{outcome}");
        assert_eq!(outcome["devices"][0]["driver"], "HIP 7.1");
    } else {
        // The runtime was found, so the missing node is what is reported.
        let message = outcome["error"].as_str().unwrap();
        assert!(message.contains("/dev/kfd"), "{outcome}");
        assert_ne!(outcome["code"], "runtime-missing", "{outcome}");
    }
}

#[test]
fn the_mlx_plugin_tells_the_version_of_the_library_it_was_pointed_to() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lib")).unwrap();
    compile("backend-mlx/tests/fake_libmlx.c", &folder.path().join("lib/libmlx.so"));
    let outcome = start("mlx", &[("TENSORFOLD_MLX_DIR", folder.path())]);
    assert_eq!(outcome["devices"][0]["driver"], "MLX 0.32.4", "{outcome}");
    assert_eq!(outcome["devices"][0]["kind"], "cpu");
}

/// Starts a plugin in a process of its own and returns what became of it.
fn start(plugin: &str, environment: &[(&str, &Path)]) -> Value {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "in_a_process_of_its_own", "--ignored", "--nocapture"]).env(PLUGIN, plugin);
    for name in ["ROCM_PATH", "TENSORFOLD_MLX_DIR"] {
        command.env_remove(name);
    }
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = text.lines().find_map(|line| line.strip_prefix("outcome: "));
    let outcome = outcome.unwrap_or_else(|| {
        panic!("{plugin} ended with {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))
    });
    serde_json::from_str(outcome).unwrap()
}

#[test]
#[ignore = "the other tests run this, each in a process of its own"]
fn in_a_process_of_its_own() {
    let Ok(plugin) = std::env::var(PLUGIN) else { return };
    // On a line of its own: the test harness has written before it.
    println!("\noutcome: {}", outcome_of(&plugin));
}

fn outcome_of(plugin: &str) -> Value {
    let path = library(&format!("libtensorfold_backend_{plugin}.so"));
    let image = image::read(&path).unwrap();
    let opened = open::open(&path, image.identity).unwrap();
    // SAFETY: `open` returns the descriptor of a library that is never closed.
    let descriptor = unsafe { opened.descriptor().as_ref() };
    let log = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let services = Box::new(Log(log.clone()));
    // SAFETY: as above, and the plugin is built from this tree, by its macro.
    let client = unsafe { PluginClient::new(descriptor, &[BACKEND_INTERFACE.to_owned()], services, &[]) }
        .expect("the plugin offers its tables");

    let options = InitOptions {
        host_version: env!("CARGO_PKG_VERSION").to_owned(),
        agreed_abi_minor: ABI_MINOR,
        configuration: Vec::new(),
        log_level: TF_LOG_INFO,
    };
    let failed = |error: tensorfold_plugin_api::PluginError| json!({ "error": error.message, "status": error.status.to_string(), "code": error.detail("code") });
    if let Err(error) = client.init(options, std::time::Duration::from_secs(60)) {
        client.shutdown().expect("shutdown after a failed init is safe");
        return failed(error);
    }
    let devices = match client.list_devices() {
        Ok(devices) => devices,
        Err(error) => return failed(error),
    };
    let devices: Vec<Value> = devices
        .iter()
        .map(|device| {
            let fit = client.fit_device(&device.identity).unwrap();
            json!({
                "kind": device.identity.kind.name(),
                "name": device.identity.name,
                "pci_address": device.identity.pci_address,
                "arch": device.arch,
                "memory_bytes": device.memory_bytes,
                "driver": device.driver,
                "unfit": (!fit.is_usable()).then_some(fit.text),
                "open_error": client.open_device(&device.identity).err().map(|error| error.message),
            })
        })
        .collect();
    client.shutdown().unwrap();
    let log = log.lock().unwrap().clone();
    json!({ "devices": devices, "log": log })
}

/// Keeps what a plugin logs.
struct Log(std::sync::Arc<std::sync::Mutex<String>>);

impl HostServices for Log {
    fn log_enabled(&self, _level: u32, _target: &str) -> bool {
        true
    }

    fn log(&self, record: LogRecord) {
        let mut log = self.0.lock().unwrap();
        log.push_str(&record.message);
        log.push('\n');
    }

    fn memory_report(&self, _kind: u32, _bytes: u64) {}
}

/// A plugin that was built together with this test: beside it, or one folder up.
fn library(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let candidates = [folder.join(name), folder.parent().unwrap().join(name)];
    candidates
        .iter()
        .find(|path| path.exists())
        .cloned()
        .unwrap_or_else(|| panic!("{candidates:?}: none exists"))
}

fn compile(source: &str, library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins").join(source);
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([library, &source])
        .output()
        .expect("cc, which also links this test, starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
