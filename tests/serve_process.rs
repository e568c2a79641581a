//! The server as a process: its lines, signals, ports, options, and what it leaves behind.

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::http::Connection;
use support::replies::{CHAT, COMPLETIONS, Reply, serve, start, wait_until};
use support::server::Server;
use support::trace::traced;
use support::{Invocation, Sandbox, built_with_the_workspace, demo_model};

/// Two seconds for open connections and some for a busy machine.
const IN_TIME: Duration = Duration::from_secs(10);

fn body(tokens: u32) -> Value {
    json!({ "prompt": "def isdir(s):", "max_tokens": tokens, "temperature": 1, "seed": 9, "ignore_eos": true })
}

#[test]
fn an_idle_server_ends_at_once_with_status_0_on_either_signal() {
    let sandbox = Sandbox::new();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = start(&sandbox, &demo_model(), &[]);
        // A connection that is kept open by its client is no reason to stay.
        let mut kept = server.connect();
        assert_eq!(kept.get("/health").head.status, 200);
        let begun = Instant::now();
        server.send_signal(signal);
        let (code, said) = server.wait();
        assert_eq!(code, 0, "{said}");
        assert!(begun.elapsed() < IN_TIME, "took {:?}", begun.elapsed());
        assert!(kept.is_closed());
    }
}

#[test]
fn a_server_that_is_stopped_during_replies_tells_every_client() {
    let sandbox = Sandbox::new();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = start(&sandbox, &demo_model(), &["--parallel", "1"]);
        let mut stream = server.stream(COMPLETIONS, &body(4000));
        let id = stream.event().expect("a first event")["id"].clone();
        let mut queued = server.connect();
        queued.begin(COMPLETIONS, &body(4000));
        let mut queued_stream =
            server.stream(CHAT, &json!({ "messages": [{ "role": "user", "content": "Hi" }] }));
        wait_until("two wait", || server.get("/health").json()["live"]["waiting"] == 2);
        let begun = Instant::now();
        server.send_signal(signal);
        for stream in [&mut stream, &mut queued_stream] {
            let events = stream.events();
            let error = &events.last().expect("an event that tells the end")["error"];
            assert_eq!(error["type"], "server_error", "{error}");
            assert_eq!(error["message"], "the server is shutting down");
            let others = &events[..events.len() - 1];
            assert!(others.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
        }
        assert_eq!(queued.response().refusal(503), "the server is shutting down");
        let (code, said) = server.wait();
        assert_eq!(code, 0, "{said}");
        assert!(begun.elapsed() < IN_TIME, "took {:?}", begun.elapsed());
        let ended = format!("ended {}: the server is shutting down; prompt=", id.as_str().unwrap());
        assert!(said.contains(&ended), "{said}");
        assert!(!said.contains("[tensorfold] done "), "nothing was completed: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_second_signal_while_it_stops_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut server = start(&sandbox, &demo_model(), &[]);
    let mut stream = server.stream(COMPLETIONS, &body(4000));
    stream.event().expect("a first event");
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        server.send_signal(signal);
    }
    assert_eq!(server.wait().0, 0);
}

#[test]
fn a_server_that_is_stopped_while_it_reads_a_prompt_does_not_read_it_to_its_end() {
    let sandbox = Sandbox::new();
    let mut server = start(&sandbox, &demo_model(), &[]);
    let prompt: Vec<u32> = (0..4000).collect();
    let mut connection = server.connect();
    connection.begin(COMPLETIONS, &json!({ "prompt": prompt, "max_tokens": 90, "ignore_eos": true }));
    wait_until("the prompt is being read", || server.health("requests_running") == 1);
    server.send_signal(libc::SIGTERM);
    assert_eq!(connection.response().refusal(503), "the server is shutting down");
    let (code, said) = server.wait();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the server is shutting down; prompt=4000 tokens=0 "), "{said}");
}

#[test]
fn a_hang_up_without_keys_to_read_changes_nothing() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    for _ in 0..3 {
        server.send_signal(libc::SIGHUP);
        assert_eq!(server.whole(COMPLETIONS, &body(2)).tokens, 2);
    }
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_server_whose_lines_nobody_reads_any_more_goes_on() {
    let sandbox = Sandbox::new();
    let mut command = serve(&sandbox, &demo_model()).args(["--port", "0"]).into_command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let serving = lines.find_map(|line| Some(line.unwrap().split_once(" at http://")?.1.to_owned())).unwrap();
    let (address, _) = serving.split_once("/v1").unwrap();
    drop((lines, child.stderr.take()));
    for _ in 0..3 {
        let response = Connection::open(address).post(COMPLETIONS, &body(2));
        assert_eq!(response.head.status, 200, "{response:?}");
    }
    // SAFETY: the child is not yet waited for, so its number is its own.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_can_be_served_at_again_right_after_its_server_has_ended() {
    let sandbox = Sandbox::new();
    let first = start(&sandbox, &demo_model(), &[]);
    let port = first.address().rsplit_once(':').unwrap().1.to_owned();
    // The server closes this connection, so that its port stays known to the system for a while.
    let mut kept = first.connect();
    assert_eq!(kept.get("/health").head.status, 200);
    assert_eq!(first.stop().0, 0);
    assert!(kept.is_closed());
    let command = serve(&sandbox, &demo_model()).args(["--port", &port]);
    let again = Server::start_as_given(command).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(again.address(), format!("127.0.0.1:{port}"));
    assert_eq!(again.whole(COMPLETIONS, &body(2)).tokens, 2);
}

#[test]
fn names_and_addresses_of_the_newer_kind_are_listened_at_and_written_as_they_are_used() {
    let sandbox = Sandbox::new();
    let named = start(&sandbox, &demo_model(), &["--host", "localhost"]);
    assert_eq!(named.whole(COMPLETIONS, &body(2)).tokens, 2);
    if TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let newer = start(&sandbox, &demo_model(), &["--host", "::1"]);
    assert!(newer.address().starts_with("[::1]:"), "{}", newer.address());
    assert_eq!(newer.whole(COMPLETIONS, &body(2)).tokens, 2);
}

#[test]
fn a_port_that_is_taken_is_one_line_before_any_code_of_the_plugin_runs() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let library = built_with_the_workspace("tensorfold_backend_cpu").canonicalize().unwrap();
    let ask = |port: &str| {
        let words = ["serve", "--backend", "cpu", "--port", port, "--plugin"].map(String::from);
        traced(&sandbox, |command| command.args(words).arg(&library).arg(demo_model()))
    };
    let trace = ask(&port);
    trace.outcome.refused_with(&[&format!("port {port} on 127.0.0.1 is already in use"), "--port"]);
    assert_eq!(trace.outcome.stdout, "");
    assert!(!trace.executable_files().contains(&library), "the plugin was loaded for nothing");
    assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new());
    // A server of this program on the port is no different.
    let server = start(&sandbox, &demo_model(), &[]);
    let (_, port) = server.address().rsplit_once(':').unwrap();
    let outcome = serve(&sandbox, &demo_model()).args(["--port", port]).run();
    outcome.refused_with(&["is already in use"]);
    assert_eq!(server.whole(COMPLETIONS, &body(2)).tokens, 2);
}

