//! The `[tensorfold]` lines: what the program tells its user while it serves.
//!
//! Front ends parse these lines, so their shapes stay as they are. They go to
//! standard output, one write each; a reader that is gone is no error.

use std::io::Write;
use std::sync::Arc;

use tensorfold_plugin_api::sampling::Sampling;

use super::error::ApiError;
use crate::engine::DraftCounts;

/// Where the lines go.
#[derive(Clone)]
pub(super) struct Lines {
    sink: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Lines {
    /// Lines on standard output.
    pub(super) fn standard_output() -> Lines {
        Lines::to(|line| {
            let mut output = std::io::stdout().lock();
            let _ = writeln!(output, "{line}");
            let _ = output.flush();
        })
    }

    /// Lines handed to `sink`.
    pub(super) fn to(sink: impl Fn(&str) + Send + Sync + 'static) -> Lines {
        Lines { sink: Arc::new(sink) }
    }

    /// Says `text` with the prefix; line breaks in it cannot start a second line.
    pub(super) fn say(&self, text: &str) {
        (self.sink)(&format!("[tensorfold] {}", plain(text)));
    }

    /// The reason why a request was not begun.
    pub(super) fn refused(&self, id: &str, error: &ApiError) {
        self.say(&format!("refused {id}: {} ({})", error.message, error.status.as_u16()));
    }

    /// The reason why a begun request was not completed.
    pub(super) fn ended(&self, id: &str, why: &str, prompt: usize, tokens: usize, seconds: f64) {
        self.say(&format!("ended {id}: {why}; prompt={prompt} tokens={tokens} seconds={seconds:.1}"));
    }
}

/// The line that says that requests are answered.
pub(super) struct ServingLine<'a> {
    pub(super) name: &'a str,
    pub(super) authority: &'a str,
    pub(super) sampling: &'a Sampling,
    pub(super) drafts: bool,
    pub(super) context: u32,
    pub(super) load_seconds: f64,
}

impl ServingLine<'_> {
    pub(super) fn text(&self) -> String {
        let drafts = if self.drafts { "on" } else { "off" };
        let context = match self.context {
            u32::MAX => "unlimited".to_owned(),
            context => context.to_string(),
        };
        format!(
            "serving {} at http://{}/v1 (sampling: {}; drafts: {drafts}; context: {context}; loaded in {:.1}s)",
            self.name,
            self.authority,
            sampling_text(self.sampling),
            self.load_seconds
        )
    }
}

/// Sampling defaults in words: `greedy`, or the settings that cut or scale.
fn sampling_text(sampling: &Sampling) -> String {
    if sampling.temperature <= 0.0 {
        return "greedy".to_owned();
    }
    let mut parts = vec![format!("temperature {}", sampling.temperature)];
    if sampling.top_p > 0.0 && sampling.top_p < 1.0 {
        parts.push(format!("top_p {}", sampling.top_p));
    }
    if sampling.top_k > 0 {
        parts.push(format!("top_k {}", sampling.top_k));
    }
    if sampling.min_p > 0.0 {
        parts.push(format!("min_p {}", sampling.min_p));
    }
    parts.join(", ")
}

/// The line about a complete reply.
pub(super) struct DoneLine<'a> {
    pub(super) id: &'a str,
    pub(super) prompt: usize,
    pub(super) cached: u32,
    pub(super) thinking: bool,
    pub(super) effort: Option<&'a str>,
    pub(super) tokens: usize,
    pub(super) digest: &'a str,
    pub(super) finish: &'a str,
    pub(super) rounds: u64,
    /// `None` where the engine does not count.
    pub(super) drafts: Option<DraftCounts>,
}

impl DoneLine<'_> {
    pub(super) fn text(&self) -> String {
        let thinking = if self.thinking { "True" } else { "False" };
        let effort = if self.thinking { self.effort.unwrap_or("default") } else { "none" };
        let drafts = match &self.drafts {
            Some(counts) => {
                let total = counts.total();
                let used = counts.used().map(|(proposer, tally)| {
                    format!(" {}={}/{}", proposer.name(), tally.accepted, tally.drafted)
                });
                format!("{}/{}{}", total.accepted, total.drafted, used.collect::<String>())
            }
            None => "-/-".to_owned(),
        };
        format!(
            "done {} prompt={} cached={} thinking={thinking} effort={effort} tokens={} sha={} finish={} rounds={} accepted={drafts}",
            self.id, self.prompt, self.cached, self.tokens, self.digest, self.finish, self.rounds
        )
    }
}

/// One line without anything that could move a terminal's cursor: parts of it come from clients.
fn plain(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => line.push(' '),
            other if other.is_control() => line.extend(other.escape_default()),
            other => line.push(other),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Proposer;

    #[test]
    fn the_serving_line_keeps_its_shape() {
        let sampling = Sampling { temperature: 0.6, top_p: 0.95, top_k: 20, min_p: 0.0, seed: 0 };
        let mut line = ServingLine {
            name: "demo",
            authority: "127.0.0.1:8080",
            sampling: &sampling,
            drafts: true,
            context: 4096,
            load_seconds: 1.25,
        };
        assert_eq!(
            line.text(),
            "serving demo at http://127.0.0.1:8080/v1 (sampling: temperature 0.6, top_p 0.95, top_k 20; drafts: on; context: 4096; loaded in 1.2s)"
        );
        line.sampling = &Sampling::GREEDY;
        line.drafts = false;
        line.context = u32::MAX;
        assert!(line.text().contains("(sampling: greedy; drafts: off; context: unlimited; loaded"));
    }

    #[test]
    fn the_done_line_keeps_its_shape() {
        let mut drafts = DraftCounts::default();
        drafts.note(Proposer::Mtp, 3, 1);
        drafts.note(Proposer::Copy, 6, 3);
        let mut line = DoneLine {
            id: "chatcmpl-1",
            prompt: 12,
            cached: 0,
            thinking: true,
            effort: Some("high"),
            tokens: 34,
            digest: "e3b0c44298fc",
            finish: "stop",
            rounds: 33,
            drafts: Some(drafts),
        };
        assert_eq!(
            line.text(),
            "done chatcmpl-1 prompt=12 cached=0 thinking=True effort=high tokens=34 sha=e3b0c44298fc finish=stop rounds=33 accepted=4/9 mtp=1/3 copy=3/6"
        );
        (line.thinking, line.drafts) = (false, None);
        assert!(line.text().contains("thinking=False effort=none"));
        assert!(line.text().ends_with("accepted=-/-"));
    }

    #[test]
    fn one_message_is_one_line() {
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let lines = Lines::to({
            let said = said.clone();
            move |line| said.lock().unwrap().push(line.to_owned())
        });
        lines.refused("cmpl-1", &ApiError::bad_request("bad\ndone \x1b[2Jcmpl-9 prompt=1"));
        assert_eq!(
            *said.lock().unwrap(),
            ["[tensorfold] refused cmpl-1: bad done \\u{1b}[2Jcmpl-9 prompt=1 (400)"]
        );
    }
}
