//! A text model whose tokens are bytes, and a server over it and a fake engine.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::ServeError;
use super::super::chat_text::*;
use super::super::lines::Lines;
use super::super::options::{ServeEnvironment, ServeOptions};
use super::super::serve::Server;
use super::client::Client;
use crate::engine::fake::{FakeControl, FakeEngine};
use crate::engine::{EngineHandle, EngineOptions};

pub(super) const END: u32 = 256;
pub(super) const THINK: u32 = 257;
pub(super) const THINK_END: u32 = 258;
pub(super) const VOCABULARY: u32 = 259;
const CALL: u32 = 1;
const CALL_END: u32 = 2;

/// Token ids of a reply: bytes, with `<think>`, `</think>`, `<end>`, `<call>`
/// and `</call>` as single tokens.
pub(super) fn tokens(text: &str) -> Vec<u32> {
    let marks = [
        ("<think>", THINK),
        ("</think>", THINK_END),
        ("<end>", END),
        ("<call>", CALL),
        ("</call>", CALL_END),
    ];
    let mut tokens = Vec::new();
    let mut rest = text;
    'text: while !rest.is_empty() {
        for (mark, token) in marks {
            if let Some(after) = rest.strip_prefix(mark) {
                tokens.push(token);
                rest = after;
                continue 'text;
            }
        }
        tokens.push(u32::from(rest.as_bytes()[0]));
        // Not a slice of the text: a character's bytes are single tokens.
        let first = rest.chars().next().unwrap().len_utf8();
        tokens.extend(rest.as_bytes()[1..first].iter().map(|&byte| u32::from(byte)));
        rest = &rest[first..];
    }
    tokens
}

/// The stub of a text model.
pub(super) struct StubText {
    stop_tokens: BTreeSet<u32>,
    levels: Vec<String>,
    close: Vec<u32>,
    tools: bool,
}

impl StubText {
    pub(super) fn new() -> Self {
        StubText {
            stop_tokens: [END].into(),
            levels: vec!["low".to_owned(), "high".to_owned()],
            close: tokens("\n</think>\n\n"),
            tools: true,
        }
    }

    pub(super) fn without_tools() -> Self {
        StubText { tools: false, ..StubText::new() }
    }
}

impl ChatText for StubText {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(tokens(text))
    }

    fn render(&self, conversation: &Conversation) -> Result<RenderedPrompt, String> {
        let mut text = String::new();
        for tool in &conversation.tools {
            text.push_str(&format!("tool:{}\n", tool["function"]["name"].as_str().unwrap()));
        }
        for (index, message) in conversation.messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap();
            if role == "system" && index > 0 {
                return Err("a system message must come first".to_owned());
            }
            text.push_str(&format!("{role}:{}\n", message["content"].as_str().unwrap()));
        }
        if let Some(effort) = &conversation.reasoning_effort {
            text.push_str(&format!("effort:{effort}\n"));
        }
        let mark = if conversation.enable_thinking { "<think>" } else { "" };
        let tokens = tokens(&format!("{text}assistant:{mark}"));
        Ok(RenderedPrompt { tokens, opens_thinking: conversation.enable_thinking })
    }

    fn reply(&self, options: &ReplyTextOptions) -> Box<dyn ReplyText> {
        Box::new(StubReply {
            options: options.clone(),
            thinking: options.opens_thinking,
            reasoning_tokens: 0,
            bytes: Vec::new(),
            call: None,
            stopped: None,
        })
    }

    fn stop_tokens(&self) -> &BTreeSet<u32> {
        &self.stop_tokens
    }

    fn has_thinking_switch(&self) -> bool {
        true
    }

    fn effort_levels(&self) -> &[String] {
        &self.levels
    }

    fn has_tools(&self) -> bool {
        self.tools
    }

    fn thinking_close(&self) -> &[u32] {
        &self.close
    }
}

struct StubReply {
    options: ReplyTextOptions,
    thinking: bool,
    reasoning_tokens: u32,
    bytes: Vec<u8>,
    call: Option<Vec<u8>>,
    stopped: Option<String>,
}

