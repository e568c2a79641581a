//! Replies of the server: asked for, read in both forms, compared.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::http::Connection;
use super::server::Server;
use super::{Invocation, Sandbox, built_with_the_workspace};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// A complete reply, whichever way it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) finish: String,
    pub(crate) stop_sequence: Option<String>,
    pub(crate) prompt_tokens: u64,
    pub(crate) tokens: u64,
    pub(crate) token_sha: String,
}

/// `serve MODEL` with the CPU plugin that was built with the tests, and no other plugin to be found.
pub(crate) fn serve(sandbox: &Sandbox, model: &Path) -> Invocation {
    let plugin = built_with_the_workspace("tensorfold_backend_cpu");
    sandbox.tensorfold(["--backend", "cpu", "serve"]).arg(model).arg("--plugin").arg(plugin)
}

/// A server for a model, with further flags.
#[track_caller]
pub(crate) fn start(sandbox: &Sandbox, model: &Path, flags: &[&str]) -> Server {
    Server::start(serve(sandbox, model).args(flags)).unwrap_or_else(|said| panic!("does not serve: {said}"))
}

impl Server {
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address())
    }

    /// The reply as one document.
    #[track_caller]
    pub(crate) fn whole(&self, path: &str, body: &Value) -> Reply {
        let response = self.connect().post(path, body);
        assert_eq!(response.head.status, 200, "{body}\n{response:?}");
        Reply::from_document(&response.json())
    }

    /// The reply as a stream, joined.
    #[track_caller]
    pub(crate) fn streamed(&self, path: &str, body: &Value) -> Reply {
        let mut connection = self.stream(path, body);
        Reply::from_events(&connection.events())
    }

    /// Begins a stream and reads its head.
    #[track_caller]
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Connection {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let mut connection = self.connect();
        connection.begin(path, &body);
        let head = connection.head();
        assert_eq!(head.status, 200, "{body}\n{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        connection
    }

    /// The reply, in both forms and the same in both.
    #[track_caller]
    pub(crate) fn reply(&self, path: &str, body: &Value) -> Reply {
        let whole = self.whole(path, body);
        assert_eq!(self.streamed(path, body), whole, "streamed and whole differ for {body}");
        whole
    }

    /// A number of `/health`.
    #[track_caller]
    pub(crate) fn health(&self, name: &str) -> u64 {
        let document = self.get("/health").json();
        document[name].as_u64().unwrap_or_else(|| panic!("no count {name} in {document}"))
    }

    /// Waits until no reply is being made.
    #[track_caller]
    pub(crate) fn wait_until_idle(&self) {
        wait_until("nothing runs any more", || self.health("requests_running") == 0);
    }

    /// Waits for a line that holds this, and gives it.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, part: &str) -> String {
        self.wait_until_said(part);
        self.said().lines().find(|line| line.contains(part)).expect("it was said").to_owned()
    }
}

/// Looks again and again until the condition holds; fails after far more time than it can take.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Reply {
    #[track_caller]
    pub(crate) fn from_document(document: &Value) -> Reply {
        let choice = &document["choices"][0];
        let message = choice.get("message").unwrap_or(choice);
        let field = |name: &str| message.get(name).and_then(Value::as_str).map(str::to_owned);
        let text = field("content").or_else(|| field("text"));
        Reply::new(
            document,
            text.unwrap_or_else(|| panic!("no text: {document}")),
            field("reasoning_content").unwrap_or_default(),
        )
    }

    /// Joins a stream and holds it to the published order of its events.
    #[track_caller]
    pub(crate) fn from_events(events: &[Value]) -> Reply {
        let (mut text, mut reasoning) = (String::new(), String::new());
        let (last, before) = events.split_last().expect("a stream has events");
        for event in before {
            assert!(event.get("error").is_none(), "the stream broke: {event}");
            assert!(event["choices"][0]["finish_reason"].is_null(), "an end before the end: {event}");
            assert_eq!(event["id"], last["id"]);
            let choice = &event["choices"][0];
            let delta = choice.get("delta").unwrap_or(choice);
            let piece = |name: &str| delta.get(name).and_then(Value::as_str).unwrap_or_default();
            text.push_str(piece("content"));
            text.push_str(piece("text"));
            reasoning.push_str(piece("reasoning_content"));
        }
        Reply::new(last, text, reasoning)
    }

    fn new(document: &Value, text: String, reasoning: String) -> Reply {
        let words = |value: &Value| value.as_str().map(str::to_owned);
        let number = |value: &Value| value.as_u64();
        let read = || {
            Some(Reply {
                finish: words(&document["choices"][0]["finish_reason"])?,
                stop_sequence: words(&document["stop_sequence"]),
                prompt_tokens: number(&document["usage"]["prompt_tokens"])?,
                tokens: number(&document["usage"]["completion_tokens"])?,
                token_sha: words(&document["tensorfold"]["token_sha"])?,
                text,
                reasoning,
            })
        };
        read().unwrap_or_else(|| panic!("not the end of a reply: {document}"))
    }
}

/// The digest of token ids as replies state it: the first 12 hex digits of SHA-256 over the ids in decimal, joined by
/// commas.
pub(crate) fn token_sha(ids: &[u64]) -> String {
    let text: Vec<String> = ids.iter().map(u64::to_string).collect();
    Sha256::digest(text.join(","))[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A list of token ids in a document.
#[track_caller]
pub(crate) fn ids(value: &Value) -> Vec<u64> {
    let ids = value.as_array().and_then(|ids| ids.iter().map(Value::as_u64).collect());
    ids.unwrap_or_else(|| panic!("no list of ids: {value}"))
}
