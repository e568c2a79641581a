//! Models that are not on this machine: `pull`, `info`, `serve` and `plugins why` against a server that plays the Hub.

#[path = "../host/hub/tests/support/server.rs"]
#[allow(dead_code, reason = "the Hub's own tests use the rest")]
mod hub_server;
mod support;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use hub_server::{COMMIT, Files, Pace, Reply, Server as FakeHub, files, hub, hub_with, noise, oid};
use serde_json::Value;
use support::server::Server;
use support::trace::traced;
use support::{Invocation, Sandbox, demo_drafter, demo_model, faulty, workspace};

const WEIGHTS: &str = "model.safetensors";

/// The files of a folder, as a repository.
fn repository(folder: &Path) -> Files {
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(folder).unwrap().flatten().map(read).collect()
}

fn demo() -> Files {
    repository(&demo_model())
}

/// The program in a sandbox whose Hub is this server.
fn with(sandbox: &Sandbox, server: &FakeHub, words: &[&str]) -> Invocation {
    let plugins = workspace().join("plugins.toml");
    let invocation =
        sandbox.tensorfold(words).without_env("HF_HUB_OFFLINE").env("TENSORFOLD_PLUGINS_FILE", plugins);
    invocation.env("HF_ENDPOINT", server.address()).env("HF_HUB_CACHE", cache(sandbox))
}

fn cache(sandbox: &Sandbox) -> PathBuf {
    sandbox.path().join("hub")
}

/// A file of `somebody/small` in the cache.
fn cached(sandbox: &Sandbox, path: &str) -> PathBuf {
    cache(sandbox).join("models--somebody--small").join(path)
}

fn bytes_sent(server: &FakeHub) -> usize {
    server.served().iter().map(|served| served.bytes).sum()
}

/// A process whose standard output is read line by line.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(invocation: Invocation) -> Running {
        let mut command = invocation.into_command();
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    fn wait_for_line(&mut self, part: &str) {
        let found = self.lines.by_ref().map_while(Result::ok).any(|line| line.contains(part));
        assert!(found, "it ended without a line with {part:?}");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is not yet waited for, so its number is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) };
    }

    /// Its status and what it said on stderr.
    fn end(mut self) -> (std::process::ExitStatus, String) {
        self.lines.by_ref().for_each(drop);
        let output = self.child.wait_with_output().unwrap();
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn pull_says_what_it_stores_and_where() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let outcome = with(&sandbox, &server, &["pull", "somebody/small"]).run();
    outcome.exits(0);
    assert_eq!(outcome.stderr, "[tensorfold] downloading somebody/small@main from Hugging Face\n");
    let snapshot = cached(&sandbox, "snapshots").join(COMMIT);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let stored = format!("stored somebody/small@{COMMIT} at {}", snapshot.display());
    assert_eq!(lines[0], "  config.json: 0.00 MiB");
    assert!(lines.contains(&"  model.safetensors: 12.21 MiB"), "{lines:?}");
    let position = lines.iter().position(|line| *line == stored).expect("where it is");
    assert!(lines[position + 1].starts_with("licence: "), "{lines:?}");
    assert_eq!(std::fs::read(snapshot.join(WEIGHTS)).unwrap(), demo()[WEIGHTS]);
    assert_eq!(std::fs::read_to_string(cached(&sandbox, "refs/main")).unwrap(), COMMIT);

    let again = with(&sandbox, &server, &["pull", "somebody/small"]).run();
    again.exits(0);
    assert!(again.stdout.contains("  model.safetensors: cached\n"), "{}", again.stdout);
    assert_eq!(server.bytes_of(WEIGHTS), demo()[WEIGHTS].len());

    // Without a network a complete model is complete.
    let offline = with(&sandbox, &server, &["pull", "somebody/small"]).env("HF_HUB_OFFLINE", "1").run();
    offline.exits(0);
    assert_eq!(offline.stdout, format!("somebody/small@{COMMIT} is at {}\n", snapshot.display()));
}

#[test]
fn names_that_are_none_are_usage_errors() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    for (name, part) in [
        ("small", "'small' is not a Hugging Face repo id"),
        ("a/b@../c", "'../c' is not a revision"),
        ("../b", "repo id"),
    ] {
        let outcome = with(&sandbox, &server, &["pull", name]).run();
        outcome.exits(2);
        assert!(outcome.stderr.contains("tensorfold pull: error: ") && outcome.stderr.contains(part));
    }
    assert_eq!(server.arrived().len(), 0);
}

