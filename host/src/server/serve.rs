//! A server's life: set up, answer, stop.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tensorfold_plugin_api::sampling::Sampling;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ServeError;
use super::body::Intake;
use super::connections::{Connections, HEAD_LIMIT};
use super::keys::Keys;
use super::lines::{Lines, ServingLine};
use super::listen::{BoundAddress, raise_open_file_limit};
use super::options::{ServeEnvironment, ServeOptions, Settings, model_ids};
use super::request_log::RequestLog;
use super::routes::router;
use super::stopping::{Stop, Stopping, stop_signal};
use super::thinking::Thinking;
use crate::engine::EngineHandle;
use crate::text::TextModel;

/// How long open connections may take to end once the server stops.
const GRACE: Duration = Duration::from_secs(2);
/// Threads that parse and tokenize, apart from those that answer.
const BLOCKING_THREADS: usize = 8;
const WORKER_THREADS: usize = 4;

/// A loaded model, as far as the server needs to know it.
pub struct ServedModel {
    /// Its tokenizer and chat template.
    pub text: TextModel,
    /// Ids that end a reply.
    pub stop_tokens: BTreeSet<u32>,
    /// What loading it took, for the serving line.
    pub load_seconds: f64,
    /// Why it runs on the processor although an accelerator is there.
    pub fallback: Option<String>,
}

/// A server that is set up and does not answer yet.
///
/// Everything that can be refused without a model is refused by
/// [`prepare`](Server::prepare), so that nobody waits for a model to load only
/// to hear that the port is taken. Until [`run`](Server::run) the port is held
/// and clients are turned away.
pub struct Server {
    options: ServeOptions,
    models: Vec<String>,
    seed_salt: i64,
    keys: Keys,
    request_log: Option<RequestLog>,
    address: BoundAddress,
    lines: Lines,
}

impl Server {
    /// Checks options and environment and takes the address.
    pub fn prepare(options: ServeOptions, environment: &ServeEnvironment) -> Result<Server, ServeError> {
        Server::prepare_with(options, environment, Lines::standard_output())
    }

    /// As [`prepare`](Server::prepare), with the lines going to `lines`.
    pub(super) fn prepare_with(
        options: ServeOptions,
        environment: &ServeEnvironment,
        lines: Lines,
    ) -> Result<Server, ServeError> {
        let models = model_ids(&options)?;
        let keys = Keys::collect(&options.api_keys, environment.keys()?, options.api_key_file.as_deref())?;
        let seed_salt = environment.salt()?;
        let request_log = match &environment.request_log {
            None => None,
            Some(path) => {
                let opened = RequestLog::open(Path::new(path));
                Some(opened.map_err(|error| ServeError::RequestLog { path: path.into(), error })?)
            }
        };
        let address = BoundAddress::bind(&options.host, options.port)?;
        Ok(Server { options, models, seed_salt, keys, request_log, address, lines })
    }

    /// The server with other sampling for requests that say nothing about it.
    pub fn with_sampling(mut self, sampling: Sampling) -> Server {
        self.options.sampling = sampling;
        self
    }

    /// Where the server will be reached, as `HOST:PORT` with the real port.
    pub fn authority(&self) -> String {
        self.address.authority()
    }

