//! Connections that end, stall and dribble, servers that lie, and files that change: what arrives is the file or
//! nothing, and what arrived is not asked for again.

mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::client::{model, open, pull, quick};
use support::server::{Pace, Reply, Request, Server, hub, hub_with, noise, oid};
use tensorfold_hub::Limits;

const FILE: &str = "model.safetensors";
const BYTES: usize = 1_000_000;

/// What becomes of a download from a server that follows a script for [`FILE`].
struct Outcome {
    cache: tempfile::TempDir,
    server: Server,
    error: Option<String>,
    lines: Vec<String>,
}

impl Outcome {
    fn of(limits: Limits, script: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) -> Outcome {
        Outcome::after(limits, |_| {}, script)
    }

    /// With something in the cache beforehand: `prepare` gets the path of the file's partial content.
    fn after(
        limits: Limits,
        prepare: impl Fn(&Path),
        script: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
    ) -> Outcome {
        let cache = tempfile::tempdir().unwrap();
        let blobs = cache.path().join("models--o--n/blobs");
        fs::create_dir_all(&blobs).unwrap();
        prepare(&blobs.join(format!("{}.incomplete", oid(&noise(BYTES)))));
        let server = hub_with(model(), move |request, reply| match request.is_for(FILE) {
            true => script(request, reply),
            false => reply,
        });
        let pulled = pull(&open(&server, cache.path(), &[], limits), "o/n");
        let (error, lines) = match pulled {
            Ok((folder, told)) => {
                assert_eq!(fs::read(folder.join(FILE)).unwrap(), noise(BYTES), "the content is the file's");
                (None, told.lines)
            }
            Err(error) => {
                let repository = cache.path().join("models--o--n");
                assert!(!repository.join("blobs").join(oid(&noise(BYTES))).exists());
                assert!(!repository.join("refs/main").exists());
                (Some(error.to_string()), Vec::new())
            }
        };
        Outcome { cache, server, error, lines }
    }

    #[track_caller]
    fn succeeds(&self) -> &Outcome {
        assert_eq!(self.error, None);
        self
    }

    #[track_caller]
    fn fails_with(&self, parts: &[&str]) -> &Outcome {
        let error = self.error.as_deref().expect("it succeeded");
        assert!(parts.iter().all(|part| error.contains(part)), "wanted {parts:?} in {error:?}");
        assert!(!error.contains('\n'));
        self
    }

    /// Bytes of the file that the server sent.
    fn sent(&self) -> usize {
        self.server.bytes_of(FILE)
    }

    fn requests(&self) -> usize {
        self.server.arrived().iter().filter(|request| request.is_for(FILE)).count()
    }

    fn partial(&self) -> Option<Vec<u8>> {
        let name = format!("models--o--n/blobs/{}.incomplete", oid(&noise(BYTES)));
        fs::read(self.cache.path().join(name)).ok()
    }
}

/// One connection at a time, in pieces that are larger than the file.
fn one_stream() -> Limits {
    Limits { piece: u64::MAX, ..quick() }
}

#[test]
fn a_cut_connection_is_gone_on_with_where_it_ended() {
    for limits in [quick(), one_stream()] {
        let outcome = Outcome::of(limits, |request, reply| match request.nth % 2 {
            0 => reply.pace(Pace::Cut(20_000)),
            _ => reply,
        });
        outcome.succeeds();
        assert_eq!(outcome.sent(), BYTES, "no byte comes twice");
    }
}

#[test]
fn a_server_that_always_cuts_is_not_given_up_while_it_gets_on() {
    let outcome = Outcome::of(one_stream(), |_, reply| reply.pace(Pace::Cut(50_000)));
    outcome.succeeds();
    assert_eq!((outcome.requests(), outcome.sent()), (20, BYTES));
}

#[test]
fn a_server_that_gets_nowhere_is_given_up_after_five_attempts() {
    let outcome = Outcome::of(one_stream(), |_, reply| reply.pace(Pace::Cut(100)));
    outcome.fails_with(&["127.0.0.1:", "cannot be reached"]);
    assert_eq!(outcome.requests(), 5);
    assert_eq!(
        outcome.partial().unwrap(),
        noise(BYTES)[..500],
        "what came is kept, as a beginning of the file"
    );
}

#[test]
fn a_stall_is_a_cut() {
    let limits = Limits { stall: Duration::from_secs(1), ..one_stream() };
    let outcome = Outcome::of(limits.clone(), |request, reply| match request.nth {
        0 => reply.pace(Pace::Stall(300_000)),
        1 => reply.pace(Pace::Stall(0)),
        _ => reply,
    });
    outcome.succeeds();
    assert_eq!((outcome.requests(), outcome.sent()), (3, BYTES));
    let silent = Outcome::of(Limits { attempts: 2, ..limits }, |_, reply| reply.pace(Pace::Stall(0)));
    silent.fails_with(&["it sent next to nothing for 1 s"]);
}