#[test]
fn an_address_that_is_not_this_machines_is_one_line() {
    let sandbox = Sandbox::new();
    // No name has a part of more than 63 letters, so that nobody is asked for its address.
    let no_name = "a".repeat(64);
    for (host, part) in [("203.0.113.7", "203.0.113.7"), (&*no_name, "--host"), ("", "--host")] {
        let outcome = serve(&sandbox, &demo_model()).args(["--port", "0", "--host", host]).run();
        outcome.refused_with(&[part]);
    }
}

#[test]
fn the_lines_have_their_shape_and_stdout_holds_nothing_else() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &["--no-thinking"]);
    let (host, port) = server.address().rsplit_once(':').unwrap();
    assert_eq!(host, "127.0.0.1");
    assert!(port.parse::<u16>().unwrap() > 0, "the port that it really has");
    let serving = server.said_on_stdout().lines().last().unwrap().to_owned();
    let rest = serving
        .strip_prefix(&format!("[tensorfold] serving demo at http://127.0.0.1:{port}/v1 (sampling: "))
        .unwrap_or_else(|| panic!("{serving}"));
    let seconds = rest
        .strip_prefix("temperature 0.7, top_p 0.8, top_k 20; drafts: on; context: 4096; loaded in ")
        .and_then(|rest| rest.strip_suffix("s)"))
        .unwrap_or_else(|| panic!("{serving}"));
    assert!(is_decimal(seconds), "{serving}");

    let prompt: Vec<u32> = (100..119).collect();
    let request = json!({ "prompt": prompt, "max_tokens": 7, "seed": 1, "ignore_eos": true, "draft": false });
    let response = server.connect().post(COMPLETIONS, &request);
    let reply = Reply::from_document(&response.json());
    let id = response.json()["id"].as_str().unwrap().to_owned();
    assert!(id.strip_prefix("cmpl-").is_some_and(|rest| rest.len() == 32), "{id}");
    assert_eq!(
        server.wait_for_line(&format!("done {id}")),
        format!(
            "[tensorfold] done {id} prompt=19 cached=0 thinking=False effort=none tokens=7 sha={} finish=length \
             rounds=6 accepted=0/0",
            reply.token_sha
        )
    );
    let thinking = json!({
        "messages": [{ "role": "user", "content": "Who are you?" }], "max_tokens": 80, "temperature": 0,
        "chat_template_kwargs": { "enable_thinking": true },
    });
    let reply = server.streamed(CHAT, &thinking);
    let line = server.wait_for_line("done chatcmpl-");
    for part in [
        " thinking=True effort=default ".to_owned(),
        format!(" prompt={} cached=0 ", reply.prompt_tokens),
        format!(" tokens={} sha={} finish=stop rounds=", reply.tokens, reply.token_sha),
    ] {
        assert!(line.contains(&part), "{part:?} in {line}");
    }
    let refused = server.connect().post(COMPLETIONS, &json!({ "prompt": "a", "top_p": "a\nb" })).refusal(400);
    assert!(server.wait_for_line("refused cmpl-").ends_with(&format!(": {refused} (400)")), "{refused}");

    let stdout = server.said_on_stdout();
    let (code, said) = server.stop();
    assert_eq!(code, 0);
    for line in stdout.lines() {
        let words = line.strip_prefix("[tensorfold] ").unwrap_or_else(|| panic!("{line:?} in {stdout}"));
        let kind = words.split(' ').next().unwrap();
        assert!(["serving", "done", "refused"].contains(&kind), "{line:?}");
    }
    assert_eq!(stdout.lines().count(), 4, "{stdout}");
    assert!(!said.chars().any(|character| character.is_control() && character != '\n'), "{said:?}");
}

