//! Downloads that go well: what is asked for, what lies in the cache, and what is not asked for again.

mod support;

use std::fs;
use std::path::Path;

use support::client::{Told, everything, model, open, pull, quick};
use support::server::{self, COMMIT, Reply, Server, files, hub, hub_with, noise, oid};
use tensorfold_hub::{Event, Watch};

#[test]
fn a_model_lies_in_the_cache_as_the_hubs_own_tools_put_it() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let (folder, told) = pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
    let repository = cache.path().join("models--o--n");
    assert_eq!(folder, repository.join("snapshots").join(COMMIT));
    let mut wanted = model();
    for unwanted in ["pytorch_model.bin", "picture.png", ".gitattributes"] {
        wanted.remove(unwanted);
        assert!(!server.arrived().iter().any(|request| request.is_for(unwanted)), "{unwanted}");
    }
    assert_eq!(everything(&folder), wanted);
    for (path, content) in &wanted {
        let ups = "../".repeat(2 + path.matches('/').count());
        let link = fs::read_link(folder.join(path)).unwrap();
        assert_eq!(link, Path::new(&format!("{ups}blobs/{}", oid(content))));
    }
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read_dir(repository.join("blobs")).unwrap().count(), wanted.len(), "nothing is left over");
    assert_eq!(told.arrived, wanted.values().map(|content| content.len() as u64).sum::<u64>());
    let config = told.lines.iter().position(|line| line == "config").unwrap();
    assert_eq!(told.lines[..config], ["begin config.json at 0", "done config.json"]);
    assert!(told.lines.contains(&"weights 1 1000000".to_owned()), "{:?}", told.lines);
}

#[test]
fn large_files_come_in_pieces_over_several_connections() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
    let ranges: Vec<_> = server
        .arrived()
        .iter()
        .filter(|request| request.is_for("model.safetensors"))
        .map(|r| r.range())
        .collect();
    assert_eq!(ranges.len(), 1_000_000_usize.div_ceil(64 << 10));
    assert!(ranges.iter().all(|range| range.as_ref().is_some_and(|range| range.len() <= 64 << 10)));
    assert_eq!(server.bytes_of("model.safetensors"), 1_000_000, "no byte comes twice");
    let small: Vec<_> =
        server.arrived().into_iter().filter(|request| request.is_for("tokenizer.json")).collect();
    assert_eq!((small.len(), small[0].range()), (1, None));
}

#[test]
fn what_is_there_is_not_asked_for_again() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let hub = open(&server, cache.path(), &[], quick());
    pull(&hub, "o/n").unwrap();
    let before = server.arrived().len();
    let (folder, told) = pull(&hub, "o/n").unwrap();
    assert_eq!(server.arrived().len(), before + 2, "the revision and the list");
    assert_eq!(told.lines.iter().filter(|line| line.starts_with("cached")).count(), 5);
    // A link that is gone needs no content, a content of another length is none.
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    fs::write(cache.path().join("models--o--n/blobs").join(oid(&model()["README.md"])), "short").unwrap();
    pull(&hub, "o/n").unwrap();
    assert_eq!(fs::read(folder.join("README.md")).unwrap(), model()["README.md"]);
    assert_eq!(fs::read(folder.join("tokenizer.json")).unwrap(), model()["tokenizer.json"]);
    assert_eq!(server.bytes_of("tokenizer.json"), 30_000);
}

#[test]
fn a_revision_pins_its_own_name_and_no_other() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let hub = open(&server, cache.path(), &[], quick());
    let refs = cache.path().join("models--o--n/refs");
    fs::create_dir_all(&refs).unwrap();
    let older = "f".repeat(40);
    fs::write(refs.join("main"), &older).unwrap();
    for revision in ["refs/pr/1", "v1.0", COMMIT] {
        pull(&hub, &format!("o/n@{revision}")).unwrap();
    }
    assert_eq!(everything(&refs).keys().collect::<Vec<_>>(), ["main", "refs/pr/1", "v1.0"]);
    assert_eq!(fs::read_to_string(refs.join("main")).unwrap(), older);
    assert_eq!(fs::read_to_string(refs.join("refs/pr/1")).unwrap(), COMMIT);
    let asked: Vec<_> = server.arrived().into_iter().map(|request| request.path).collect();
    assert!(asked.contains(&"/api/models/o/n/revision/refs/pr/1".to_owned()), "{asked:?}");
}

