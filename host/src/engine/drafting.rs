//! Who guesses tokens ahead, how far, and what became of the guesses.

use tensorfold_plugin_api::plugin::DraftKind;

/// A source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proposer {
    /// The checkpoint's own multi-token prediction head.
    Mtp,
    /// An external block drafter of the first kind.
    Dflash,
    /// An external block drafter of the second kind.
    Dflash2,
    /// What followed earlier in the context, where its end stood before.
    Copy,
}

impl Proposer {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Proposer; 4] = [Proposer::Mtp, Proposer::Dflash, Proposer::Dflash2, Proposer::Copy];

    /// The name in replies, logs and counts.
    pub fn name(self) -> &'static str {
        match self {
            Proposer::Mtp => "mtp",
            Proposer::Dflash => "dflash",
            Proposer::Dflash2 => "dflash2",
            Proposer::Copy => "copy",
        }
    }

    /// By what an engine is asked for drafts; [`DraftKind::None`] where it is not asked.
    pub fn kind(self) -> DraftKind {
        match self {
            Proposer::Mtp => DraftKind::Mtp,
            Proposer::Dflash | Proposer::Dflash2 => DraftKind::Block,
            Proposer::Copy => DraftKind::None,
        }
    }

    /// Its place in tables of all proposers.
    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// The drafters that an engine has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafters {
    /// Most drafts of the checkpoint's own head for a lane in a round.
    pub mtp: Option<u32>,
    /// The external block drafter.
    pub block: Option<BlockDrafter>,
}

/// An external block drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDrafter {
    /// Whether it is of the second kind.
    pub second: bool,
    /// Most drafts for a lane in a round.
    pub drafts: u32,
}

impl Drafters {
    /// Each drafter with its most drafts, the one that is preferred where nothing is known first.
    pub(super) fn proposers(&self) -> impl Iterator<Item = (Proposer, u32)> + use<> {
        let block = self
            .block
            .map(|block| (if block.second { Proposer::Dflash2 } else { Proposer::Dflash }, block.drafts));
        let mtp = self.mtp.map(|drafts| (Proposer::Mtp, drafts));
        block.into_iter().chain(mtp).filter(|(_, drafts)| *drafts > 0)
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.proposers().next().is_some()
    }
}

/// How far to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DepthRule {
    /// As far as pays, by what rounds cost and by how many drafts held.
    #[default]
    Measured,
    /// Always as far as possible, also where that is slower: for holding drafted replies against serial ones.
    Full,
}

/// Most drafts of a checkpoint's own head where nobody says how many: heads are made for one to three, and each guess
/// builds on the one before.
pub(super) const MTP_DRAFTS: u32 = 3;

/// How drafts are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftOptions {
    /// Whether there are any: without, every reply takes one token a round.
    pub enabled: bool,
    /// Whether what followed earlier in the context is copied.
    pub copies: bool,
    /// Most drafts of the checkpoint's own head; 0 for none, `None` for the usual three.
    pub mtp_drafts: Option<u32>,
    /// A chain of that head ends before a draft less likely than this, from 0 to 1.
    pub mtp_confidence: f32,
    /// How far to draft.
    pub depth: DepthRule,
}

impl Default for DraftOptions {
    fn default() -> Self {
        DraftOptions {
            enabled: true,
            copies: true,
            mtp_drafts: None,
            mtp_confidence: 0.3,
            depth: DepthRule::Measured,
        }
    }
}

impl DraftOptions {
    /// Whether an engine that can draw from so many rows of a lane tests copies.
    pub(super) fn copies(&self, outputs: u32) -> bool {
        self.enabled && self.copies && outputs > 1
    }

    /// The drafters that are used of those that an engine has.
    pub(super) fn used(&self, drafters: Drafters) -> Drafters {
        if !self.enabled {
            return Drafters::default();
        }
        let most = self.mtp_drafts.unwrap_or(MTP_DRAFTS);
        Drafters { mtp: drafters.mtp.map(|drafts| drafts.min(most)).filter(|&drafts| drafts > 0), ..drafters }
    }
}

/// What became of the drafts of one proposer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftTally {
    /// Rounds that tested its drafts, summed over replies.
    pub rounds: u64,
    /// Tokens guessed.
    pub drafted: u64,
    /// Guessed tokens that were accepted.
    pub accepted: u64,
}

/// What became of drafts, by proposer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    tallies: [DraftTally; Proposer::ALL.len()],
}

impl DraftCounts {
    /// Counts one round of one reply.
    pub(crate) fn note(&mut self, proposer: Proposer, drafted: u32, accepted: u32) {
        let tally = &mut self.tallies[proposer.index()];
        tally.rounds += 1;
        tally.drafted += u64::from(drafted);
        tally.accepted += u64::from(accepted);
    }

    /// Adds other counts.
    pub(super) fn add(&mut self, more: &DraftCounts) {
        for (tally, more) in self.tallies.iter_mut().zip(&more.tallies) {
            tally.rounds += more.rounds;
            tally.drafted += more.drafted;
            tally.accepted += more.accepted;
        }
    }

    /// The counts of one proposer.
    pub fn of(&self, proposer: Proposer) -> DraftTally {
        self.tallies[proposer.index()]
    }

    /// All proposers together.
    pub fn total(&self) -> DraftTally {
        self.tallies.iter().fold(DraftTally::default(), |sum, tally| DraftTally {
            rounds: sum.rounds + tally.rounds,
            drafted: sum.drafted + tally.drafted,
            accepted: sum.accepted + tally.accepted,
        })
    }

    /// The proposers that drafted anything, with their counts.
    pub fn used(&self) -> impl Iterator<Item = (Proposer, DraftTally)> + '_ {
        Proposer::ALL
            .into_iter()
            .map(|proposer| (proposer, self.of(proposer)))
            .filter(|(_, tally)| tally.rounds > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_drafters_away_and_lower_their_reach() {
        let block = Some(BlockDrafter { second: true, drafts: 15 });
        let all = Drafters { mtp: Some(3), block };
        let used = |options: DraftOptions| options.used(all);
        assert_eq!(used(DraftOptions::default()), all);
        assert_eq!(used(DraftOptions { mtp_drafts: Some(2), ..DraftOptions::default() }).mtp, Some(2));
        let deep = Drafters { mtp: Some(31), block };
        assert_eq!(DraftOptions::default().used(deep).mtp, Some(MTP_DRAFTS));
        assert_eq!(DraftOptions { mtp_drafts: Some(9), ..DraftOptions::default() }.used(deep).mtp, Some(9));
        let headless = used(DraftOptions { mtp_drafts: Some(0), ..DraftOptions::default() });
        assert_eq!(headless, Drafters { mtp: None, block });
        assert!(!used(DraftOptions { enabled: false, ..DraftOptions::default() }).any());
        let order: Vec<_> = all.proposers().collect();
        assert_eq!(order, [(Proposer::Dflash2, 15), (Proposer::Mtp, 3)]);
    }

    #[test]
    fn counts_are_kept_by_proposer_and_add_up() {
        let mut counts = DraftCounts::default();
        counts.note(Proposer::Mtp, 3, 2);
        counts.note(Proposer::Copy, 8, 8);
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!(sum.total(), DraftTally { rounds: 4, drafted: 22, accepted: 20 });
        assert_eq!(sum.of(Proposer::Mtp), DraftTally { rounds: 2, drafted: 6, accepted: 4 });
        let used: Vec<_> = sum.used().map(|(proposer, _)| proposer.name()).collect();
        assert_eq!(used, ["mtp", "copy"]);
    }
}
