//! A plugin in C, written from the header alone, is a plugin like any other: checked, loaded, served, and held to the
//! whole contract of an engine.

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::json;
use support::border::{feed, load, model, setup, start};
use support::server::Server;
use support::{Sandbox, demo_model, faulty, successor, workspace};
use tensorfold::plugins::image;
use tensorfold_plugin_api::abi::Status;
use tensorfold_plugin_api::host::{DeviceClient, EngineClient, EngineSetup, PluginClient};

#[test]
fn it_is_written_from_the_header_alone_and_exports_nothing_else() {
    let source = std::fs::read_to_string(workspace().join("tests/plugins/successor.c")).unwrap();
    let own: Vec<&str> = source.lines().filter(|line| line.starts_with("#include \"")).collect();
    assert_eq!(own, ["#include \"tensorfold_plugin.h\"", "#include \"manifest.inc\""]);
    let folder = tempfile::tempdir().unwrap();
    let image = image::read(&successor().library_in(folder.path())).unwrap();
    assert_eq!(image.exports, ["TENSORFOLD_PLUGIN_MANIFEST", "tensorfold_plugin_v1"]);
    assert!(image.bind_now && !image.executable_stack);
}

/// The plugin with a device open, in this process.
fn open(folder: &tempfile::TempDir) -> (Arc<PluginClient>, Arc<DeviceClient>) {
    // Each test has a library of its own, and so statics of its own.
    let client = load(&successor().library_in(folder.path())).client();
    start(&client, &[]).unwrap();
    let devices = client.list_devices().unwrap();
    assert_eq!(devices.len(), 1);
    assert!(client.fit_device(&devices[0].identity).unwrap().is_usable());
    let device = client.open_device(&devices[0].identity).unwrap();
    (client, device)
}

fn engine(device: &Arc<DeviceClient>) -> EngineClient {
    device.open_engine(model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap()
}

#[test]
fn drafts_are_verified_and_what_was_refused_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (client, device) = open(&folder);
    let mut engine = engine(&device);
    let lane = engine.lane_open().unwrap();
    let prompt = engine.round(&[feed(lane, 0, &[7, 1, 2], 0, 1)]).unwrap();
    assert_eq!((prompt.lanes[0].tokens.as_slice(), prompt.lanes[0].position), (&[3][..], 3));
    // Fed: the pending token and three drafts. 4 and 5 follow 3, then 6 would and not 9.
    let verified = engine.round(&[feed(lane, 3, &[3, 4, 5, 9], 3, 4)]).unwrap();
    let lane_outcome = &verified.lanes[0];
    assert_eq!(
        (lane_outcome.accepted, lane_outcome.tokens.as_slice(), lane_outcome.position),
        (2, &[4, 5, 6][..], 6)
    );
    let serial = engine.round(&[feed(lane, 6, &[6], 0, 1)]).unwrap();
    assert_eq!((serial.lanes[0].tokens.as_slice(), serial.lanes[0].position), (&[7][..], 7));
    // The last id of the vocabulary is followed by the first, and never by a padded row.
    let last = engine.round(&[feed(lane, 7, &[19], 0, 1)]).unwrap();
    assert_eq!(last.lanes[0].tokens, [0]);
    let stats = engine.monitor().stats().unwrap();
    assert_eq!((stats.rounds, stats.rows, stats.verified, stats.accepted), (4, 9, 3, 2));
    drop(engine);
    drop(device);
    client.shutdown().unwrap();
}

#[test]
fn states_are_kept_copied_and_taken_up_again() {
    let folder = tempfile::tempdir().unwrap();
    let (_client, device) = open(&folder);
    let mut engine = engine(&device);
    let lane = engine.lane_open().unwrap();
    engine.round(&[feed(lane, 0, &[1, 2], 0, 0)]).unwrap();
    let kept = engine.snapshot(lane).unwrap();
    assert_eq!(kept.position, 2);
    engine.round(&[feed(lane, 2, &[3, 4, 5], 0, 0)]).unwrap();
    let fork = engine.fork(lane).unwrap();
    engine.restore(lane, kept.snapshot).unwrap();
    let outcome = engine.round(&[feed(lane, 2, &[9], 0, 1), feed(fork, 5, &[9], 0, 1)]).unwrap();
    assert_eq!([outcome.lanes[0].position, outcome.lanes[1].position], [3, 6]);
    assert!(engine.monitor().memory().unwrap().snapshot_bytes > 0);
    engine.drop_snapshot(kept.snapshot).unwrap();
    assert_eq!(engine.monitor().memory().unwrap().snapshot_bytes, 0);
    assert_eq!(engine.restore(lane, kept.snapshot).unwrap_err().status, Status::NotFound);
}