#[test]
fn the_revision_is_named_only_when_everything_is_there() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub_with(model(), |request, reply| match request.is_for("model.safetensors") {
        true => Reply::new(404, "").with("X-Error-Code", "EntryNotFound"),
        false => reply,
    });
    let error = pull(&open(&server, cache.path(), &[], quick()), "o/n").err().unwrap().to_string();
    assert_eq!(error, "model.safetensors: o/n lists it and does not have it");
    assert!(!cache.path().join("models--o--n/refs/main").exists());
    let whole = hub(model());
    pull(&open(&whole, cache.path(), &[], quick()), "o/n").unwrap();
    assert_eq!(whole.bytes_of("tokenizer.json"), 0, "what came the first time is kept");
}

#[test]
fn all_pages_of_a_long_list_are_read() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start({
        let all = model();
        move |request| {
            if !request.path.contains("/tree/") {
                return server::standard(&all, request);
            }
            // One file a page.
            let page: usize = request.query.split("page=").nth(1).map_or(0, |text| text.parse().unwrap());
            let listed = server::tree(&all);
            let reply = Reply::json(&serde_json::json!([listed[page]]));
            match page + 1 < all.len() {
                true => reply.with("Link", format!("<{}?page={}>; rel=\"next\"", request.path, page + 1)),
                false => reply,
            }
        }
    });
    let hub = open(&server, cache.path(), &[], quick());
    assert_eq!(hub.list(&"o/n".parse().unwrap()).unwrap().files.len(), model().len());
    pull(&hub, "o/n").unwrap();
}

#[test]
fn two_at_once_do_the_work_once() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let hubs = [(); 3].map(|()| open(&server, cache.path(), &[], quick()));
    std::thread::scope(|scope| {
        for hub in &hubs {
            scope.spawn(move || pull(hub, "o/n").unwrap());
        }
    });
    for (path, content) in model() {
        let wanted = if path.ends_with(".bin") || path.ends_with(".png") || path.starts_with('.') {
            0
        } else {
            content.len()
        };
        assert_eq!(server.bytes_of(&path), wanted, "{path}");
    }
}

#[test]
fn whoever_waits_for_another_says_so_and_takes_over_when_it_ends() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let hub = open(&server, cache.path(), &[], quick());
    let locks = cache.path().join(".locks/models--o--n");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(format!("{}.lock", oid(&model()["model.safetensors"])))).unwrap();
    lock.lock().unwrap();
    struct Releasing(Told, Option<fs::File>);
    impl Watch for Releasing {
        fn config(&mut self, snapshot: &Path) -> Result<(), String> {
            self.0.config(snapshot)
        }
        fn event(&mut self, event: Event<'_>) {
            self.0.event(event);
            if let Event::Waiting { .. } = event {
                // The other one has ended.
                drop(self.1.take());
            }
        }
    }
    let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
    let mut watch = Releasing(Told::default(), Some(lock));
    hub.download(&listing, &mut watch).unwrap();
    let lines = watch.0.lines;
    let at = lines.iter().position(|line| line == "waiting model.safetensors").unwrap();
    assert_eq!(lines[at + 1], "begin model.safetensors at 0");
}

#[test]
fn the_token_goes_to_the_endpoint_and_never_to_where_it_redirects() {
    let cache = tempfile::tempdir().unwrap();
    let storage = std::sync::Arc::new(Server::start(|request| {
        Reply::content(request, &noise(1_000_000)).with("ETag", "\"of-the-storage\"")
    }));
    let elsewhere = storage.address().to_owned();
    let server = hub_with(model(), move |request, reply| match request.is_for("model.safetensors") {
        true => Reply::new(302, "")
            .with("Location", format!("{elsewhere}/bucket/key?signature=abc"))
            .with("X-Linked-Etag", format!("\"{}\"", oid(&noise(1_000_000)))),
        false => reply,
    });
    let (folder, _) =
        pull(&open(&server, cache.path(), &[("HF_TOKEN", "hf_secret")], quick()), "o/n").unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), noise(1_000_000));
    assert!(
        server.arrived().iter().all(|request| request.header("authorization") == Some("Bearer hf_secret"))
    );
    let stored = storage.arrived();
    assert_eq!(stored.len(), 16);
    assert!(stored.iter().all(|request| request.header("authorization").is_none()), "{stored:?}");
    assert!(!format!("{stored:?}").contains("secret"));
    let resolved = server.arrived().iter().filter(|request| request.is_for("model.safetensors")).count();
    assert!(resolved < 16, "the storage's address is used again: {resolved}");
}

