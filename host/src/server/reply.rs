//! One reply on its way from the engine to a client: tokens in, pieces of
//! text and a summary out. Both forms of answer, whole and streamed, read it.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::error::ApiError;
use super::lines::DoneLine;
use super::prompt::{Interface, Prepared};
use super::serve::App;
use super::watch::ReplyWatch;
use crate::engine::{
    DraftCounts, Event, EventReceiver, FinishReason, GenerationRequest, ReplyStatistics, token_digest,
};
use crate::text::{Piece, ReplyStream};

/// A reply that is being made. Dropping it cancels it.
pub(super) struct Reply {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) interface: Interface,
    pub(super) include_usage: bool,
    pub(super) has_tools: bool,
    app: Arc<App>,
    events: EventReceiver,
    text: ReplyStream,
    prompt_tokens: usize,
    cached: u32,
    thinking: bool,
    effort: Option<String>,
    greedy: bool,
    drafts: bool,
    tokens: Vec<u32>,
    calls: usize,
    finished: Option<(FinishReason, ReplyStatistics)>,
    started: Instant,
    /// The user was told how this reply ended.
    reported: bool,
}

/// What comes next of a reply.
pub(super) enum Step {
    /// Text that has become certain.
    Pieces(Vec<Piece>),
    /// The reply is complete.
    Complete(Box<Summary>),
    /// The reply ends here, incomplete.
    Failed(ApiError),
}

/// What is told of a complete reply besides its text.
#[derive(Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) finish: &'static str,
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: Value,
    pub(super) tensorfold: Value,
    pub(super) speculative: Value,
}

impl Reply {
    /// Hands a prepared request to the engine.
    pub(super) fn submit(app: &Arc<App>, id: String, prepared: Prepared) -> Result<Reply, ApiError> {
        let Prepared { interface, model, fields, prompt, thinking, effort, one_call, text: options } =
            prepared;
        let max_tokens = reply_limit(app, interface, prompt.len(), fields.max_tokens)?;
        let sampling = fields.sampling;
        let budget = match (options.split_reasoning, fields.thinking_budget) {
            (false, _) => 0,
            (true, budget) => budget.unwrap_or(app.settings.thinking_budget),
        };
        let watched = budget > 0 || one_call || !options.stops.is_empty();
        let has_tools = options.tools.is_some();
        let text = app.model.text.reply(options);
        let watch = watched.then(|| {
            Box::new(ReplyWatch::new(text.clone(), budget, app.model.text.thinking_close(), one_call)) as _
        });
        let prompt_tokens = prompt.len();
        let events = app
            .engine
            .submit(GenerationRequest {
                id: id.clone(),
                prompt,
                max_tokens,
                sampling,
                stop_tokens: if fields.ignore_eos {
                    Default::default()
                } else {
                    app.model.stop_tokens.clone()
                },
                priority: fields.priority,
                drafts: fields.drafts,
                watch,
            })
            .map_err(|error| ApiError::from_submit(&error))?;
        Ok(Reply {
            id,
            model,
            interface,
            include_usage: fields.include_usage,
            has_tools,
            app: app.clone(),
            events,
            text,
            prompt_tokens,
            cached: 0,
            thinking,
            effort,
            greedy: sampling.is_greedy(),
            drafts: fields.drafts && app.engine.drafts(),
            tokens: Vec::new(),
            calls: 0,
            finished: None,
            started: Instant::now(),
            reported: false,
        })
    }

    /// Waits for what comes next. Nothing comes after `Complete` and `Failed`.
    pub(super) async fn next(&mut self) -> Step {
        loop {
            if let Some((reason, statistics)) = self.finished.take() {
                return Step::Complete(Box::new(self.complete(reason, &statistics)));
            }
            let event = tokio::select! {
                // What the engine has said already comes before the stop.
                biased;
                event = self.events.next() => event,
                () = self.app.stopping.wait() => {
                    return self.fail(ApiError::unavailable(crate::engine::SHUTTING_DOWN));
                }
            };
            let mut pieces = Vec::new();
            match event {
                Some(Event::Prefilled { cached }) => self.cached = cached,
                Some(Event::Tokens(tokens)) => {
                    for &token in &tokens {
                        self.text.push(token, &mut pieces);
                    }
                    self.tokens.extend(tokens);
                }
                Some(Event::Finished { reason, statistics }) => {
                    if let FinishReason::StopToken(token) = reason {
                        self.tokens.push(token);
                    }
                    if reason == FinishReason::Length && self.text.is_reasoning() {
                        self.app.lines.say(&format!(
                            "reply {} reached its {} tokens while thinking: it has no content",
                            self.id,
                            self.tokens.len()
                        ));
                    }
                    self.text.finish(&mut pieces);
                    self.finished = Some((reason, statistics));
                }
                Some(Event::Failed { kind, message }) => {
                    return self.fail(ApiError::from_failure(kind, message));
                }
                None => return self.fail(ApiError::engine("the reply has no more events")),
            }
            self.calls += pieces.iter().filter(|piece| matches!(piece, Piece::Call(_))).count();
            if !pieces.is_empty() {
                return Step::Pieces(pieces);
            }
        }
    }