    /// Answers requests until SIGTERM or SIGINT. Blocks.
    ///
    /// When it returns, nothing is sent any more; the engine was told to stop,
    /// and its owner waits for it with [`EngineHandle::stop`].
    pub fn run(self, model: ServedModel, engine: EngineHandle) -> Result<(), ServeError> {
        match raise_open_file_limit() {
            Ok(Some(limit)) => tracing::info!("raised the limit of open files to {limit}"),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
        }
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKER_THREADS);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("tensorfold-http")
            .enable_all()
            .build()
            .map_err(ServeError::Runtime)?;
        let outcome = runtime.block_on(async {
            let mut signals = Signals::install().map_err(ServeError::Runtime)?;
            let running = self.start(model, engine)?;
            let keys = running.app.clone();
            running.until(async move { signals.wait_for_stop(|| keys.keys.reload()).await }).await
        });
        // A request that is still being parsed is nobody's any more.
        runtime.shutdown_background();
        outcome
    }

    /// Begins to listen and says so.
    pub(super) fn start(self, model: ServedModel, engine: EngineHandle) -> Result<Running, ServeError> {
        let Server { options, models, seed_salt, keys, request_log, address, lines } = self;
        let effort = options.reasoning_effort.as_deref();
        let effort_levels = model.text.effort_levels();
        let settings = Settings {
            models,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            max_tokens: options.max_tokens,
            sampling: options.sampling,
            thinking: Thinking::default_for(options.thinking, effort, &effort_levels),
            effort_levels,
            thinking_budget: options.thinking_budget,
            seed_salt,
            body_limit_bytes: options.body_limit_bytes,
            prompt_limit_bytes: model.text.most_bytes_of(engine.context()),
            context: engine.context(),
        };
        let authority = address.authority();
        if !address.is_loopback() && !keys.are_required() {
            lines.say(&format!(
                "warning: {authority} can be reached from other machines and no API key is set; anybody may use this server (see --api-key)"
            ));
        }
        if settings.thinking.enabled && model.text.has_thinking_switch() {
            lines.say(
                "thinking is on by default; --no-thinking or a request's \"enable_thinking\": false turns it off",
            );
        }
        let listener = address.listen()?;
        let serving = ServingLine {
            name: &settings.models[0],
            authority: &authority,
            sampling: &settings.sampling,
            drafts: engine.drafts(),
            context: engine.context(),
            load_seconds: model.load_seconds,
        };
        lines.say(&serving.text());
        let (stop, stopping) = stop_signal();
        let connections = Connections::default();
        let intake = Intake::default();
        let app = Arc::new(App {
            settings,
            model,
            engine,
            keys,
            lines,
            request_log,
            stopping,
            connections,
            intake,
        });
        Ok(Running { app, listener, stop })
    }
}

/// What every request needs.
pub(super) struct App {
    pub(super) settings: Settings,
    pub(super) model: ServedModel,
    pub(super) engine: EngineHandle,
    pub(super) keys: Keys,
    pub(super) lines: Lines,
    pub(super) request_log: Option<RequestLog>,
    pub(super) stopping: Stopping,
    pub(super) connections: Connections,
    pub(super) intake: Intake,
}

/// A server that answers.
pub(super) struct Running {
    pub(super) app: Arc<App>,
    listener: TcpListener,
    stop: Stop,
}

impl Running {
    /// Answers until `stop_wanted` is done, then ends what is open.
    pub(super) async fn until(self, stop_wanted: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Running { app, listener, stop } = self;
        let stopping = app.stopping.clone();
        let mut serving = pin!(app.connections.serve(listener, router(app.clone()), stopping, HEAD_LIMIT));
        tokio::select! {
            () = &mut serving => return Ok(()),
            () = stop_wanted => {}
        }
        app.engine.begin_stop();
        stop.stop();
        if tokio::time::timeout(GRACE, serving).await.is_err() {
            tracing::warn!("{} connections did not end in time", app.connections.count());
        }
        Ok(())
    }
}

/// The signals that a server answers to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn install() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGTERM or SIGINT; calls `reload` at each SIGHUP.
    async fn wait_for_stop(&mut self, reload: impl Fn()) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => reload(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn hanging_up_reloads_and_terminating_stops() {
        let mut signals = Signals::install().unwrap();
        let send = |number| {
            // SAFETY: `raise` has no memory preconditions, and the handlers of
            // `Signals` are in place, so the process goes on.
            assert_eq!(unsafe { libc::raise(number) }, 0);
        };
        for stop in [libc::SIGTERM, libc::SIGINT] {
            let reloads = Cell::new(0);
            send(libc::SIGHUP);
            // The stop follows only on the reload, so that both are seen to be heard.
            signals
                .wait_for_stop(|| {
                    reloads.set(reloads.get() + 1);
                    send(stop);
                })
                .await;
            assert_eq!(reloads.get(), 1);
        }
    }
}
