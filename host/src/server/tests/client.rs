//! A small HTTP client that shows answers as they are.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection, kept open between requests.
pub(super) struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
    chunks_left: bool,
}

/// A complete answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }

    pub(super) fn error(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    /// The events of a stream, without the end mark, which must be there.
    pub(super) fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{self:?}");
        let mut events: Vec<&str> = self
            .body
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| event.strip_prefix("data: ").expect("an event is one line of data"))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        Client { stream, unread: Vec::new(), chunks_left: false }
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[], body.to_string().as_bytes()).await
    }

    pub(super) async fn get(&mut self, path: &str) -> Answer {
        self.request("GET", path, &[], b"").await
    }

    pub(super) async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.send(method, path, headers, body).await;
        self.answer().await
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send_raw(head.as_bytes()).await;
        self.send_raw(body).await;
    }

    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads a whole answer.
    pub(super) async fn answer(&mut self) -> Answer {
        let (status, headers) = self.head().await;
        let mut body = Vec::new();
        if let Some(length) = headers.get("content-length") {
            body = self.take(length.parse().unwrap()).await;
        } else {
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
        }
        Answer { status, headers, body: String::from_utf8(body).unwrap() }
    }

    /// Reads status and headers.
    pub(super) async fn head(&mut self) -> (u16, BTreeMap<String, String>) {
        let status = self.line().await;
        let status = status.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_owned(), value.to_owned());
        }
        self.chunks_left = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        (status, headers)
    }

    /// Reads the next chunk of a stream; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Option<Vec<u8>> {
        assert!(self.chunks_left, "the answer has neither a length nor chunks");
        let size = usize::from_str_radix(&self.line().await, 16).unwrap();
        let chunk = self.take(size).await;
        assert_eq!(self.line().await, "");
        self.chunks_left = size > 0;
        (size > 0).then_some(chunk)
    }

    /// Whether the server closed the connection and left nothing unread.
    pub(super) async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        self.unread.is_empty() && matches!(self.stream.read(&mut byte).await, Ok(0) | Err(_))
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return String::from_utf8(line[..end].to_vec()).unwrap();
            }
            self.fill().await;
        }
    }

    async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            self.fill().await;
        }
        self.unread.drain(..count).collect()
    }

    async fn fill(&mut self) {
        let read = self.stream.read_buf(&mut self.unread).await.unwrap();
        assert_ne!(read, 0, "the server closed the connection");
    }
}