#[test]
fn a_byte_now_and_then_is_a_stall() {
    let limits = Limits { stall: Duration::from_secs(1), ..one_stream() };
    let outcome = Outcome::of(limits, |request, reply| match request.nth {
        0 => reply.pace(Pace::Drip),
        _ => reply,
    });
    outcome.succeeds();
    assert_eq!(outcome.requests(), 2);
}

#[test]
fn pieces_that_come_late_are_put_in_their_place() {
    // The first piece is cut again and again while those after it arrive at once.
    let outcome = Outcome::of(quick(), |request, reply| match request.range() {
        Some(range) if range.start < 64 << 10 => reply.pace(Pace::Cut(5_000)),
        _ => reply,
    });
    outcome.succeeds();
    assert_eq!(outcome.sent(), BYTES);
}

#[test]
fn a_partial_content_is_gone_on_with() {
    for limits in [quick(), one_stream()] {
        let partial = |path: &Path| fs::write(path, &noise(BYTES)[..700_000]).unwrap();
        let outcome = Outcome::after(limits, partial, |_, reply| reply);
        outcome.succeeds();
        assert_eq!(outcome.sent(), 300_000);
        assert!(outcome.lines.contains(&format!("begin {FILE} at 700000")), "{:?}", outcome.lines);
    }
    let whole = Outcome::after(quick(), |path| fs::write(path, noise(BYTES)).unwrap(), |_, reply| reply);
    whole.succeeds();
    assert_eq!(whole.requests(), 0, "what only lacked its name is verified and named");
}

#[test]
fn a_partial_content_of_another_file_is_begun_anew() {
    let wrong = |path: &Path| fs::write(path, vec![7; 700_000]).unwrap();
    let outcome = Outcome::after(quick(), wrong, |_, reply| reply);
    outcome.succeeds();
    assert_eq!(outcome.sent(), 300_000 + BYTES);
    let long = |path: &Path| fs::write(path, vec![7; BYTES + 1]).unwrap();
    let outcome = Outcome::after(quick(), long, |_, reply| reply);
    outcome.succeeds();
    assert_eq!(outcome.sent(), BYTES);
}

#[test]
fn a_server_without_ranges_sends_it_whole() {
    let whole = |request: &Request, _: Reply| {
        let bare = Request { headers: Default::default(), ..request.clone() };
        Reply::content(&bare, &noise(BYTES))
    };
    let outcome = Outcome::of(quick(), whole);
    outcome.succeeds();
    assert_eq!(outcome.server.served().iter().filter(|served| served.status == 206).count(), 0);
    // What is there is skipped, and a cut is gone on with even so.
    let partial = |path: &Path| fs::write(path, &noise(BYTES)[..700_000]).unwrap();
    let outcome = Outcome::after(one_stream(), partial, move |request, reply| match request.nth {
        0 => whole(request, reply).pace(Pace::Cut(800_000)),
        _ => whole(request, reply),
    });
    outcome.succeeds();
    assert_eq!(outcome.requests(), 2);
}

#[test]
fn a_wrong_content_is_read_once_more_and_then_refused_by_name() {
    let damaged = |mut reply: Reply| {
        if let Some(byte) = reply.body.first_mut() {
            *byte ^= 1;
        }
        reply
    };
    let outcome = Outcome::of(one_stream(), move |_, reply| damaged(reply));
    outcome.fails_with(&["model.safetensors: its content is not what its digest says"]);
    assert_eq!((outcome.requests(), outcome.partial()), (2, None), "nothing of it is gone on with");
    let outcome = Outcome::of(one_stream(), move |request, reply| match request.nth {
        0 => damaged(reply),
        _ => reply,
    });
    outcome.succeeds();
    assert_eq!(outcome.requests(), 2);
}

#[test]
fn a_small_files_digest_is_checked_too() {
    let cache = tempfile::tempdir().unwrap();
    let server = hub_with(model(), |request, mut reply| {
        if request.is_for("README.md") {
            reply.body[0] ^= 1;
        }
        reply
    });
    let error = pull(&open(&server, cache.path(), &[], quick()), "o/n").err().unwrap().to_string();
    assert!(error.starts_with("README.md: its content is not what its digest says"), "{error}");
}