fn is_decimal(text: &str) -> bool {
    text.split_once('.').is_some_and(|(whole, tenth)| whole.parse::<u32>().is_ok() && tenth.len() == 1)
}

#[test]
fn logs_go_to_stderr_however_much_is_asked_for() {
    let sandbox = Sandbox::new();
    for format in ["text", "json"] {
        let invocation = serve(&sandbox, &demo_model());
        let invocation = invocation.env("TENSORFOLD_LOG", "debug").env("TENSORFOLD_LOG_FORMAT", format);
        let server = Server::start(invocation).unwrap();
        assert_eq!(server.whole(COMPLETIONS, &body(2)).tokens, 2);
        server.wait_for_line("done cmpl-");
        let stdout = server.said_on_stdout();
        let (code, said) = server.stop();
        assert_eq!(code, 0);
        assert!(stdout.lines().all(|line| line.starts_with("[tensorfold] ")), "{stdout}");
        assert!(said.contains("using the weights"), "there are logs: {said}");
    }
}

#[test]
fn nothing_is_left_behind_but_what_was_learnt_about_the_plugin() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &demo_model(), &[]);
    assert_eq!(server.whole(COMPLETIONS, &body(4)).tokens, 4);
    assert_eq!(server.stop().0, 0);
    let home = sandbox.home();
    let allowed = [".cache", ".cache/tensorfold"].map(|name| home.join(name));
    for path in sandbox.traces_left() {
        let inside = path.starts_with(&allowed[1]);
        assert!(allowed.contains(&path) || inside, "left behind: {}", path.display());
    }
    assert_eq!(std::fs::read_dir(sandbox.path().join("tmp")).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn a_home_that_cannot_be_written_or_is_not_there_is_no_hindrance() {
    let sandbox = Sandbox::new();
    for home in [Some("/dev/null"), Some("/no/such/home"), Some(""), None] {
        let invocation = serve(&sandbox, &demo_model());
        let invocation = match home {
            Some(home) => invocation.env("HOME", home),
            None => invocation.without_env("HOME"),
        };
        let server = Server::start(invocation).unwrap_or_else(|said| panic!("HOME {home:?}: {said}"));
        assert_eq!(server.whole(COMPLETIONS, &body(2)).tokens, 2);
        assert_eq!(server.stop().0, 0);
    }
    assert!(!Path::new("/no/such").exists());
}

#[test]
fn the_number_of_threads_and_a_restart_change_no_bit_of_a_reply() {
    let sandbox = Sandbox::new();
    let prompt: Vec<u32> = (0..150).map(|position| position * 31 % 8170).collect();
    let request = json!({
        "prompt": prompt, "max_tokens": 40, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 77, "ignore_eos": true,
    });
    let replies: Vec<Reply> =
        [&["--opt", "cpu.threads=1"][..], &["--opt", "cpu.threads=2"], &["--threads", "5"], &[]]
            .iter()
            .map(|flags| {
                let server = start(&sandbox, &demo_model(), flags);
                let reply = server.whole(COMPLETIONS, &request);
                assert_eq!(server.stop().0, 0);
                reply
            })
            .collect();
    assert_eq!(replies[0].tokens, 40);
    assert!(replies.iter().all(|reply| *reply == replies[0]), "{replies:#?}");
}

#[test]
fn options_that_the_plugin_does_not_have_are_refused_before_its_code_runs() {
    let sandbox = Sandbox::new();
    for (option, parts) in [
        ("cpu.thread=1", &["cpu.thread", "threads"][..]),
        ("cpu.threads=many", &["threads", "many"]),
        ("cpu.threads=1025", &["threads", "1025", "1024"]),
        ("cpu.threads=-1", &["threads", "-1"]),
        ("gpu.threads=1", &["the backend in use is cpu, not gpu"]),
        ("threads=1", &["expected BACKEND.NAME=VALUE"]),
    ] {
        let outcome = serve(&sandbox, &demo_model()).args(["--port", "0", "--opt", option]).run();
        outcome.exits(2);
        let missing = parts.iter().find(|part| !outcome.stderr.contains(**part));
        assert_eq!((missing, outcome.stdout.as_str()), (None, ""), "{option}: {}", outcome.stderr);
        assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new(), "{option}");
    }
    let said = |arguments: &[&str]| {
        let outcome = serve(&sandbox, &demo_model()).args(["--port", "0"]).args(arguments).run();
        outcome.exits(2);
        outcome.stderr
    };
    let range = "--threads 1025: found 1025; allowed: a whole number from 0 to 1024";
    assert!(said(&["--threads", "1025"]).contains(range));
    for wrong in ["many", "-1", "1.5", ""] {
        assert!(said(&[&format!("--threads={wrong}")]).contains("argument --threads: a count from 0"));
    }
    for option in ["threads", "=", "cpu.threads"] {
        let outcome = serve(&sandbox, &demo_model()).args(["--opt", option]).run();
        outcome.exits(2);
        assert!(outcome.stderr.contains("argument --opt: "), "{}", outcome.stderr);
    }
}