    fn complete(&mut self, reason: FinishReason, statistics: &ReplyStatistics) -> Summary {
        let finish = match reason {
            FinishReason::Length => "length",
            FinishReason::StopToken(_) | FinishReason::Watch if self.calls > 0 => "tool_calls",
            FinishReason::StopToken(_) | FinishReason::Watch => "stop",
        };
        let digest = token_digest(&self.tokens);
        let line = DoneLine {
            id: &self.id,
            prompt: self.prompt_tokens,
            cached: self.cached,
            thinking: self.thinking,
            effort: self.effort.as_deref(),
            tokens: self.tokens.len(),
            digest: &digest,
            finish,
            rounds: statistics.rounds,
            drafts: statistics.drafts,
        };
        self.app.lines.say(&line.text());
        self.reported = true;
        Summary {
            finish,
            stop_sequence: self.text.stopped().map(str::to_owned),
            usage: self.usage(),
            tensorfold: self.tensorfold(&digest, statistics),
            speculative: speculative(self.tokens.len(), statistics),
        }
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens.len(),
            "total_tokens": self.prompt_tokens + self.tokens.len(),
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.text.reasoning_tokens() },
        })
    }

    fn tensorfold(&self, digest: &str, statistics: &ReplyStatistics) -> Value {
        let seconds = statistics.decode.as_secs_f64();
        let after_first = self.tokens.len().saturating_sub(1) as f64;
        let per_second = if seconds > 0.0 { after_first / seconds } else { 0.0 };
        let effort = match (self.thinking, &self.effort) {
            (false, _) => json!("none"),
            (true, effort) => json!(effort),
        };
        json!({
            "enable_thinking": self.thinking,
            "reasoning_effort": effort,
            "engine": self.app.engine.facts().name,
            "tokens_per_second": per_second,
            "seconds": seconds,
            "prefill_seconds": statistics.prefill.as_secs_f64(),
            "prefill_widths": [],
            "prefill_raised": [],
            "time_to_first_token": statistics.time_to_first_token.as_secs_f64(),
            "sampling": if self.greedy { "greedy" } else { "exact" },
            "drafts": self.drafts,
            "token_sha": digest,
            "min_rows": statistics.min_rows,
        })
    }

    fn fail(&mut self, error: ApiError) -> Step {
        self.say_ended(&error.message.clone());
        Step::Failed(error)
    }

    fn say_ended(&mut self, why: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.app.lines.ended(&self.id, why, self.prompt_tokens, self.tokens.len(), seconds);
        self.reported = true;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.reported {
            let stopping = self.app.stopping.is_stopping();
            self.say_ended(if stopping { crate::engine::SHUTTING_DOWN } else { "the client left" });
        }
    }
}

/// Tokens that a reply may have: what was asked for, else the server's default
/// as far as there is room.
fn reply_limit(app: &App, interface: Interface, prompt: usize, asked: Option<u32>) -> Result<u32, ApiError> {
    let context = app.engine.context();
    let param = match interface {
        Interface::Chat => "messages",
        Interface::Completion => "prompt",
    };
    let room = u64::from(context).saturating_sub(prompt as u64) as u32;
    if room == 0 {
        return Err(ApiError::context_exceeded(param, context, prompt, None));
    }
    match asked {
        Some(asked) if asked > room => Err(ApiError::context_exceeded(param, context, prompt, Some(asked))),
        Some(asked) => Ok(asked),
        None => Ok(app.settings.max_tokens.clamp(1, room)),
    }
}

/// The draft counts of a reply; null where the engine does not count.
fn speculative(tokens: usize, statistics: &ReplyStatistics) -> Value {
    let total = statistics.drafts.as_ref().map(DraftCounts::total);
    let rate = total.map(|total| match total.drafted {
        0 => 0.0,
        drafted => total.accepted as f64 / drafted as f64,
    });
    let per_round = match statistics.rounds {
        0 => 0.0,
        rounds => tokens as f64 / rounds as f64,
    };
    let mut counts = json!({
        "rounds": statistics.rounds,
        "drafted": total.map(|total| total.drafted),
        "accepted": total.map(|total| total.accepted),
        "acceptance_rate": rate,
        "tokens_per_round": per_round,
    });
    if let Some(drafts) = statistics.drafts.filter(|drafts| drafts.total().rounds > 0) {
        counts["proposer"] = proposers(&drafts);
    }
    counts
}

/// The counts of each proposer that drafted anything.
pub(super) fn proposers(drafts: &DraftCounts) -> Value {
    let counts = drafts.used().map(|(proposer, tally)| {
        let counts = json!({ "rounds": tally.rounds, "drafted": tally.drafted, "accepted": tally.accepted });
        (proposer.name().to_owned(), counts)
    });
    Value::Object(counts.collect())
}