#[test]
fn a_file_that_changes_between_pieces_is_noticed() {
    let changes = |request: &Request, reply: Reply| match request.range() {
        Some(range) if range.start > 500_000 => reply.with("ETag", "\"other\""),
        _ => reply,
    };
    Outcome::of(quick(), changes)
        .fails_with(&["model.safetensors: it changes at the server while it is read"]);
    // Once is no reason to give up: it is read anew.
    let changed = AtomicBool::new(false);
    let once = move |request: &Request, reply: Reply| match request.range() {
        Some(range) if range.start > 500_000 && !changed.swap(true, Ordering::SeqCst) => {
            reply.with("ETag", "\"other\"")
        }
        _ => reply,
    };
    let outcome = Outcome::of(quick(), once);
    outcome.succeeds();
    assert_eq!(outcome.lines.iter().filter(|line| line.starts_with(&format!("begin {FILE}"))).count(), 2);
}

#[test]
fn lengths_that_contradict_the_list_are_refused() {
    let total = Outcome::of(quick(), |request, reply| {
        let range = request.range().unwrap();
        reply.with(
            "Content-Range",
            format!("bytes {}-{}/{}", range.start, range.end.min(BYTES) - 1, BYTES + 1),
        )
    });
    total.fails_with(&["it is listed with 1000000 bytes and sent with 1000001"]);
    let longer = Outcome::of(one_stream(), |_, _| Reply::new(200, noise(BYTES + 1)));
    longer.fails_with(&["it is listed with 1000000 bytes and sent with 1000001"]);
    let shorter = Outcome::of(one_stream(), |_, _| Reply::new(200, noise(BYTES - 1)));
    shorter.fails_with(&["it is listed with 1000000 bytes and sent with 999999"]);
    let other_part = Outcome::of(quick(), |_, reply| reply.with("Content-Range", "bytes 1-65536/1000000"));
    other_part.fails_with(&["are sent"]);
    let no_part = Outcome::of(quick(), |_, reply| reply.with("Content-Range", "some"));
    no_part.fails_with(&["it is sent as the part \"some\""]);
    let part_length = Outcome::of(quick(), |request, reply| {
        let range = request.range().unwrap();
        reply.with("Content-Range", format!("bytes {}-{}/{BYTES}", range.start, range.start))
    });
    part_length.fails_with(&["its parts are not as long as they are said to be"]);
}

#[test]
fn more_than_was_announced_is_not_read() {
    // In one chunk, without a length before it.
    let outcome = Outcome::of(one_stream(), |_, _| {
        let body = [format!("{:x}\r\n", 2 * BYTES).into_bytes(), noise(BYTES), noise(BYTES)].concat();
        Reply::new(200, body).with("Transfer-Encoding", "chunked")
    });
    outcome.succeeds();
    assert_eq!(outcome.requests(), 1);
}

#[test]
fn compressed_content_is_refused() {
    Outcome::of(one_stream(), |_, reply| reply.with("Content-Encoding", "gzip"))
        .fails_with(&["it sends gzip content although none was asked for"]);
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let outcome = Outcome::of(one_stream(), |request, reply| match request.nth {
        0 => Reply::new(429, "").with("Retry-After", 1),
        1 => Reply::new(503, "").with("Retry-After", 0),
        2 => Reply::new(500, ""),
        _ => reply,
    });
    outcome.succeeds();
    assert_eq!(outcome.requests(), 4);
    let long = Outcome::of(one_stream(), |_, _| Reply::new(429, "").with("Retry-After", 3600));
    long.fails_with(&["limits requests (HTTP 429); try again in 3600 s", "HF_TOKEN"]);
    assert_eq!(long.requests(), 1);
    let broken = Outcome::of(one_stream(), |_, _| Reply::new(500, ""));
    broken.fails_with(&["HTTP 500"]);
    assert_eq!(broken.requests(), 5);
}

#[test]
fn redirects_end_and_stay_on_the_web() {
    Outcome::of(one_stream(), |request, _| Reply::new(302, "").with("Location", &request.path))
        .fails_with(&["more than 5 redirects"]);
    Outcome::of(one_stream(), |_, _| Reply::new(302, "").with("Location", "file:///etc/passwd"))
        .fails_with(&["it redirects to file:///etc/passwd, which is not the web"]);
}

#[test]
fn a_download_that_failed_goes_on_at_the_next_call() {
    let cache = tempfile::tempdir().unwrap();
    let ends = hub_with(model(), |request, reply| match request.is_for(FILE) {
        true if request.nth > 0 => Reply::new(500, ""),
        true => reply.pace(Pace::Cut(600_000)),
        false => reply,
    });
    assert!(pull(&open(&ends, cache.path(), &[], one_stream()), "o/n").is_err());
    let server = hub(model());
    let (folder, _) = pull(&open(&server, cache.path(), &[], one_stream()), "o/n").unwrap();
    assert_eq!(server.bytes_of(FILE), BYTES - 600_000);
    assert_eq!(fs::read(folder.join(FILE)).unwrap(), noise(BYTES));
}