#[test]
fn options_of_the_configuration_have_the_types_of_the_manifest() {
    let sandbox = Sandbox::new();
    let with = |entry: &str| {
        let content = format!(
            "[[plugin]]\nid = \"backend-cpu\"\nlibrary = \"libtensorfold_backend_cpu.so\"\noptions = {{ {entry} }}\n"
        );
        let file = sandbox.file("options.toml", content);
        sandbox.tensorfold(["--backend", "cpu", "serve"]).arg(demo_model()).arg("--plugins-file").arg(file)
    };
    for (entry, part) in [
        ("threads = \"3\"", "option threads of plugin backend-cpu: found \"3\"; allowed: a whole number"),
        ("threads = 1025", "found 1025; allowed: a whole number from 0 to 1024"),
        ("thread = 1", "plugins.toml: plugin backend-cpu has no option thread; it has "),
    ] {
        with(entry).args(["--port", "0"]).run().refused_with(&[part]);
        assert_eq!(sandbox.traces_left(), Vec::<PathBuf>::new(), "{entry}");
    }
    let server =
        Server::start(with("threads = 2").args(["--port", "0"])).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(server.stop().0, 0);
}

/// A checkpoint in the form in which Hugging Face's tools keep it, with links to the files.
fn cached(cache: &Path, repository: &str, model: &Path) {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let folder = cache.join(format!("models--{}", repository.replace('/', "--")));
    let snapshot = folder.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), COMMIT).unwrap();
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    for (number, file) in std::fs::read_dir(model).unwrap().enumerate() {
        let file = file.unwrap();
        let blob = format!("{number:064x}");
        std::fs::copy(file.path(), folder.join("blobs").join(&blob)).unwrap();
        let link = snapshot.join(file.file_name());
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), link).unwrap();
    }
}