impl StubReply {
    /// Gives out the text that is certain: whole characters that begin no stop string.
    fn flush(&mut self, all: bool, pieces: &mut Vec<Piece>) {
        let valid = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = std::str::from_utf8(&self.bytes[..valid]).unwrap().to_owned();
        let mut certain = text.len();
        if !self.thinking {
            for stop in &self.options.stop {
                if let Some(start) = text.find(stop.as_str()) {
                    (certain, self.stopped) = (start, Some(stop.clone()));
                    break;
                }
                let held = (1..stop.len())
                    .rev()
                    .find(|&length| stop.is_char_boundary(length) && text.ends_with(&stop[..length]));
                certain = certain.min(text.len() - held.filter(|_| !all).unwrap_or(0));
            }
        }
        self.bytes.drain(..certain);
        let text = text[..certain].to_owned();
        if !text.is_empty() {
            pieces.push(if self.thinking { Piece::Reasoning(text) } else { Piece::Content(text) });
        }
    }
}

impl ReplyText for StubReply {
    fn push(&mut self, token: u32, pieces: &mut Vec<Piece>) {
        if self.stopped.is_some() {
            return;
        }
        self.reasoning_tokens += u32::from(self.thinking);
        match (token, &mut self.call) {
            (THINK_END, _) if self.thinking => {
                self.flush(true, pieces);
                self.thinking = false;
            }
            (CALL, _) if self.options.parse_calls => {
                self.flush(true, pieces);
                self.call = Some(Vec::new());
            }
            (CALL_END, Some(call)) => {
                let text = String::from_utf8(std::mem::take(call)).unwrap();
                self.call = None;
                let (name, arguments) = text.split_once(' ').unwrap();
                pieces.push(Piece::Call(ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }));
            }
            (byte, Some(call)) => call.push(byte as u8),
            (byte @ 0..256, None) => {
                self.bytes.push(byte as u8);
                self.flush(false, pieces);
            }
            _ => {}
        }
    }

    fn finish(&mut self, pieces: &mut Vec<Piece>) {
        if self.stopped.is_none() {
            self.flush(true, pieces);
        }
    }

    fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    fn is_thinking(&self) -> bool {
        self.thinking
    }

    fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }
}

/// A server that answers at a real socket.
pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    pub(super) control: FakeControl,
    pub(super) engine: EngineHandle,
    lines: Arc<(Mutex<Vec<String>>, Condvar)>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl TestServer {
    pub(super) fn start() -> TestServer {
        TestServer::with(StubText::new(), |_, _| {})
    }

    pub(super) fn with(
        text: StubText,
        change: impl FnOnce(&mut ServeOptions, &mut EngineOptions),
    ) -> TestServer {
        TestServer::with_environment(text, &ServeEnvironment::default(), change)
    }

    pub(super) fn with_environment(
        text: StubText,
        environment: &ServeEnvironment,
        change: impl FnOnce(&mut ServeOptions, &mut EngineOptions),
    ) -> TestServer {
        let mut options = ServeOptions { port: 0, ..ServeOptions::new("stub") };
        let mut engine_options = EngineOptions::default();
        change(&mut options, &mut engine_options);
        let (engine, control) = FakeEngine::new(VOCABULARY);
        let engine = EngineHandle::start(Box::new(engine), &engine_options).unwrap();
        let lines = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let sink = Lines::to({
            let lines = lines.clone();
            move |line| {
                lines.0.lock().unwrap().push(line.to_owned());
                lines.1.notify_all();
            }
        });
        let server = Server::prepare_with(options, environment, sink).unwrap();
        let address = server.authority().parse().unwrap();
        let running = server.start(Arc::new(text), engine.clone(), 0.5).unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(running.until(async {
            let _ = stopped.await;
        }));
        TestServer { address, control, engine, lines, stop, task }
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// All lines so far.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.0.lock().unwrap().clone()
    }

    /// Waits for a line that contains `text`. Blocks the thread.
    pub(super) fn wait_for_line(&self, text: &str) -> String {
        let mut lines = self.lines.0.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            lines = self.lines.1.wait(lines).unwrap();
        }
    }

    /// Asks the server to stop, as a signal would; the task ends when it has.
    pub(super) fn stop(self) -> JoinHandle<Result<(), ServeError>> {
        let _ = self.stop.send(());
        self.task
    }
}