#[test]
fn a_family_that_is_not_read_ends_a_pull_at_its_configuration() {
    let sandbox = Sandbox::new();
    let mut all = demo();
    all.insert("config.json".into(), br#"{"model_type": "brand_new"}"#.to_vec());
    let server = hub(all);
    let outcome = with(&sandbox, &server, &["pull", "somebody/small"]).run();
    outcome.exits(1);
    assert!(outcome.stderr.contains("model_type is \"brand_new\""), "{}", outcome.stderr);
    let asked: Vec<_> =
        server.arrived().into_iter().filter(|request| request.path.contains("/resolve/")).collect();
    assert!(asked.len() == 1 && asked[0].is_for("config.json"), "{asked:?}");
    assert!(!cached(&sandbox, "refs").exists());
}

#[test]
fn a_drafter_is_stored_and_said_to_be_one() {
    let sandbox = Sandbox::new();
    let server = hub(repository(&demo_drafter()));
    let outcome = with(&sandbox, &server, &["pull", "somebody/small"]).run();
    outcome.exits(0);
    let line = "somebody/small is a DFlash2 drafter: name it with serve MODEL --drafter somebody/small";
    assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
}

#[test]
fn a_drafter_of_a_kind_that_is_not_read_ends_a_pull_at_its_configuration() {
    let sandbox = Sandbox::new();
    let mut all = repository(&demo_drafter());
    all.insert(
        "config.json".into(),
        br#"{"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}"#.to_vec(),
    );
    let server = hub(all);
    let outcome = with(&sandbox, &server, &["pull", "somebody/small"]).run();
    outcome.exits(1);
    assert!(outcome.stderr.contains("of the kind DSpark, which is not read"), "{}", outcome.stderr);
    assert_eq!(server.bytes_of(WEIGHTS), 0);
}

#[test]
fn info_describes_a_drafter_that_is_not_here() {
    let sandbox = Sandbox::new();
    let server = hub(repository(&demo_drafter()));
    let outcome = with(&sandbox, &server, &["info", "somebody/small"]).run();
    outcome.exits(0);
    for part in ["drafter     small\n", "place       not downloaded: ", "the target's layers 1, 4, 7, 10\n"] {
        assert!(outcome.stdout.contains(part), "{part}\n{}", outcome.stdout);
    }
    assert!(!outcome.stdout.contains("problem"), "{}", outcome.stdout);
    assert!(server.bytes_of(WEIGHTS) < 100_000 && !cache(&sandbox).exists());
}

#[test]
fn refusals_of_the_hub_are_one_line() {
    let sandbox = Sandbox::new();
    for (status, code, part) in [
        (404, "RepoNotFound", "somebody/small is not at http://127.0.0.1"),
        (403, "GatedRepo", "then set HF_TOKEN to a token of that account"),
    ] {
        let server = FakeHub::start(move |_| Reply::new(status, "").with("X-Error-Code", code));
        for verb in ["pull", "info", "serve"] {
            let outcome = with(&sandbox, &server, &[verb, "somebody/small", "--backend", "cpu"]).run();
            outcome.exits(1);
            let last = outcome.stderr.lines().last().unwrap();
            assert!(last.starts_with("tensorfold: ") && last.contains(part), "{verb}: {last}");
        }
    }
    assert!(!cache(&sandbox).exists(), "nothing was made");
}

#[test]
fn info_reads_the_metadata_and_stores_nothing() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let here = sandbox.tensorfold(["info", "--json"]).arg(demo_model()).run().json();
    let there = with(&sandbox, &server, &["info", "somebody/small", "--json"]).run().json();
    for key in ["family", "formats", "mtp", "mtp_formats", "context_window", "parameters", "weight_bytes"] {
        assert_eq!(there[key], here[key], "{key}");
    }
    assert_eq!((&there["name"], &there["directory"]), (&Value::from("small"), &Value::Null));
    let text = with(&sandbox, &server, &["info", "somebody/small"]).run();
    assert!(text.stdout.contains(&format!("place       not downloaded: commit {COMMIT}")), "{}", text.stdout);
    assert!(server.bytes_of(WEIGHTS) < 300_000, "headers, not weights");
    assert!(!cache(&sandbox).exists());
    assert_eq!(std::fs::read_dir(sandbox.path().join("tmp")).map_or(0, Iterator::count), 0);
    let why = with(&sandbox, &server, &["plugins", "why", "--backend", "cpu", "somebody/small"]).run();
    assert_eq!(why.exits(0).stdout, "accepted: backend-cpu\n");
}