#[test]
fn an_address_of_the_storage_that_has_run_out_is_asked_for_anew() {
    let cache = tempfile::tempdir().unwrap();
    // Each address serves once.
    let storage = Server::start(|request| match request.nth {
        0 => Reply::content(request, &noise(1_000_000)),
        _ => Reply::new(403, "expired"),
    });
    let elsewhere = storage.address().to_owned();
    let server = hub_with(model(), move |request, reply| match request.is_for("model.safetensors") {
        true => Reply::new(302, "").with("Location", format!("{elsewhere}/key-{}", request.nth)),
        false => reply,
    });
    let (folder, _) = pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), noise(1_000_000));
    drop(storage);
}

#[test]
fn metadata_alone_comes_with_headers_and_leaves_the_cache_alone() {
    let cache = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // One header that comes with the first part, and one that does not.
    let weights = |header: usize| {
        let mut file = (header as u64).to_le_bytes().to_vec();
        file.extend(vec![b' '; header]);
        file.extend(noise(3_000_000));
        file
    };
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let server = hub(files([
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-1.safetensors", weights(100)),
        ("model-2.safetensors", weights(200_000)),
        ("tokenizer.json", noise(30_000)),
    ]));
    let hub = open(&server, cache.path(), &[], quick());
    let listing = hub.list(&"o/n".parse().unwrap()).unwrap();
    hub.preview(&listing, folder.path()).unwrap();
    for (name, header) in [("model-1.safetensors", 100), ("model-2.safetensors", 200_000)] {
        let file = fs::read(folder.path().join(name)).unwrap();
        assert_eq!(file.len(), weights(header).len());
        assert_eq!(file[..header + 8], weights(header)[..header + 8]);
        assert!(file[header + 8..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(fs::read(folder.path().join("model.safetensors.index.json")).unwrap(), index);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    let bytes: usize = server.served().iter().map(|served| served.bytes).sum();
    assert!(bytes < 400_000, "{bytes} bytes for metadata");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn a_file_without_a_digest_is_called_what_the_endpoint_calls_it() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub_with(model(), |request, reply| {
        if request.path.contains("/tree/") {
            let mut tree: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            for entry in tree.as_array_mut().unwrap() {
                entry
                    .as_object_mut()
                    .unwrap()
                    .retain(|key, _| ["type", "path", "size"].contains(&key.as_str()));
            }
            return Reply::json(&tree);
        }
        match request.is_for("tokenizer.json") {
            true => reply.with("ETag", "W/\"own-name\""),
            false => reply,
        }
    });
    let (folder, _) = pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
    assert_eq!(fs::read_link(folder.join("tokenizer.json")).unwrap(), Path::new("../../blobs/own-name"));
    let called = |name: &'static str| {
        let other = tempfile::tempdir().unwrap();
        let server = hub_with(model(), move |request, reply| match request.path.contains("/tree/") {
            true => Reply::json(&serde_json::json!([{"type": "file", "path": "config.json", "size": 23}])),
            false => reply.with("ETag", name),
        });
        pull(&open(&server, other.path(), &[], quick()), "o/n").err().unwrap().to_string()
    };
    for name in ["\"../../../evil\"", "\".hidden\"", "\"other.incomplete\"", "\"\""] {
        assert!(called(name).contains("neither a digest nor a name"), "{name}: {}", called(name));
    }
    // A name that is a digest has to be the content's.
    let wrong = "\"0000000000000000000000000000000000000000\"";
    assert!(called(wrong).contains("its content is not what its digest says"), "{}", called(wrong));
    assert!(called("\"some-name\"").contains("holds no weights"), "{}", called("\"some-name\""));
}

#[test]
fn an_empty_file_needs_no_request() {
    let cache = tempfile::tempdir().unwrap();
    let mut all = model();
    all.insert("empty.txt".into(), Vec::new());
    let server = hub(all);
    let (folder, _) = pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
    assert_eq!(fs::read(folder.join("empty.txt")).unwrap(), b"");
    assert!(!server.arrived().iter().any(|request| request.is_for("empty.txt")));
}
