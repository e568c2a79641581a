//! Kept prompt states: a prompt that begins like an earlier one goes on from
//! where the earlier one was kept.
//!
//! States are kept while a prompt is computed, at absolute multiples of 64,
//! where a state is the same whichever chunks led to it; so a resumed reply is
//! the fresh one, bit for bit. Kept are, of each prompt, the last such border,
//! the border up to which it equals a prompt that was kept before, and powers
//! of two from 256 on. What was not used for longest goes when room is wanted.

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;

use super::lane::CHUNK_BORDER;
use super::round::{LaneId, RoundEngine, Snapshot, SnapshotId, is_fatal};

/// The first of the powers of two at which states are kept.
const FIRST_POWER: u32 = 256;

/// How much may be kept. 0 of either: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Bytes that the engine may hold for kept states.
    pub bytes: u64,
    /// Kept states.
    pub entries: u32,
}

/// The kept states of one engine.
pub(super) struct Prefixes {
    options: PrefixOptions,
    kept: Vec<Kept>,
    bytes: u64,
    /// Counts uses.
    clock: u64,
    sizes: Sizes,
    /// States of so many tokens and more have been seen to be too large.
    too_long: u32,
}

struct Kept {
    snapshot: SnapshotId,
    tokens: Vec<u32>,
    bytes: u64,
    used: u64,
}

/// What states were seen to take: the shortest and the longest, as tokens and bytes.
///
/// A state has a part of fixed size, which in recurrent models outweighs many
/// tokens. Bytes per token of one state would say far too much of longer ones.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    seen: Option<((u32, u64), (u32, u64))>,
}

impl Sizes {
    fn note(&mut self, tokens: u32, bytes: u64) {
        let size = (tokens, bytes);
        let (shortest, longest) = self.seen.unwrap_or((size, size));
        self.seen = Some((
            if tokens <= shortest.0 { size } else { shortest },
            if tokens >= longest.0 { size } else { longest },
        ));
    }

    /// Bytes of a state of so many tokens: on the line through what was seen, the
    /// same as the only one, or 0 where nothing is known.
    fn expected(&self, tokens: u32) -> u64 {
        let Some((shortest, longest)) = self.seen else { return 0 };
        if shortest.0 == longest.0 {
            return longest.1;
        }
        let run = u128::from(longest.0 - shortest.0);
        let rise = u128::from(longest.1.saturating_sub(shortest.1));
        let further = u128::from(tokens.saturating_sub(shortest.0));
        // A product of 64 and 32 bits.
        let more = (rise * further).div_ceil(run);
        shortest.1.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    }
}

impl Prefixes {
    /// Nothing is kept yet.
    pub(super) fn new(options: PrefixOptions) -> Self {
        Prefixes {
            options,
            kept: Vec::new(),
            bytes: 0,
            clock: 0,
            sizes: Sizes::default(),
            too_long: u32::MAX,
        }
    }

    /// Whether states are kept at all.
    pub(super) fn is_on(&self) -> bool {
        self.options.bytes > 0 && self.options.entries > 0
    }

    /// The longest kept state that `prompt` begins with, and its tokens. At
    /// least one token is left to be fed, from which the reply is drawn.
    pub(super) fn find(&mut self, prompt: &[u32]) -> Option<(SnapshotId, u32)> {
        let fits = |kept: &&mut Kept| kept.tokens.len() < prompt.len() && prompt.starts_with(&kept.tokens);
        let longest = self.kept.iter_mut().filter(fits).max_by_key(|kept| kept.tokens.len())?;
        self.clock += 1;
        longest.used = self.clock;
        Some((longest.snapshot, longest.tokens.len() as u32))
    }

