//! What is refused, in which words, and what has not happened by then.

mod support;

use std::fs;
use std::path::Path;

use serde_json::json;
use support::client::{Told, model, open, pull, quick};
use support::server::{COMMIT, Reply, Request, Server, files, hub, hub_with, noise, standard, tree};
use tensorfold_hub::{Cache, Event, Hub, HubError, Limits, Settings, Watch};

/// The error of a pull of `o/n`, after which the cache has at most empty folders.
#[track_caller]
fn refused(server: &Server, variables: &[(&str, &str)], limits: Limits) -> String {
    let cache = tempfile::tempdir().unwrap();
    let error =
        pull(&open(server, cache.path(), variables, limits), "o/n").err().expect("it is refused").to_string();
    assert_eq!(support::client::everything(cache.path()).len(), 0, "{error}");
    assert!(!error.contains('\n') && !error.contains("hf_secret"), "{error}");
    error
}

fn status(status: u16, code: &'static str) -> Server {
    Server::start(move |_| Reply::new(status, "<html>").with("X-Error-Code", code))
}

const TOKEN: &[(&str, &str)] = &[("HF_TOKEN", "hf_secret")];

#[test]
fn refusals_of_the_endpoint_say_what_to_do() {
    for (code, name, variables, wanted) in [
        (404, "RepoNotFound", &[][..], "check the spelling; for a private one set HF_TOKEN"),
        (404, "RepoNotFound", TOKEN, "the token in use may not be allowed to see it"),
        (401, "RepoNotFound", &[][..], "o/n is not at http://127.0.0.1:"),
        (401, "", &[][..], "for a private one set HF_TOKEN"),
        (401, "", TOKEN, "does not accept the token (HTTP 401)"),
        (403, "", TOKEN, "does not accept the token (HTTP 403)"),
        (401, "GatedRepo", &[][..], "o/n is gated: accept its terms at http://127.0.0.1:"),
        (403, "GatedRepo", TOKEN, "/o/n, then set HF_TOKEN to a token of that account"),
        (404, "RevisionNotFound", &[][..], "o/n has no revision main: name a branch, a tag or a commit"),
        (400, "", &[][..], "answered with what cannot be used: HTTP 400"),
    ] {
        let error = refused(&status(code, name), variables, quick());
        assert!(error.contains(wanted), "{code} {name}: wanted {wanted:?} in {error:?}");
    }
}

#[test]
fn a_gated_file_is_named_as_a_gate() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub_with(model(), |request, reply| match request.is_for("config.json") {
        true => Reply::new(403, "").with("X-Error-Code", "GatedRepo"),
        false => reply,
    });
    let error = pull(&open(&server, cache.path(), &[], quick()), "o/n").err().unwrap().to_string();
    assert!(error.starts_with("o/n is gated"), "{error}");
}

