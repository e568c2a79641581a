//! A client that keeps its connection open and shows answers as they come.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Far more than any answer takes.
const LIMIT: Duration = Duration::from_secs(120);

/// One connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    /// Of a stream of events: what has arrived and is not read yet.
    pending: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Head {
    /// A header by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        super::json(&self.body)
    }

    /// The message of a refusal with this status.
    #[track_caller]
    pub(crate) fn refusal(&self, status: u16) -> String {
        assert_eq!(self.head.status, status, "{self:?}");
        match self.json().pointer("/error/message").and_then(Value::as_str) {
            Some(message) if !message.is_empty() => message.to_owned(),
            _ => panic!("no message of an error: {self:?}"),
        }
    }
}

impl Connection {
    pub(crate) fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Connection { stream: BufReader::new(stream), pending: Vec::new() }
    }

    /// Sends a request whose body has a length.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let bytes = [format!("{head}\r\n").as_bytes(), body].concat();
        self.send_bytes(&bytes);
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Response {
        self.begin(path, body);
        self.response()
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send("GET", path, &[], b"");
        self.response()
    }

    /// Sends a request with a JSON body and reads nothing.
    pub(crate) fn begin(&mut self, path: &str, body: &Value) {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes());
    }

    pub(crate) fn response(&mut self) -> Response {
        let head = self.head();
        let mut body = Vec::new();
        if is_chunked(&head) {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        } else {
            let length = head.header("content-length").unwrap_or("0").parse().expect("a length");
            body.resize(length, 0);
            self.stream.read_exact(&mut body).expect("the whole body arrives");
        }
        Response { head, body: String::from_utf8(body).expect("a body in UTF-8") }
    }

    /// The head of the next answer.
    pub(crate) fn head(&mut self) -> Head {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {first:?}"));
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return Head { status, headers };
            }
            let (name, value) = line.split_once(':').expect("a header");
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }

    /// The next event of a stream whose head was read; `None` is `[DONE]`, after which nothing may come.
    pub(crate) fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.pending.drain(..end + 2).collect();
                let text = std::str::from_utf8(&event[..end]).expect("an event in UTF-8");
                let data = text.strip_prefix("data: ").unwrap_or_else(|| panic!("no event: {text:?}"));
                if data == "[DONE]" {
                    assert!(self.pending.is_empty() && self.chunk().is_none(), "something came after [DONE]");
                    return None;
                }
                return Some(super::json(data));
            }
            match self.chunk() {
                Some(chunk) => self.pending.extend(chunk),
                None => {
                    panic!("the stream ended without [DONE]: {:?}", String::from_utf8_lossy(&self.pending))
                }
            }
        }
    }

    /// All events up to `[DONE]`.
    pub(crate) fn events(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Whether the server has closed the connection, or does so now.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// The socket, for its options.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.line();
        let size =
            usize::from_str_radix(&size, 16).unwrap_or_else(|_| panic!("no size of a chunk: {size:?}"));
        let mut bytes = vec![0; size];
        self.stream.read_exact(&mut bytes).expect("the whole chunk arrives");
        assert_eq!(self.line(), "", "a chunk ends with its line");
        (size > 0).then_some(bytes)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        assert!(line.ends_with("\r\n"), "the connection ended within a line: {line:?}");
        line.truncate(line.len() - 2);
        line
    }
}

fn is_chunked(head: &Head) -> bool {
    head.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
}

/// The events of a stream that was read whole, with or without the marks of its chunks. Its end is `[DONE]`.
#[track_caller]
pub(crate) fn events_in(body: &str) -> Vec<Value> {
    let mut events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{body}");
    events.into_iter().map(super::json).collect()
}