#[test]
fn what_is_wrong_with_a_model_is_said_without_a_path_that_is_gone() {
    let sandbox = Sandbox::new();
    let mut all = demo();
    let config = String::from_utf8(all["config.json"].clone()).unwrap();
    all.insert("config.json".into(), config.replace("\"affine\"", "\"mxfp4\"").into_bytes());
    let server = hub(all);
    let info = with(&sandbox, &server, &["info", "somebody/small"]).run();
    info.exits(0);
    assert!(info.stdout.contains("somebody/small/config.json: "), "{}", info.stdout);
    let serve = with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]).run();
    serve.exits(1);
    assert!(serve.stderr.contains("tensorfold: somebody/small/config.json: "), "{}", serve.stderr);
    assert!(!info.stdout.contains("/tmp/") && !serve.stderr.contains("/tmp/"));
}

#[test]
fn serve_downloads_what_nothing_speaks_against_and_serves_it() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let invocation = with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]);
    let running = Server::start(invocation).unwrap_or_else(|said| panic!("{said}"));
    let said = running.said();
    for part in
        ["reading its metadata first", "downloading somebody/small@main", "  model.safetensors: 12.21 MiB"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(running.get("/v1/models").json()["data"][0]["id"], "small");
    // As the checkpoint wants it, which was not known when the port was taken.
    assert!(running.said_on_stdout().contains("(sampling: temperature 0.7, top_p 0.8, top_k 20;"), "{said}");
    assert_eq!(running.stop().0, 0, "signals end a server as before");
    // From now on no network is needed.
    let before = server.arrived().len();
    let offline = with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]);
    let running = Server::start(offline).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!((running.stop().0, server.arrived().len()), (0, before));
}

#[test]
fn a_snapshot_without_its_weights_is_completed_and_never_served() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    with(&sandbox, &server, &["pull", "somebody/small"]).run().exits(0);
    std::fs::remove_file(cached(&sandbox, "blobs").join(oid(&demo()[WEIGHTS]))).unwrap();
    let words = ["serve", "somebody/small", "--backend", "cpu"];
    let offline = with(&sandbox, &server, &words).env("HF_HUB_OFFLINE", "1").run();
    let lacks = "somebody/small's cached snapshot is not complete, it lacks model.safetensors; run tensorfold pull \
                 somebody/small; HF_HUB_OFFLINE is set";
    offline.refused_with(&[lacks]);
    let running = Server::start(with(&sandbox, &server, &words)).unwrap_or_else(|said| panic!("{said}"));
    assert!(running.said().contains("  tokenizer.json: cached"), "{}", running.said());
    assert_eq!(running.stop().0, 0);
}

#[test]
fn a_model_that_the_backend_does_not_run_is_not_downloaded() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    // The tree's other backends declare no family yet; a context beyond the model's window fits none.
    for words in [
        &["serve", "somebody/small", "--backend", "cpu", "--context", "999999"][..],
        &["serve", "somebody/small", "--backend", "rocm"],
    ] {
        let outcome = with(&sandbox, &server, words).run();
        outcome.exits(1);
        assert!(outcome.stderr.lines().last().unwrap().starts_with("tensorfold: "), "{}", outcome.stderr);
    }
    assert!(bytes_sent(&server) < 1_000_000, "metadata, not weights");
    assert!(!cache(&sandbox).exists());
}

#[test]
fn a_model_without_a_tokenizer_is_not_downloaded() {
    let sandbox = Sandbox::new();
    let mut all = demo();
    all.remove("tokenizer.json");
    let server = hub(all);
    let outcome = with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]).run();
    outcome.exits(1);
    assert!(outcome.stderr.contains("somebody/small/tokenizer.json is missing"), "{}", outcome.stderr);
    let info = with(&sandbox, &server, &["info", "somebody/small"]).run();
    assert!(info.stdout.contains("problem     somebody/small/tokenizer.json is missing"), "{}", info.stdout);
    assert!(bytes_sent(&server) < 1_000_000, "metadata, not weights");
    assert!(!cache(&sandbox).exists());
}

#[test]
fn what_the_command_line_names_is_looked_at_before_a_download() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (words, part) in [
        (["--port", port.as_str()], "is already in use"),
        (["--api-key-file", "/no/such/keys"], "/no/such/keys"),
        (["--chat-template", "/no/such/template"], "/no/such/template"),
    ] {
        let outcome =
            with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]).args(words).run();
        outcome.exits(1);
        assert!(outcome.stderr.lines().last().unwrap().contains(part), "{}", outcome.stderr);
    }
    assert!(!cache(&sandbox).exists());
}

