//! The cache beside the `hf-hub` crate: what either side put there serves the other.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::{HFClient, HFError, HFRepositorySync, RepoTypeModel};
use support::client::{everything, model, open, pull, quick};
use support::server::{COMMIT, Files, Pace, Reply, Request, Server, hub, hub_with, oid};
use tensorfold_hub::{Cache, Commit, RepositoryFolder, Revision};

/// What of [`model`] is no part of a model.
const UNWANTED: [&str; 3] = ["pytorch_model.bin", "picture.png", ".gitattributes"];

/// A file that the server has in large file storage.
const WEIGHTS: &str = "model.safetensors";

/// Its length.
const LENGTH: u64 = 1_000_000;

/// After so much of it the connection ends.
const CUT: u64 = 300_000;

/// The peer's view of `o/n`, at a server and in a cache.
fn peer(address: &str, cache: &Path) -> HFRepositorySync<RepoTypeModel> {
    let client = HFClient::builder()
        .endpoint(address)
        .cache_dir(cache)
        // Whatever the environment holds is no business of a test.
        .token("none")
        .retry_max_attempts(1)
        .retry_base_delay(Duration::from_millis(1))
        .build_sync()
        .unwrap();
    client.model("o", "n")
}

fn peer_pulls(server: &Server, cache: &Path, revision: &str) -> PathBuf {
    let peer = peer(server.address(), cache);
    let unwanted = UNWANTED.map(String::from).to_vec();
    peer.snapshot_download().revision(revision).ignore_patterns(unwanted).send().unwrap()
}

fn wanted() -> Files {
    let mut files = model();
    files.retain(|name, _| !UNWANTED.contains(&name.as_str()));
    files
}

/// Our own look-up, in that cache.
fn repository(cache: &Path) -> RepositoryFolder {
    let cache = Cache::from_variables(|name| (name == "HF_HUB_CACHE").then(|| cache.into()));
    cache.repository(&"o/n".parse().unwrap()).unwrap()
}

/// Every link below a folder, and what it says.
fn links(folder: &Path) -> BTreeMap<String, PathBuf> {
    everything(folder)
        .into_keys()
        .map(|path| (path.clone(), fs::read_link(folder.join(path)).unwrap()))
        .collect()
}

/// Bytes of any content that went out.
fn content_bytes(server: &Server) -> usize {
    server.settle();
    model().keys().map(|file| server.bytes_of(file)).sum()
}

#[test]
fn the_peer_finds_what_we_downloaded() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub(model());
    let ours = open(&server, cache.path(), &[], quick());
    for revision in ["main", "refs/pr/1"] {
        pull(&ours, &format!("o/n@{revision}")).unwrap();
    }
    // Nobody listens there: an answer can come from the cache alone.
    let peer = peer("http://127.0.0.1:9", cache.path());
    for revision in ["main", "refs/pr/1", COMMIT] {
        let find = peer.snapshot_download().revision(revision).local_files_only(true);
        let folder = find.send().unwrap();
        assert_eq!(folder, repository(cache.path()).snapshot(&Commit::parse(COMMIT).unwrap()), "{revision}");
        assert_eq!(everything(&folder), wanted(), "{revision}");
        for (name, content) in wanted() {
            let find = peer.download_file().filename(&name).revision(revision).local_files_only(true);
            let file = find.send().unwrap();
            assert_eq!(file, folder.join(&name), "{revision}");
            assert!(fs::read(file).unwrap() == content, "{name}");
        }
    }
    for (name, revision) in [("config.json", "another"), (UNWANTED[0], "main")] {
        let find = peer.download_file().filename(name).revision(revision).local_files_only(true);
        let error = find.send().unwrap_err();
        assert!(matches!(error, HFError::LocalEntryNotFound { .. }), "{name}@{revision}: {error}");
    }
}

