//! A server that plays the Hub, and everything a Hub, or somebody in its place, can do wrong. On the loopback only.
//!
//! It answers as the Hub does; a test's script changes any answer before it is sent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sha2::Digest as _;

/// The commit of everything.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// No test waits longer for something to happen.
const LIMIT: Duration = Duration::from_secs(60);

/// A request, as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Without the query, percent signs resolved.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// How many requests for the same path came before.
    pub(crate) nth: usize,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The range that is asked for.
    pub(crate) fn range(&self) -> Option<Range<usize>> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1)
    }

    /// Whether it is for the content of a file.
    pub(crate) fn is_for(&self, file: &str) -> bool {
        self.path.contains("/resolve/") && self.path.ends_with(&format!("/{file}"))
    }
}

/// How the body goes out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// All of it.
    Whole,
    /// The connection is closed after so many bytes.
    Cut(usize),
    /// After so many bytes nothing more comes, until the client gives up.
    Stall(usize),
    /// A byte now and then.
    Drip,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) pace: Pace,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, headers: Vec::new(), body: body.into(), pace: Pace::Whole }
    }

    pub(crate) fn json(value: &serde_json::Value) -> Reply {
        Reply::new(200, value.to_string())
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Reply {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub(crate) fn pace(mut self, pace: Pace) -> Reply {
        self.pace = pace;
        self
    }

    /// The content or the part of it that the request names.
    pub(crate) fn content(request: &Request, content: &[u8]) -> Reply {
        match request.range() {
            None => Reply::new(200, content),
            Some(range) if range.start >= content.len() => Reply::new(416, ""),
            Some(range) => {
                let end = range.end.min(content.len());
                let part = format!("bytes {}-{}/{}", range.start, end - 1, content.len());
                Reply::new(206, &content[range.start..end]).with("Content-Range", part)
            }
        }
    }
}

/// A request that was answered, and how many bytes of the body went out.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) request: Request,
    pub(crate) status: u16,
    pub(crate) bytes: usize,
}

#[derive(Default)]
struct Log {
    arrived: Vec<Request>,
    served: Vec<Served>,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    log: Mutex<Log>,
    more: Condvar,
}

/// A web server on a port of its own. Its threads end with the test program.
pub(crate) struct Server {
    address: String,
    shared: Arc<Shared>,
}

impl Server {
    pub(crate) fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shared =
            Arc::new(Shared { handler: Box::new(handler), log: Mutex::default(), more: Condvar::new() });
        let for_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = for_thread.clone();
                // A client that went away is not the server's trouble.
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Server { address, shared }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Requests that arrived, in their order.
    pub(crate) fn arrived(&self) -> Vec<Request> {
        self.shared.log.lock().unwrap().arrived.clone()
    }

    /// Requests that were answered, in the order in which their answers ended.
    pub(crate) fn served(&self) -> Vec<Served> {
        self.shared.log.lock().unwrap().served.clone()
    }

    /// Bytes of a file's content that went out, over all requests.
    pub(crate) fn bytes_of(&self, file: &str) -> usize {
        self.served().iter().filter(|served| served.request.is_for(file)).map(|served| served.bytes).sum()
    }

    /// Waits until everything that was asked for is answered: a client has the last byte before the log has it.
    pub(crate) fn settle(&self) {
        let log = self.shared.log.lock().unwrap();
        let open = |log: &mut Log| log.served.len() < log.arrived.len();
        let (log, waited) = self.shared.more.wait_timeout_while(log, LIMIT, open).unwrap();
        assert!(!waited.timed_out(), "{} of {:?} were answered", log.served.len(), log.arrived);
    }

    /// Waits until a request of this kind has arrived.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&Request) -> bool) {
        let log = self.shared.log.lock().unwrap();
        let none = |log: &mut Log| !log.arrived.iter().any(&wanted);
        let (log, waited) = self.shared.more.wait_timeout_while(log, LIMIT, none).unwrap();
        assert!(!waited.timed_out(), "no such request came: {:?}", log.arrived);
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(mut request) = read_request(&stream)? else { return Ok(()) };
    {
        let mut log = shared.log.lock().unwrap();
        request.nth = log.arrived.iter().filter(|earlier| earlier.path == request.path).count();
        log.arrived.push(request.clone());
        shared.more.notify_all();
    }
    let reply = (shared.handler)(&request);
    let sent = send(&mut stream, &request, &reply);
    let mut log = shared.log.lock().unwrap();
    log.served.push(Served { request, status: reply.status, bytes: sent });
    shared.more.notify_all();
    Ok(())
}

