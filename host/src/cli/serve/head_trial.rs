//! Whether the guesses of a checkpoint's own head ever hold.
//!
//! Norms of a head are stored in two ways: as weights, or as what is to be added to one. Files do not say which, and a
//! reader that takes one for the other gets a head that runs and guesses nothing right: replies stay what they are, and
//! drafting costs time for nothing. So a head is tried once it is loaded. Where it guesses nothing, the other way is
//! tried; where neither works, the head does not draft.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::host::{EngineClient, LaneRequest, ModelSource as _};
use tensorfold_plugin_api::plugin::{DraftKind, NextDrafts};
use tensorfold_plugin_api::sampling::Sampling;

use crate::checkpoint::CheckpointSource;
use crate::cli::hint;
use crate::engine::Drafters;

/// What every model goes on with in some orderly way.
pub(super) const TEXT: &str = "def read(path):\n    \"\"\"Return the text of a file.\"\"\"\n    with open(path) as file:\n        \
                               return file.read()\n\n\ndef write(path, text):\n    \"\"\"Write text to a file.\"\"\"\n";

/// Guesses that are tried.
const GUESSES: u32 = 24;
/// Guesses that are tried on a machine that takes longer than [`ENOUGH`] for them.
const LEAST_GUESSES: u32 = 8;
/// Time after which few guesses must do.
const ENOUGH: Duration = Duration::from_secs(3);
/// A head that works guesses much more than one in so many right: heads with norms in the wrong convention guess
/// hardly any.
const ONE_IN: u32 = 8;

/// An engine with its drafters.
pub(super) type Loaded = (EngineClient, Drafters);

/// What became of guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tried {
    guesses: u32,
    right: u32,
}

impl Tried {
    /// Whether the head works, as far as was seen: too few guesses speak against nothing.
    fn works(self) -> bool {
        self.guesses < LEAST_GUESSES || self.right * ONE_IN > self.guesses
    }
}

/// The other way to read the norms of a head.
fn other_offset(offset: f32) -> f32 {
    1.0 - offset
}

/// Tries the head of an engine on `prompt`, and where it guesses nothing, the head with its norms read the other way:
/// `load` opens an engine anew. The head of the engine that comes back works, or was asked for, or is closed.
///
/// # Errors
/// What the plugin says.
pub(super) fn settle(
    loaded: Loaded,
    source: &CheckpointSource,
    prompt: &[u32],
    asked: bool,
    load: impl Fn(Arc<CheckpointSource>) -> Result<Loaded, PluginError>,
) -> Result<Loaded, PluginError> {
    let (mut client, mut drafters) = loaded;
    let mut spec = source.spec().clone();
    let (Some(head), true) = (&mut spec.mtp, drafters.mtp.is_some()) else { return Ok((client, drafters)) };
    let first = tried(&mut client, prompt)?;
    tracing::debug!(first.guesses, first.right, "tried the checkpoint's own head");
    if first.works() {
        return Ok((client, drafters));
    }
    head.norm_weight_offset = other_offset(head.norm_weight_offset);
    // Two engines at a time might not fit.
    drop(client);
    (client, drafters) = load(Arc::new(source.with_spec(spec)))?;
    let second = tried(&mut client, prompt)?;
    let Tried { guesses, right } = second;
    if second.works() && right > 2 * first.right {
        hint(&format!(
            "the norms of the checkpoint's own head are not stored as its form says: read the other way {right} of \
             {guesses} guesses hold, instead of {} of {}",
            first.right, first.guesses
        ));
        return Ok((client, drafters));
    }
    let few = format!(
        "of {} guesses {} held, and {right} with its norms read otherwise",
        first.guesses, first.right
    );
    if asked {
        hint(&format!("warning: the checkpoint's own head guesses hardly anything right: {few}"));
        drop(client);
        return load(Arc::new(source.with_spec(source.spec().clone())));
    }
    hint(&format!("the checkpoint's own head does not draft: {few}"));
    client.close_mtp()?;
    drafters.mtp = None;
    Ok((client, drafters))
}

/// Lets the model go on from a prompt, with one guess of its head a round.
fn tried(client: &mut EngineClient, prompt: &[u32]) -> Result<Tried, PluginError> {
    let room = client.info()?.context;
    let guesses = u64::from(GUESSES).min(room.saturating_sub(prompt.len() as u64 + 1)) as u32;
    let mut tried = Tried { guesses: 0, right: 0 };
    if prompt.is_empty() || guesses == 0 {
        return Ok(tried);
    }
    let lane = client.lane_open()?;
    let outcome = go_on(client, lane, prompt, guesses, &mut tried);
    client.lane_close(lane)?;
    outcome.map(|()| tried)
}

fn go_on(
    client: &mut EngineClient,
    lane: u64,
    prompt: &[u32],
    guesses: u32,
    tried: &mut Tried,
) -> Result<(), PluginError> {
    let mut position = 0;
    let mut tokens = prompt.to_vec();
    let mut guess = None;
    let mut started = None;
    while tried.guesses < guesses {
        let slow = started.is_some_and(|started: Instant| started.elapsed() > ENOUGH);
        if slow && tried.guesses >= LEAST_GUESSES {
            break;
        }
        let request = LaneRequest {
            lane,
            position,
            tokens: &tokens,
            draft_count: 0,
            output_count: 1,
            sampling: Sampling::GREEDY,
            allowed: None,
            logprobs: None,
            next_drafts: NextDrafts { kind: DraftKind::Mtp, count: 1, confidence: 0.0 },
            cancel: None,
        };
        let mut outcome = client.round(&[request])?;
        let Some(outcome) = outcome.lanes.pop() else { break };
        let Some(&drawn) = outcome.tokens.last() else { break };
        if let Some(guess) = guess {
            tried.guesses += 1;
            tried.right += u32::from(guess == drawn);
        }
        guess = outcome.drafts.first().map(|draft| draft.0);
        position = outcome.position;
        tokens = vec![drawn];
        started.get_or_insert_with(Instant::now);
        if guess.is_none() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_doubted_only_when_enough_was_seen() {
        let works = |guesses, right| Tried { guesses, right }.works();
        assert!(!works(24, 0) && !works(24, 3) && works(24, 4));
        assert!(works(7, 0) && !works(8, 1) && works(8, 2));
    }
}