#[test]
fn a_model_is_served_by_the_name_of_its_repository_by_its_folder_and_from_home() {
    let sandbox = Sandbox::new();
    let cache = sandbox.folder("hub");
    cached(&cache, "somebody/small-one", &demo_model());
    let named = |invocation: Invocation| {
        let server = Server::start(invocation).unwrap_or_else(|said| panic!("{said}"));
        let name = server.get("/v1/models").json()["data"][0]["id"].as_str().unwrap().to_owned();
        (name, server.whole(COMPLETIONS, &body(3)))
    };
    let folder = named(serve(&sandbox, &demo_model()));
    let repository = named(serve(&sandbox, Path::new("somebody/small-one")).env("HF_HUB_CACHE", &cache));
    assert_eq!(repository, ("small-one".to_owned(), folder.1.clone()));
    // A shell expands the sign of home; a quoted one comes through.
    std::os::unix::fs::symlink(demo_model(), sandbox.home().join("mine")).unwrap();
    assert_eq!(named(serve(&sandbox, Path::new("~/mine"))).1, folder.1);
    let inside = serve(&sandbox, Path::new(".")).in_folder(&demo_model());
    assert_eq!(named(inside), folder);
    let missing = serve(&sandbox, Path::new("somebody/other")).env("HF_HUB_CACHE", &cache).run();
    missing
        .refused_with(&["somebody/other is not in the Hugging Face cache", "tensorfold pull somebody/other"]);
}

#[test]
fn two_servers_at_once_each_answer_for_themselves() {
    let sandbox = Sandbox::new();
    let first = start(&sandbox, &demo_model(), &["--name", "one"]);
    let second = start(&sandbox, &demo_model(), &["--name", "two"]);
    assert_ne!(first.address(), second.address());
    let mut stream = first.stream(COMPLETIONS, &body(4000));
    stream.event().expect("a first event");
    let reply = second.whole(COMPLETIONS, &body(16));
    for (server, name) in [(&first, "one"), (&second, "two")] {
        assert_eq!(server.get("/v1/models").json()["data"][0]["id"], name);
    }
    drop(stream);
    assert_eq!(first.whole(COMPLETIONS, &body(16)), reply);
    assert_eq!(first.stop().0, 0);
    assert_eq!(second.whole(COMPLETIONS, &body(16)), reply, "the other one goes on");
    assert_eq!(second.stop().0, 0);
}

#[test]
fn several_servers_that_start_together_for_the_first_time_all_start() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let server = start(&sandbox, &demo_model(), &[]);
                assert_eq!(server.whole(COMPLETIONS, &body(2)).tokens, 2);
                assert_eq!(server.stop().0, 0);
            });
        }
    });
}

#[test]
fn an_address_that_others_can_reach_is_warned_about_unless_keys_are_set() {
    let sandbox = Sandbox::new();
    let open = start(&sandbox, &demo_model(), &["--host", "0.0.0.0"]);
    assert!(
        open.said().contains("can be reached from other machines and no API key is set"),
        "{}",
        open.said()
    );
    let (_, port) = open.address().rsplit_once(':').unwrap();
    let mut connection = support::http::Connection::open(&format!("127.0.0.1:{port}"));
    assert_eq!(connection.get("/health").head.status, 200);
    let keyed = start(&sandbox, &demo_model(), &["--host", "0.0.0.0", "--api-key", "k"]);
    assert!(!keyed.said().contains("can be reached"), "{}", keyed.said());
}

#[test]
fn bodies_are_logged_where_the_environment_asks_for_it_and_nowhere_else() {
    let sandbox = Sandbox::new();
    let log = sandbox.path().join("requests.jsonl");
    let server = Server::start(serve(&sandbox, &demo_model()).env("TENSORFOLD_REQUEST_LOG", &log)).unwrap();
    server.whole(COMPLETIONS, &body(3));
    assert_eq!(server.stop().0, 0);
    let text = std::fs::read_to_string(&log).unwrap();
    let entry = support::json(text.trim());
    assert_eq!((&entry["route"], &entry["body"]), (&json!(COMPLETIONS), &body(3)));
    let outcome = serve(&sandbox, &demo_model()).env("TENSORFOLD_REQUEST_LOG", "/no/such/folder/log").run();
    outcome.refused_with(&["TENSORFOLD_REQUEST_LOG /no/such/folder/log"]);
    let outcome = serve(&sandbox, &demo_model()).env("TENSORFOLD_SEED_SALT", "salty").run();
    outcome.refused_with(&["TENSORFOLD_SEED_SALT must be a whole number, not \"salty\""]);
}