#[test]
fn a_plugin_that_cannot_start_costs_no_download() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let plugin = faulty("INIT_CRASHES").build_in(&sandbox.plugins());
    let words = ["serve", "somebody/small", "--backend", "successor", "--plugin"];
    let outcome = with(&sandbox, &server, &words).arg(&plugin.library).run();
    outcome.exits(1);
    assert!(outcome.stderr.lines().last().unwrap().contains("signal 11"), "{}", outcome.stderr);
    assert!(server.bytes_of(WEIGHTS) > 0, "its metadata was read");
    assert!(!cache(&sandbox).exists());
}

#[test]
fn offline_no_socket_is_opened() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    for words in [
        &["pull", "somebody/small"][..],
        &["info", "somebody/small"],
        &["serve", "somebody/small", "--backend", "cpu"],
        &["plugins", "why", "--backend", "cpu", "somebody/small"],
    ] {
        let trace = traced(&sandbox, |command| {
            let plugins = workspace().join("plugins.toml");
            let command = command.args(words).env("TENSORFOLD_PLUGINS_FILE", plugins);
            command.env("HF_HUB_CACHE", cache(&sandbox)).env("HF_ENDPOINT", server.address())
        });
        trace.outcome.exits(1);
        let said = &trace.outcome.stderr;
        let parts = [
            "somebody/small is not in the Hugging Face cache: run tensorfold pull somebody/small first",
            "HF_HUB_OFFLINE is set",
        ];
        assert!(parts.iter().all(|part| said.contains(part)), "{words:?}: {said}");
        assert_eq!(trace.network(), Vec::<&str>::new(), "{words:?}");
    }
}

#[test]
fn a_request_that_is_refused_asks_nobody() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    let online = |command: Invocation| {
        let plugins = workspace().join("plugins.toml");
        let command = command.without_env("HF_HUB_OFFLINE").env("TENSORFOLD_PLUGINS_FILE", plugins);
        command.env("HF_HUB_CACHE", cache(&sandbox)).env("HF_ENDPOINT", server.address())
    };
    for words in [
        &["serve", "somebody/small", "--backend", "rocm", "--drafter", "z-lab/Qwen3.8-27B-DFlash2"][..],
        &["serve", "somebody/small", "--backend", "cpu", "--vision"],
        &["serve", "somebody/small", "--backend", "nobody"],
        &["serve", "somebody/small", "--port", "x"],
    ] {
        let trace = traced(&sandbox, |command| online(command.args(words)));
        assert_ne!(trace.outcome.status.code(), Some(0));
        assert_eq!(trace.network(), Vec::<&str>::new(), "{words:?}: {}", trace.outcome.stderr);
    }
    assert_eq!(server.arrived().len(), 0);
    // The tracer does see a connection.
    let seen = traced(&sandbox, |command| online(command.args(["info", "somebody/small"])));
    assert!(!seen.network().is_empty() && !server.arrived().is_empty());
}

#[test]
fn an_endpoint_that_is_not_there_leaves_pull_as_the_way() {
    let sandbox = Sandbox::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = hub(demo());
    let serve = with(&sandbox, &server, &["serve", "somebody/small", "--backend", "cpu"]);
    let outcome = serve.env("HF_ENDPOINT", format!("http://{closed}")).run();
    outcome.exits(1);
    let last = outcome.stderr.lines().last().unwrap();
    assert!(last.contains(&format!("{closed} cannot be reached: Connection refused")), "{last}");
    assert!(last.ends_with("run tensorfold pull somebody/small first"), "{last}");
}

/// A hub that sends the beginning of the weights and then nothing, until the client is gone.
fn hub_that_stalls(bytes: usize) -> FakeHub {
    hub_with(demo(), move |request, reply| match (request.is_for(WEIGHTS), request.range()) {
        (true, Some(range)) if range.start == 0 => reply.pace(Pace::Stall(bytes)),
        (true, _) => reply.pace(Pace::Stall(0)),
        (false, _) => reply,
    })
}

