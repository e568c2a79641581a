//! Plugins in Rust, loaded as the host loads them: no panic crosses the border, layouts are compared, and plugins of
//! one root-module type each answer for themselves.

mod support;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use abi_stable::library::lib_header_from_path;
use support::border::{feed, load, model, setup, start};
use tensorfold::plugins::attest::{Layout, attest};
use tensorfold::plugins::lifecycle::Code;
use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::{BACKEND_INTERFACE, Status, TfStr};
use tensorfold_plugin_api::attest::PluginRootRef;
use tensorfold_plugin_api::host::PluginClient;

/// Makes every call of both tables once and stops at the first failure.
fn walk(client: &Arc<PluginClient>, panic_in: &str) -> Result<(), PluginError> {
    start(client, &[("panic-in", panic_in)])?;
    let devices = client.list_devices()?;
    client.fit_device(&devices[0].identity)?;
    let device = client.open_device(&devices[0].identity)?;
    device.plan(&*model(), &setup())?;
    let mut engine = device.open_engine(model(), &setup(), |_, _, _| ControlFlow::Continue(()))?;
    engine.info()?;
    let lane = engine.lane_open()?;
    let outcome = engine.round(&[feed(lane, 0, &[3, 4], 0, 1)])?;
    assert_eq!(outcome.lanes[0].tokens, [5]);
    let kept = engine.snapshot(lane)?;
    engine.restore(lane, kept.snapshot)?;
    let fork = engine.fork(lane)?;
    engine.drop_snapshot(kept.snapshot)?;
    engine.lane_close(fork)?;
    engine.monitor().memory()?;
    engine.monitor().stats()?;
    drop(engine);
    drop(device);
    client.shutdown()
}

/// What `tracing` says while `body` runs.
fn heard(body: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Ear(Arc<Mutex<Vec<u8>>>);
    impl Write for Ear {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let ear = Ear::default();
    let writer = ear.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, body);
    let bytes = ear.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_panic_in_any_call_becomes_a_status_with_its_place_and_the_process_lives() {
    let client = load(&support::built_with_the_workspace("tensorfold_test_panicking")).client();
    walk(&client, "nothing").expect("without the option the plugin is sound");
    let calls = [
        "init",
        "list_devices",
        "fit_device",
        "open_device",
        "plan",
        "open_engine",
        "lane_open",
        "round",
        "snapshot",
        "restore",
        "fork",
        "drop_snapshot",
        "lane_close",
        "memory",
        "stats",
        "shutdown",
    ];
    for call in calls {
        let error = walk(&client, call).expect_err(call);
        assert_eq!(error.status, Status::Panicked, "{call}: {error}");
        for part in [&format!("asked to panic in {call}"), "panicking/src/lib.rs:"] {
            assert!(error.message.contains(part), "{call}: {error}");
        }
        // After a failure of any kind `shutdown` is safe, and the plugin can be started again.
        let ended = client.shutdown();
        assert!(ended.is_ok() || call == "shutdown", "{call}: {ended:?}");
        walk(&client, "nothing").unwrap_or_else(|error| panic!("after a panic in {call}: {error}"));
    }
}

#[test]
fn a_panic_while_something_is_closed_is_heard_of_and_goes_no_further() {
    // A copy of the library has statics of its own, so that this test and others do not meet.
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libtensorfold_test_panicking.so");
    std::fs::copy(support::built_with_the_workspace("tensorfold_test_panicking"), &library).unwrap();
    let client = load(&library).client();
    for call in ["close", "close_device"] {
        let said = heard(|| walk(&client, call).unwrap_or_else(|error| panic!("{call}: {error}")));
        assert!(
            said.contains("did not close") && said.contains(&format!("asked to panic in {call}")),
            "{said}"
        );
        let said = heard(|| walk(&client, "nothing").unwrap());
        assert_eq!(said, "", "after a panic in {call}");
    }
}

#[test]
fn a_table_of_another_layout_is_refused_with_the_first_field_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = load(&support::built_with_the_workspace("tensorfold_test_misshapen"));
    let finding =
        attest(&plugin.opened, plugin.descriptor, &plugin.manifest, Some(folder.path())).unwrap_err();
    assert_eq!(finding.code, Code::LayoutMismatch);
    let text = finding.to_string();
    for part in ["tensorfold.engine/1", "u64", "u32", "layout-backend-misshapen-1.2.3.txt"] {
        assert!(text.contains(part), "{text}");
    }
    let report = std::fs::read_to_string(folder.path().join("layout-backend-misshapen-1.2.3.txt")).unwrap();
    assert!(report.contains("lane_close"), "{report}");
}

#[test]
fn plugins_of_one_root_module_type_answer_for_themselves() {
    let names = ["tensorfold_test_panicking", "tensorfold_backend_hip", "tensorfold_backend_mlx"];
    let mut tables = Vec::new();
    for name in names {
        let library = support::built_with_the_workspace(name);
        let plugin = load(&library);
        assert_eq!(
            attest(&plugin.opened, plugin.descriptor, &plugin.manifest, None).unwrap(),
            Layout::Attested
        );
        let root = lib_header_from_path(&library).unwrap().init_root_module::<PluginRootRef>().unwrap();
        // SAFETY: the text lives as long as the library, which is never unmapped.
        let text = unsafe { root.manifest()().to_string_lossy() };
        let own = format!(
            "id = \"{}\"",
            name.replace("tensorfold_test", "backend").replace("tensorfold_", "").replace('_', "-")
        );
        assert!(text.contains(&own), "{name} answered with another one's manifest:\n{text}");
        // SAFETY: the id is readable for the call.
        tables.push(unsafe { root.interface()(TfStr::new(BACKEND_INTERFACE)) }.table);
    }
    for (index, table) in tables.iter().enumerate() {
        assert!(!table.is_null() && !tables[..index].contains(table), "{} shares a table", names[index]);
    }
}
