//! The program as a server, and a client for it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::Invocation;

const LIMIT: Duration = Duration::from_secs(120);

/// A running server; ended when dropped.
pub(crate) struct Server {
    child: Child,
    address: String,
    said: Arc<Said>,
    ended: Mutex<Receiver<()>>,
}

/// What both outputs said, line by line.
#[derive(Default)]
struct Said {
    lines: Mutex<String>,
    on_stdout: Mutex<String>,
    more: Condvar,
}

impl Said {
    fn add(&self, line: &str, is_stdout: bool) {
        if is_stdout {
            self.on_stdout.lock().unwrap().push_str(&format!("{line}\n"));
        }
        self.lines.lock().unwrap().push_str(&format!("{line}\n"));
        self.more.notify_all();
    }
}

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        super::json(&self.body)
    }
}

impl Server {
    /// Starts `serve ...` and waits for its line `serving NAME at http://...`. A server that ends before is an error
    /// with all that it said.
    pub(crate) fn start(invocation: Invocation) -> Result<Server, String> {
        Server::start_as_given(invocation.args(["--port", "0"]))
    }

    /// As [`Server::start`], at the port that the command names.
    pub(crate) fn start_as_given(invocation: Invocation) -> Result<Server, String> {
        let mut command = invocation.into_command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("the program starts");
        let said = Arc::new(Said::default());
        let (sender, lines) = channel();
        let (over, ended) = channel::<()>();
        let outputs: [(Box<dyn std::io::Read + Send>, bool); 2] =
            [(Box::new(child.stdout.take().unwrap()), true), (Box::new(child.stderr.take().unwrap()), false)];
        for (output, is_stdout) in outputs {
            let (said, sender, over) = (said.clone(), sender.clone(), over.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    said.add(&line, is_stdout);
                    let _ = sender.send(line);
                }
                // Its clones are gone when both outputs are at their end.
                drop(over);
            });
        }
        drop((sender, over));
        let address = loop {
            match lines.recv_timeout(LIMIT) {
                Ok(line) => {
                    if let Some(address) = address_in(&line) {
                        break Some(address);
                    }
                }
                Err(_) => break None,
            }
        };
        let mut server =
            Server { child, address: address.clone().unwrap_or_default(), said, ended: Mutex::new(ended) };
        if address.is_none() {
            server.signal(libc::SIGKILL);
            let status = server.child.wait().unwrap();
            return Err(format!("{status}\n{}", server.said()));
        }
        Ok(server)
    }

    /// All lines of both outputs so far.
    pub(crate) fn said(&self) -> String {
        self.said.lines.lock().unwrap().clone()
    }

    /// All lines of its standard output so far.
    pub(crate) fn said_on_stdout(&self) -> String {
        self.said.on_stdout.lock().unwrap().clone()
    }

    /// Where it listens, as `HOST:PORT`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a signal to the server alone.
    pub(crate) fn send_signal(&self, signal: i32) {
        // SAFETY: the child is not yet waited for, so its number is its own.
        unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) };
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(&post_request(path, body))
    }

    /// Sends a request and does not wait for its answer.
    pub(crate) fn begin_post(&self, path: &str, body: &Value) -> TcpStream {
        self.begin(&post_request(path, body))
    }

    /// Waits for a line of the server's that holds this.
    pub(crate) fn wait_until_said(&self, part: &str) {
        let lines = self.said.lines.lock().unwrap();
        let more = |lines: &mut String| !lines.contains(part);
        let (lines, waited) = self.said.more.wait_timeout_while(lines, LIMIT, more).unwrap();
        assert!(!waited.timed_out(), "the server never said {part:?}:\n{lines}");
    }

    fn begin(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the server accepts connections");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn send(&self, request: &str) -> Answer {
        let mut stream = self.begin(request);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("the server answers");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Answer { status, body: if chunked { join_chunks(body) } else { body.to_owned() } }
    }

    fn signal(&self, signal: i32) {
        let group = i32::try_from(self.child.id()).unwrap();
        // SAFETY: signals the process group that `start` made and that is not yet waited for.
        unsafe { libc::kill(-group, signal) };
    }

    /// Asks it to end, waits, and gives its exit code and all it said.
    pub(crate) fn stop(mut self) -> (i32, String) {
        self.send_signal(libc::SIGTERM);
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> (i32, String) {
        let late =
            self.ended.lock().unwrap().recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            self.signal(libc::SIGKILL);
        }
        let status = self.child.wait().unwrap();
        assert!(!late, "the server did not end\n{}", self.said());
        let code = status.code();
        let code = code.unwrap_or_else(|| panic!("ended by signal {:?}\n{}", status.signal(), self.said()));
        (code, self.said())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

fn post_request(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The address in `[tensorfold] serving NAME at http://HOST:PORT/v1 (...)`.
fn address_in(line: &str) -> Option<String> {
    let rest = line.split_once("serving ")?.1.split_once(" at http://")?.1;
    Some(rest.split_once("/v1")?.0.to_owned())
}

fn join_chunks(mut body: &str) -> String {
    let mut joined = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk begins with its size");
        if size == 0 {
            break;
        }
        joined.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    joined
}