#[test]
fn what_the_peer_downloaded_is_not_downloaded_again() {
    for revision in ["main", "refs/pr/1"] {
        let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let server = hub(model());
        let their_snapshot = peer_pulls(&server, theirs.path(), revision);
        let transferred = content_bytes(&server);
        assert_eq!(transferred, wanted().values().map(Vec::len).sum::<usize>());

        let found = repository(theirs.path());
        let commit = found.commit(&revision.parse::<Revision>().unwrap());
        assert_eq!(commit, Commit::parse(COMMIT), "{revision}");
        assert_eq!(found.newest_snapshot(), Some((their_snapshot.clone(), COMMIT.to_owned())));

        let reference = format!("o/n@{revision}");
        let (snapshot, told) = pull(&open(&server, theirs.path(), &[], quick()), &reference).unwrap();
        assert_eq!(snapshot, their_snapshot);
        let mut lines: Vec<_> =
            told.lines.iter().filter(|line| !line.starts_with("weights") && *line != "config").collect();
        lines.sort();
        let cached: Vec<_> = wanted().keys().map(|name| format!("cached {name}")).collect();
        assert_eq!(lines, cached.iter().collect::<Vec<_>>());
        assert_eq!((told.arrived, content_bytes(&server)), (0, transferred), "{revision}");

        let (our_snapshot, _) = pull(&open(&server, ours.path(), &[], quick()), &reference).unwrap();
        assert_eq!(everything(&our_snapshot), wanted());
        assert!(everything(&their_snapshot) == everything(&our_snapshot));
        assert_eq!(links(&their_snapshot), links(&our_snapshot));
        for folder in ["blobs", "refs"] {
            let folder = format!("models--o--n/{folder}");
            let [theirs, ours] = [&theirs, &ours].map(|cache| everything(&cache.path().join(&folder)));
            assert!(theirs == ours, "{folder}: {:?} {:?}", theirs.keys(), ours.keys());
        }
    }
}

/// The peer's download of the weights, cut, and what it left of them.
fn cut_short(cache: &Path) -> PathBuf {
    let server = hub_with(model(), |request: &Request, reply: Reply| match request.is_for(WEIGHTS) {
        true => reply.pace(Pace::Cut(usize::try_from(CUT).unwrap())),
        false => reply,
    });
    let error =
        peer(server.address(), cache).download_file().filename(WEIGHTS).revision(COMMIT).send().unwrap_err();
    assert!(matches!(error, HFError::Request { .. }), "{error}");
    cache.join(format!("models--o--n/blobs/{}.incomplete", oid(&model()[WEIGHTS])))
}

#[test]
fn what_the_peer_began_is_gone_on_with_and_never_believed() {
    type Damage = fn(&File);
    // What happens to the partial, its length then, and where the download begins: once more at the start when the
    // first try did not give the file.
    let cases: [(&str, Damage, u64, &[u64]); 4] = [
        ("as it was left", |_| {}, CUT, &[CUT]),
        ("one byte differs", |file| file.write_all_at(b"?", CUT / 2).unwrap(), CUT, &[CUT, 0]),
        ("as long as the file", |file| file.set_len(LENGTH).unwrap(), LENGTH, &[LENGTH, 0]),
        ("longer than the file", |file| file.set_len(LENGTH + 1).unwrap(), LENGTH + 1, &[0]),
    ];
    for (case, damage, length, begins) in cases {
        let cache = tempfile::tempdir().unwrap();
        let partial = cut_short(cache.path());
        damage(&OpenOptions::new().write(true).open(&partial).unwrap());
        assert_eq!(fs::metadata(&partial).unwrap().len(), length, "{case}");

        let server = hub(model());
        let (folder, told) = pull(&open(&server, cache.path(), &[], quick()), "o/n").unwrap();
        assert!(everything(&folder) == wanted(), "{case}");
        let began: Vec<_> =
            told.lines.iter().filter(|line| line.starts_with(&format!("begin {WEIGHTS} "))).collect();
        let expected: Vec<_> = begins.iter().map(|at| format!("begin {WEIGHTS} at {at}")).collect();
        assert_eq!(began, expected.iter().collect::<Vec<_>>(), "{case}");
        server.settle();
        let transferred = begins.iter().map(|at| LENGTH - at).sum::<u64>();
        assert_eq!(server.bytes_of(WEIGHTS) as u64, transferred, "{case}");
        assert!(!partial.exists(), "{case}");
    }
}