    /// The borders after `from` at which the state of a prompt is to be kept, ascending.
    pub(super) fn borders(&self, prompt: &[u32], from: u32) -> Vec<u32> {
        if !self.is_on() {
            return Vec::new();
        }
        let border = |tokens: usize| tokens as u32 / CHUNK_BORDER * CHUNK_BORDER;
        let last = border(prompt.len() - 1);
        let shared = self.kept.iter().map(|kept| common(&kept.tokens, prompt)).max().unwrap_or(0);
        let powers = std::iter::successors(Some(FIRST_POWER), |power| power.checked_mul(2));
        let mut borders: Vec<u32> = powers.take_while(|&power| power < last).collect();
        borders.extend([border(shared).min(last), last]);
        borders.retain(|&border| border > from && border < self.too_long);
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Keeps the state of a lane that holds `tokens`. A state for which there is
    /// no room is not kept; an error means that the engine broke.
    pub(super) fn keep(
        &mut self,
        engine: &mut dyn RoundEngine,
        lane: LaneId,
        tokens: &[u32],
    ) -> Result<(), PluginError> {
        let length = tokens.len() as u32;
        if !self.is_on() || length >= self.too_long {
            return Ok(());
        }
        self.clock += 1;
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.tokens == tokens) {
            kept.used = self.clock;
            return Ok(());
        }
        let expected = self.sizes.expected(length);
        self.make_room(engine, expected, 1)?;
        let Snapshot { id, position, bytes } = loop {
            match engine.snapshot(lane) {
                Ok(snapshot) => break snapshot,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) if error.status == Status::OutOfMemory => {
                    if !self.drop_oldest(engine)? {
                        return Ok(());
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the engine keeps no prompt states; none are kept from now on");
                    self.options = PrefixOptions::default();
                    return Ok(());
                }
            }
        };
        if position != length {
            return Err(PluginError::new(
                Status::Internal,
                format!("the engine kept a state of {position} tokens where the lane holds {length}"),
            ));
        }
        self.sizes.note(length, bytes);
        if bytes > self.options.bytes {
            self.too_long = length;
            return note(engine.drop_snapshot(id));
        }
        self.kept.push(Kept { snapshot: id, tokens: tokens.to_vec(), bytes, used: self.clock });
        self.bytes += bytes;
        self.make_room(engine, 0, 0)
    }

    /// Frees the state that was not used for longest; false when none is kept.
    pub(super) fn drop_oldest(&mut self, engine: &mut dyn RoundEngine) -> Result<bool, PluginError> {
        let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.used);
        let Some((index, _)) = oldest else { return Ok(false) };
        self.remove(engine, index)?;
        Ok(true)
    }

    /// Frees a state that could not be used.
    pub(super) fn forget(
        &mut self,
        engine: &mut dyn RoundEngine,
        snapshot: SnapshotId,
    ) -> Result<(), PluginError> {
        match self.kept.iter().position(|kept| kept.snapshot == snapshot) {
            Some(index) => self.remove(engine, index),
            None => Ok(()),
        }
    }

    /// Frees all states.
    pub(super) fn clear(&mut self, engine: &mut dyn RoundEngine) -> Result<(), PluginError> {
        while self.drop_oldest(engine)? {}
        Ok(())
    }

    /// Frees states until so much more fits into the limits.
    fn make_room(
        &mut self,
        engine: &mut dyn RoundEngine,
        bytes: u64,
        entries: usize,
    ) -> Result<(), PluginError> {
        while self.bytes.saturating_add(bytes) > self.options.bytes
            || self.kept.len() + entries > self.options.entries as usize
        {
            if !self.drop_oldest(engine)? {
                break;
            }
        }
        Ok(())
    }

    fn remove(&mut self, engine: &mut dyn RoundEngine, index: usize) -> Result<(), PluginError> {
        let kept = self.kept.swap_remove(index);
        self.bytes -= kept.bytes;
        note(engine.drop_snapshot(kept.snapshot))
    }
}

/// How many tokens two prompts begin with in common.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn note(dropped: Result<(), PluginError>) -> Result<(), PluginError> {
    match dropped {
        Err(error) if !is_fatal(&error) => {
            tracing::warn!(%error, "the engine did not free a prompt state");
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
#[path = "prefixes_tests.rs"]
mod tests;
