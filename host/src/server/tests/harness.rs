//! A real tokenizer over an engine without a model, behind a real socket.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::ServeError;
use super::super::lines::Lines;
use super::super::options::{ServeEnvironment, ServeOptions};
use super::super::serve::{ServedModel, Server};
use super::client::Client;
use crate::engine::fake::{FakeControl, FakeEngine};
use crate::engine::{EngineHandle, EngineOptions};
use crate::text::TextModel;

/// Ids of the tokenizer.
pub(super) const VOCABULARY: u32 = 1009;
/// `<|im_end|>`.
const END: u32 = 1002;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/tiny-qwen3_5");

/// A template whose prompts are easy to write down. It knows thinking and two
/// levels of effort, and wants system messages first.
const PLAIN_TEMPLATE: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}{{ raise_exception('system comes first') }}{%- endif -%}
{{ message.role + ':' + message.content + '\\n' }}
{%- endfor -%}
{%- if reasoning_effort is defined and reasoning_effort in ['low', 'high'] -%}
{{ 'effort:' + reasoning_effort + '\\n' }}
{%- endif -%}
assistant:
{%- if enable_thinking %}<think>{% endif -%}";

/// The tokenizer with its own template, which renders tools.
pub(super) fn model_with_tools() -> TextModel {
    static MODEL: LazyLock<TextModel> = LazyLock::new(|| TextModel::load(Path::new(FOLDER)).unwrap());
    MODEL.clone()
}

/// The tokenizer with [`PLAIN_TEMPLATE`].
pub(super) fn plain_model() -> TextModel {
    static MODEL: LazyLock<TextModel> = LazyLock::new(|| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(PLAIN_TEMPLATE.as_bytes()).unwrap();
        model_with_tools().with_template_file(file.path()).unwrap()
    });
    MODEL.clone()
}

/// The ids of a prompt.
pub(super) fn tokens(text: &str) -> Vec<u32> {
    plain_model().encode(text, false).unwrap()
}

/// The ids of a reply, one for each character (two for `é`); marks are single
/// ids, `<end>` is the one that ends the reply.
pub(super) fn script(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let marks = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<end>"];
        let piece = match marks.into_iter().find(|mark| rest.starts_with(mark)) {
            Some(mark) => mark,
            None => &rest[..character.len_utf8()],
        };
        rest = &rest[piece.len()..];
        match piece {
            "<end>" => ids.push(END),
            piece => ids.extend(tokens(piece)),
        }
    }
    ids
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
        TestServer::with(plain_model(), |_, _| {})
    }

    pub(super) fn with(
        text: TextModel,
        change: impl FnOnce(&mut ServeOptions, &mut EngineOptions),
    ) -> TestServer {
        TestServer::with_environment(text, &ServeEnvironment::default(), change)
    }

    pub(super) fn with_environment(
        text: TextModel,
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
        let model =
            ServedModel { text, stop_tokens: BTreeSet::from([END]), load_seconds: 0.5, fallback: None };
        let running = server.start(model, engine.clone()).unwrap();
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