#[test]
fn every_refusal_of_a_call_says_why_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (client, device) = open(&folder);
    assert_eq!(start(&client, &[]).unwrap_err().status, Status::Busy);
    let strange = EngineSetup { world: 2, ..setup() };
    let no_progress = |_: u64, _: u64, _: &str| ControlFlow::Continue(());
    let error = device.open_engine(model(), &strange, no_progress).err().expect("two ranks are refused");
    assert_eq!((error.status, error.message.contains("one rank")), (Status::Unsupported, true), "{error}");
    let error = device.open_engine(model(), &setup(), |_, _, _| ControlFlow::Break(())).err().unwrap();
    assert_eq!(error.status, Status::Cancelled);

    let mut engine = engine(&device);
    let lane = engine.lane_open().unwrap();
    let second = engine.lane_open().unwrap();
    assert_eq!(engine.lane_open().unwrap_err().status, Status::Busy);
    for (request, part) in [
        (feed(lane, 1, &[1], 0, 1), "holds 0 tokens"),
        (feed(lane, 0, &[20], 0, 1), "outside the vocabulary"),
        (feed(lane, 0, &[1; 65], 0, 0), "context"),
        (feed(77, 0, &[1], 0, 0), "no lane 77"),
    ] {
        // The sound lane beside it stays as it was, too.
        let error = engine.round(&[feed(second, 0, &[1], 0, 1), request]).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
    engine.round(&[feed(second, 0, &[1], 0, 1), feed(lane, 0, &[1], 0, 1)]).unwrap();
    let cancel = engine.cancel_handle();
    cancel.cancel();
    let mut request = feed(lane, 1, &[2], 0, 1);
    request.cancel = Some(cancel);
    let outcome = engine.round(&[request]).unwrap();
    assert_eq!((outcome.lanes[0].cancelled, outcome.lanes[0].position), (true, 1));
}

#[test]
fn options_are_judged_by_the_manifest_and_again_by_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let client = load(&successor().library_in(folder.path())).client();
    for (options, status, part) in [
        (("step", "0"), Status::InvalidArgument, "wanted 1 to 1000, found 0"),
        (("speed", "9"), Status::Unsupported, "speed"),
    ] {
        let error = start(&client, &[options]).unwrap_err();
        assert!(error.status == status && error.message.contains(part), "{error}");
        client.shutdown().expect("after a failed init");
    }
    client.shutdown().expect("and once more");
    start(&client, &[("step", "3")]).unwrap();
}

#[test]
fn it_passes_the_check_as_a_vendor_runs_it() {
    let sandbox = Sandbox::new();
    let built = successor().build_in(&sandbox.plugins());
    for file in [&built.library, &built.sidecar] {
        let report = sandbox.tensorfold(["plugins", "check", "--strict", "--json"]).arg(file).run();
        let document = report.json();
        let text = document.to_string();
        assert!(text.contains("\"declared\""), "its layouts are declared, not attested: {document:#}");
        assert!(!text.contains("\"error\""), "{document:#}");
    }
}

/// Starts the plugin as a server of the demo model.
fn serve(sandbox: &Sandbox, extra: &[&str]) -> Server {
    let library = successor().library_in(&sandbox.plugins());
    let words = [
        "serve".as_ref(),
        demo_model().as_os_str().to_owned().as_ref(),
        "--plugin".as_ref(),
        library.as_os_str(),
    ]
    .map(std::ffi::OsStr::to_owned);
    let invocation = sandbox.tensorfold(words).args(extra);
    Server::start(invocation).unwrap_or_else(|said| panic!("it serves; but: {said}"))
}

fn complete(server: &Server, prompt: &str, tokens: u32) -> serde_json::Value {
    let answer =
        server.post("/v1/completions", &json!({"model": "demo", "prompt": prompt, "max_tokens": tokens}));
    assert_eq!(answer.status, 200, "{}\n{}", answer.body, server.said());
    answer.json()
}

#[test]
fn it_answers_requests_of_a_real_client() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox, &["--backend", "successor"]);
    let reply = complete(&server, "a", 5);
    assert_eq!(reply["choices"][0]["text"], "bcdef");
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(reply["usage"]["prompt_tokens"], 1);
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    // A seed and a temperature change nothing where one token has all the probability.
    let sampled = server.post(
        "/v1/completions",
        &json!({"model": "demo", "prompt": "A", "max_tokens": 3, "temperature": 1.5, "seed": 7}),
    );
    assert_eq!(sampled.json()["choices"][0]["text"], "BCD");
    let chat = server.post(
        "/v1/chat/completions",
        &json!({"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "count"}]}),
    );
    assert_eq!(chat.status, 200, "{}", chat.body);
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("done "), "{said}");
}

#[test]
fn requests_at_the_same_time_are_answered_each_for_itself() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox, &["--backend", "counting"]);
    std::thread::scope(|scope| {
        for (prompt, wanted) in [("a", "bcde"), ("k", "lmno"), ("Q", "RSTU"), ("0", "1234")] {
            let server = &server;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(complete(server, prompt, 4)["choices"][0]["text"], wanted);
                }
            });
        }
    });
    assert_eq!(server.stop().0, 0);
}

#[test]
fn an_option_reaches_it_and_a_bad_one_does_not() {
    let sandbox = Sandbox::new();
    let server = serve(&sandbox, &["--backend", "successor", "--opt", "successor.step=2"]);
    assert_eq!(complete(&server, "a", 3)["choices"][0]["text"], "ceg");
    assert_eq!(server.stop().0, 0);
    let marker = sandbox.path().join("marker");
    let library = faulty("").with_marker(&marker).library_in(&sandbox.folder("marked"));
    for (option, part) in [("successor.step=0", "1 to 1000"), ("successor.speed=1", "speed")] {
        let outcome = sandbox
            .tensorfold(["serve", "--backend", "successor", "--opt", option, "--plugin"])
            .arg(&library)
            .arg(demo_model())
            .run();
        assert!(matches!(outcome.status.code(), Some(1 | 2)) && outcome.stderr.contains(part), "{outcome:?}");
    }
    assert!(!marker.exists(), "a bad option is refused from the manifest");
}