#[test]
fn no_connection_is_said_with_its_cause() {
    let gone = Server::start(|_| Reply::new(200, ""));
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (endpoint, wanted) in [
        (format!("http://{closed}"), "cannot be reached: Connection refused"),
        ("http://no-such-host.invalid".into(), "no-such-host.invalid cannot be reached: "),
        // Not encrypted where encryption was asked for.
        (gone.address().replace("http", "https"), "cannot be reached: "),
    ] {
        let mut settings =
            Settings::from_variables(|name| (name == "HF_ENDPOINT").then(|| endpoint.clone().into()))
                .unwrap();
        settings.limits = quick();
        let hub = Hub::new(&settings, Cache::default()).unwrap();
        let error = hub.list(&"o/n".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
}

#[test]
fn offline_there_is_no_client_at_all() {
    let settings = Settings::from_variables(|name| (name == "HF_HUB_OFFLINE").then(|| "1".into())).unwrap();
    assert!(matches!(Hub::new(&settings, Cache::default()), Err(HubError::Offline)));
}

/// A hub whose list of files is this.
fn listing(list: serde_json::Value) -> Server {
    hub_with(model(), move |request, reply| match request.path.contains("/tree/") {
        true => Reply::json(&list),
        false => reply,
    })
}

#[test]
fn paths_that_leave_their_folder_stop_everything_before_a_file_is_made() {
    for path in [
        "",
        "/etc/cron.d/x",
        "../../../.bashrc",
        "a/../../b",
        "./config.json",
        "a//b",
        "a/..",
        "..\\x",
        "a\0b",
        "a\nb",
    ] {
        for kind in ["file", "directory"] {
            let mut list = tree(&model());
            list.as_array_mut().unwrap().push(json!({"type": kind, "path": path, "size": 1, "oid": "0"}));
            let server = listing(list);
            let error = refused(&server, &[], quick());
            assert!(error.contains("would leave the folder of its files"), "{path:?}: {error}");
            assert_eq!(server.arrived().len(), 2, "nothing but the list was asked for");
        }
    }
}

#[test]
fn lists_that_cannot_be_meant_are_refused() {
    let config = || tree(&model())[2].clone();
    assert_eq!(config()["path"], "config.json");
    for (list, wanted) in [
        (json!([config(), config()]), "it lists config.json twice"),
        (json!([{"type": "file", "path": "config.json"}]), "does not say how long config.json is"),
        (json!([{"type": "file", "path": "config.json", "size": -1}]), "invalid value"),
        (json!({"error": "x"}), "invalid type"),
        (json!([]), "holds no config.json"),
    ] {
        let error = refused(&listing(list), &[], quick());
        assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
    }
}

#[test]
fn a_revision_is_a_commit_or_refused() {
    for sha in ["", "main", "../../x", &"g".repeat(40), &"0".repeat(64)] {
        let sha = sha.to_owned();
        let server = Server::start(move |_| Reply::json(&json!({"sha": sha})));
        assert!(refused(&server, &[], quick()).contains("is no commit"));
    }
    let server = hub(model());
    let cache = tempfile::tempdir().unwrap();
    let other = format!("o/n@{}", "f".repeat(40));
    let error = pull(&open(&server, cache.path(), &[], quick()), &other).err().unwrap().to_string();
    assert!(error.contains(&format!("{COMMIT} in place of the commit ffff")), "{error}");
}

#[test]
fn answers_of_any_length_are_not_read() {
    let server = Server::start(|_| Reply::new(200, noise(100_000)));
    let error = refused(&server, &[], Limits { document: 10_000, ..quick() });
    assert!(error.contains("is longer than 10000 bytes"), "{error}");
}

/// A hub whose pages of the list follow each other as `next` says.
fn pages(next: impl Fn(&Request) -> String + Send + Sync + 'static) -> Server {
    Server::start(move |request| match request.path.contains("/tree/") {
        true => Reply::json(&json!([])).with("Link", format!("<{}>; rel=\"next\"", next(request))),
        false => standard(&model(), request),
    })
}

#[test]
fn lists_without_an_end_are_not_read() {
    let circle = pages(|request| format!("{}?{}", request.path, request.query));
    assert!(refused(&circle, &[], quick()).contains("goes in a circle"));
    let endless = pages(|request| format!("{}?page={}", request.path, request.nth));
    assert!(refused(&endless, &[], Limits { files: 20, ..quick() }).contains("lists more than 20 files"));
    assert!(endless.arrived().len() < 30);
    let many = hub(model());
    assert!(refused(&many, &[], Limits { files: 3, ..quick() }).contains("lists more than 3 files"));
}

#[test]
fn a_page_elsewhere_is_not_asked_for() {
    let elsewhere = Server::start(|_| Reply::json(&json!([])));
    let address = elsewhere.address().to_owned();
    let server = pages(move |_| format!("{address}/next"));
    assert!(refused(&server, TOKEN, quick()).contains("its next page is elsewhere"));
    assert_eq!(elsewhere.arrived().len(), 0, "the token would have gone there");
}

#[test]
fn formats_that_are_not_read_are_refused_before_anything_is_stored() {
    let server = hub(files([("m.gguf", noise(100)), ("README.md", b"x".to_vec())]));
    assert!(refused(&server, &[], quick()).starts_with("o/n holds m.gguf, which is not served as it is"));
}

#[test]
fn what_the_configuration_rules_out_is_not_downloaded() {
    struct Never;
    impl Watch for Never {
        fn config(&mut self, _: &Path) -> Result<(), String> {
            Err("not this one".into())
        }
        fn event(&mut self, _: Event<'_>) {}
    }
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let hub = open(&server, cache.path(), &[], quick());
    let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
    assert_eq!(hub.download(&listing, &mut Never).unwrap_err().to_string(), "not this one");
    let asked: Vec<_> =
        server.arrived().into_iter().filter(|request| request.path.contains("/resolve/")).collect();
    assert!(asked.len() == 1 && asked[0].is_for("config.json"), "{asked:?}");
    assert!(!cache.path().join("models--o--n/refs").exists());
}

#[test]
fn a_disk_without_room_is_noticed_before_the_weights_are_asked_for() {
    let mut list = tree(&model());
    for entry in list.as_array_mut().unwrap() {
        if entry["path"] == "model.safetensors" {
            entry["lfs"]["size"] = json!(1u64 << 60);
        }
    }
    let server = listing(list);
    let cache = tempfile::tempdir().unwrap();
    let error = pull(&open(&server, cache.path(), &[], quick()), "o/n").err().unwrap().to_string();
    assert!(
        error.contains("and 1073741824.00 GiB more are needed: make room, or set HF_HUB_CACHE"),
        "{error}"
    );
    assert!(!server.arrived().iter().any(|request| request.is_for("model.safetensors")));
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("file");
    fs::write(&cache, "").unwrap();
    let server = hub(model());
    let error = pull(&open(&server, &cache, &[], quick()), "o/n").err().unwrap().to_string();
    assert!(error.starts_with(&format!("{}/models--o--n/blobs: ", cache.display())), "{error}");
    let settings =
        Settings::from_variables(|name| (name == "HF_ENDPOINT").then(|| server.address().into())).unwrap();
    let hub = Hub::new(&settings, Cache::from_variables(|_| None)).unwrap();
    let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
    let error = hub.download(&listing, &mut Told::default()).unwrap_err();
    assert_eq!(error.to_string(), "no folder for downloads: set HF_HUB_CACHE or HOME");
}

#[test]
fn metadata_that_would_be_read_without_end_is_refused() {
    let preview = |server: &Server, limits: Limits| {
        let (cache, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let hub = open(server, cache.path(), &[], limits);
        let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
        hub.preview(&listing, folder.path()).map_err(|error| error.to_string())
    };
    let mut weights = 900_000u64.to_le_bytes().to_vec();
    weights.extend(noise(1_000_000));
    let mut all = model();
    all.insert("model.safetensors".into(), weights);
    let server = hub(all.clone());
    let small = Limits { metadata: 100_000, ..quick() };
    assert!(
        preview(&server, small.clone())
            .unwrap_err()
            .contains("its header claims 900000 bytes; at most 100000")
    );
    assert_eq!(preview(&server, quick()), Ok(()));
    all.insert("config.json".into(), noise(200_000));
    let error = preview(&hub(all), small).unwrap_err();
    assert!(error.contains("config.json: 200000 bytes of it would have to be read"), "{error}");
    let damaged = hub_with(model(), |request, mut reply| {
        if request.is_for("config.json") {
            reply.body[0] ^= 1;
        }
        reply
    });
    assert!(preview(&damaged, quick()).unwrap_err().contains("config.json: its content is not what"));
}

#[test]
fn a_header_that_does_not_fit_its_file_is_left_to_the_reader() {
    for claimed in [u64::MAX, u64::MAX - 8, 99_993] {
        let mut weights = claimed.to_le_bytes().to_vec();
        weights.extend(noise(100_000 - 8));
        let mut all = model();
        all.insert("model.safetensors".into(), weights.clone());
        let (server, folder) = (hub(all), tempfile::tempdir().unwrap());
        let hub = open(&server, folder.path(), &[], quick());
        let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
        hub.preview(&listing, folder.path()).unwrap();
        let found = fs::read(folder.path().join("model.safetensors")).unwrap();
        assert_eq!((found.len(), &found[..8]), (weights.len(), &weights[..8]));
    }
}