/// Waits until the partial content has this length.
fn wait_for_partial(sandbox: &Sandbox, bytes: usize) {
    let partial = cached(sandbox, "blobs").join(format!("{}.incomplete", oid(&demo()[WEIGHTS])));
    let started = std::time::Instant::now();
    while std::fs::metadata(&partial).map_or(0, |metadata| metadata.len()) < bytes as u64 {
        assert!(started.elapsed().as_secs() < 60, "the beginning never came");
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_download_goes_on_where_it_was() {
    const THERE: usize = 3_000_000;
    for (signal, code) in [(libc::SIGKILL, None), (libc::SIGINT, Some(130)), (libc::SIGTERM, Some(143))] {
        let sandbox = Sandbox::new();
        let stalls = hub_that_stalls(THERE);
        let running = Running::start(with(&sandbox, &stalls, &["pull", "somebody/small"]));
        wait_for_partial(&sandbox, THERE);
        running.signal(signal);
        let (status, said) = running.end();
        assert_eq!(status.code(), code, "{said}");
        match code {
            None => assert_eq!(status.signal(), Some(libc::SIGKILL)),
            Some(_) => assert!(said.ends_with(
                "\ntensorfold: interrupted; what arrived is kept, and the same command goes on from there\n"
            )),
        }
        assert!(!cached(&sandbox, "refs").exists());
        let server = hub(demo());
        with(&sandbox, &server, &["pull", "somebody/small"]).run().exits(0);
        assert_eq!(server.bytes_of(WEIGHTS), demo()[WEIGHTS].len() - THERE, "only the rest is asked for");
        assert_eq!(server.bytes_of("tokenizer.json"), 0);
    }
}

#[test]
fn metadata_that_is_being_read_goes_away_with_the_process() {
    for words in
        [&["info", "somebody/small"][..], &["serve", "somebody/small", "--backend", "cpu", "--port", "0"]]
    {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let sandbox = Sandbox::new();
            let temporary = || std::fs::read_dir(sandbox.path().join("tmp")).unwrap().count();
            let stalls = hub_that_stalls(100);
            let running = Running::start(with(&sandbox, &stalls, words));
            stalls.wait_for(|request| request.is_for(WEIGHTS));
            assert_eq!(temporary(), 1, "{words:?}: nothing to remove");
            running.signal(signal);
            let (status, said) = running.end();
            assert_eq!(status.signal(), Some(signal), "{words:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
            assert_eq!(temporary(), 0, "{words:?}: {signal}");
        }
    }
}

#[test]
fn a_second_process_waits_for_the_first_and_takes_over_when_it_is_killed() {
    let sandbox = Sandbox::new();
    let stalls = hub_that_stalls(1_000_000);
    let first = Running::start(with(&sandbox, &stalls, &["pull", "somebody/small"]));
    wait_for_partial(&sandbox, 1_000_000);
    let server = hub(demo());
    let mut second = Running::start(with(&sandbox, &server, &["pull", "somebody/small"]));
    second.wait_for_line("model.safetensors: another process downloads it; waiting");
    assert_eq!(server.bytes_of(WEIGHTS), 0);
    first.signal(libc::SIGKILL);
    drop(first.end());
    let (status, said) = second.end();
    assert!(status.success(), "{said}");
    assert_eq!(server.bytes_of(WEIGHTS), demo()[WEIGHTS].len() - 1_000_000);
}

#[test]
fn two_pulls_at_once_do_the_work_once() {
    let sandbox = Sandbox::new();
    let server = hub(demo());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| with(&sandbox, &server, &["pull", "somebody/small"]).run().exits(0).status);
        }
    });
    for (path, content) in demo() {
        let sent = server.bytes_of(&path);
        assert!(
            sent == content.len() || sent == 0 && path.ends_with(".txt"),
            "{path}: {sent} of {}",
            content.len()
        );
    }
}

#[test]
fn a_token_is_sent_and_never_shown() {
    let sandbox = Sandbox::new();
    let server = hub(files([("config.json", b"{}".to_vec()), (WEIGHTS, noise(20_000))]));
    let outcome = with(&sandbox, &server, &["pull", "somebody/small"])
        .env("HF_TOKEN", "hf_very_secret")
        .env("TENSORFOLD_LOG", "trace")
        .run();
    outcome.exits(1);
    assert!(
        server
            .arrived()
            .iter()
            .all(|request| request.header("authorization") == Some("Bearer hf_very_secret"))
    );
    assert!(
        !outcome.stderr.contains("very_secret") && !outcome.stdout.contains("very_secret"),
        "{}",
        outcome.stderr
    );
    let elsewhere = with(&sandbox, &server, &["pull", "somebody/small"])
        .env("HF_TOKEN", "hf_very_secret")
        .env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        .run();
    elsewhere.exits(1);
    assert!(server.arrived().last().unwrap().header("authorization").is_none());
}
