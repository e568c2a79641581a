//! Ends and steers replies from the engine's side: stop strings and the
//! budget for thinking.
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
    seen: u32,
}

impl ReplyWatch {
    /// A watch for stop strings alone, or with a `budget` above 0 and tokens
    /// that `close` a think block for both.
    pub(super) fn new(text: ReplyStream, budget: u32, close: Vec<u32>) -> Self {
        let budget = if close.is_empty() { 0 } else { budget };
        ReplyWatch { text, pieces: Vec::new(), budget, close, seen: 0 }
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
        if self.text.stopped().is_some() { Watch::Stop } else { Watch::Continue }
    }
}