fn read_request(stream: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    Ok(Some(Request { method: method.into(), path: unescaped(path), query: query.into(), headers, nth: 0 }))
}

/// Sends an answer and says how many bytes of the body went out.
fn send(stream: &mut TcpStream, request: &Request, reply: &Reply) -> usize {
    let mut head = format!("HTTP/1.1 {} Answer\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !reply
        .headers
        .iter()
        .any(|(name, _)| ["content-length", "transfer-encoding"].contains(&&*name.to_ascii_lowercase()))
    {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    head += "\r\n";
    if stream.write_all(head.as_bytes()).is_err() || request.method == "HEAD" {
        return 0;
    }
    let up_to = match reply.pace {
        Pace::Whole => reply.body.len(),
        Pace::Cut(bytes) | Pace::Stall(bytes) => bytes.min(reply.body.len()),
        Pace::Drip => 0,
    };
    let mut sent = 0;
    for chunk in reply.body[..up_to].chunks(4096) {
        if stream.write_all(chunk).is_err() {
            return sent;
        }
        sent += chunk.len();
    }
    match reply.pace {
        Pace::Stall(_) => {
            // Ends when the client closes the connection.
            let _ = stream.read(&mut [0]);
        }
        Pace::Drip => {
            // The clock of the drops, and the look whether the client is still there.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(10)));
            for byte in &reply.body {
                let gone = matches!(stream.read(&mut [0]), Ok(0));
                if gone || stream.write_all(&[*byte]).is_err() {
                    break;
                }
                sent += 1;
            }
        }
        Pace::Whole | Pace::Cut(_) => {}
    }
    sent
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The files of the one repository that a hub has.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Files from names and contents.
pub(crate) fn files<const N: usize>(files: [(&str, Vec<u8>); N]) -> Files {
    files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect()
}

/// A hub with one repository of any name, at [`COMMIT`] whatever the revision.
pub(crate) fn hub(files: Files) -> Server {
    hub_with(files, |_, reply| reply)
}

/// As [`hub`], with a script that sees every request and the answer that it would get.
pub(crate) fn hub_with(
    files: Files,
    script: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static,
) -> Server {
    Server::start(move |request| script(request, standard(&files, request)))
}

/// What the Hub would answer.
pub(crate) fn standard(files: &Files, request: &Request) -> Reply {
    let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "models", owner, name, "revision", ..] => {
            Reply::json(&serde_json::json!({"id": format!("{owner}/{name}"), "sha": COMMIT}))
        }
        ["api", "models", _, _, "tree", COMMIT] => Reply::json(&tree(files)),
        [_, _, "resolve", COMMIT, path @ ..] => match files.get(&path.join("/")) {
            Some(content) => Reply::content(request, content)
                .with("ETag", format!("\"{}\"", oid(content)))
                .with("X-Repo-Commit", COMMIT),
            None => Reply::new(404, "").with("X-Error-Code", "EntryNotFound"),
        },
        _ => Reply::new(404, "").with("X-Error-Code", "RepoNotFound"),
    }
}

/// The list of files. Large ones are said to be in large file storage.
pub(crate) fn tree(files: &Files) -> serde_json::Value {
    let entry = |(path, content): (&String, &Vec<u8>)| {
        let mut entry = serde_json::json!({
            "type": "file", "oid": git_blob(content), "size": content.len(), "path": path,
        });
        if is_large(content) {
            entry["lfs"] =
                serde_json::json!({"oid": sha256(content), "size": content.len(), "pointerSize": 130});
        }
        entry
    };
    files.iter().map(entry).collect()
}

fn is_large(content: &[u8]) -> bool {
    content.len() > 10_000
}

/// The name of a content in the cache.
pub(crate) fn oid(content: &[u8]) -> String {
    if is_large(content) { sha256(content) } else { git_blob(content) }
}

fn sha256(content: &[u8]) -> String {
    hex(&sha2::Sha256::digest(content))
}

fn git_blob(content: &[u8]) -> String {
    let mut hasher = sha1::Sha1::new_with_prefix(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that repeat nowhere near.
pub(crate) fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}
