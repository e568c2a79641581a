//! Ends and steers replies from the engine's side: stop strings, the budget for
//! thinking, the limit to one call of a tool.
//!
//! The server reads every reply as text anyway, but later and on another
//! thread. Where text decides how a reply goes on, it has to be read at the
//! token itself, so that a reply is the same however far its reader lags.

use crate::engine::{TokenWatch, Watch};
use crate::text::{Piece, ReplyStream};

/// Reads a reply along with the engine.
pub(super) struct ReplyWatch {
    text: ReplyStream,
    /// Room for pieces that nobody wants here.
    pieces: Vec<Piece>,
    /// Reply token at which thinking is cut off, from 1; 0: never.
    budget: u32,
    /// What stands in place of that token.
    close: Vec<u32>,
    /// The reply ends with its first call.
    one_call: bool,
    seen: u32,
}

impl ReplyWatch {
    /// A watch for stop strings; with a `budget` above 0 and tokens that `close`
    /// a think block also for that, and with `one_call` for the first call.
    pub(super) fn new(text: ReplyStream, budget: u32, close: Vec<u32>, one_call: bool) -> Self {
        let budget = if close.is_empty() { 0 } else { budget };
        ReplyWatch { text, pieces: Vec::new(), budget, close, one_call, seen: 0 }
    }
}

impl TokenWatch for ReplyWatch {
    fn token(&mut self, token: u32) -> Watch {
        self.seen = self.seen.saturating_add(1);
        if self.budget > 0 && self.seen == self.budget && self.text.is_reasoning() {
            // The tokens of the close are seen next, none of them at the budget again.
            return Watch::Replace(self.close.clone());
        }
        self.pieces.clear();
        self.text.push(token, &mut self.pieces);
        let called = self.one_call && self.pieces.iter().any(|piece| matches!(piece, Piece::Call(_)));
        if called || self.text.stopped().is_some() { Watch::Stop } else { Watch::Continue }
    }

    fn certain(&self) -> u32 {
        match self.budget > self.seen {
            true => self.budget - self.seen - 1,
            false => u32::MAX,
        }
    }
}
