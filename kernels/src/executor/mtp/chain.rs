//! Chains of drafts.

use std::ops::Range;

use tensorfold_plugin_api::sampling::Sampling;

use super::super::lane::Lane;
use super::super::observe::{Observer, Point};
use super::super::{Executor, ExecutorError, HEAD_ROWS, PASS_ROWS};
use super::HeadLane;
use super::follow::HeadRow;
use crate::device::{Device, DrawRequest, Product};

/// One lane that wants drafts.
pub(in super::super) struct DraftRequest<'a, D: Device> {
    /// The lane, its rows committed.
    pub(in super::super) lane: &'a mut Lane<D>,
    /// The token that was drawn last and is not fed yet.
    pub(in super::super) token: u32,
    /// Most drafts.
    pub(in super::super) count: usize,
    /// A chain ends before a draft that is less likely, but for its first.
    pub(in super::super) confidence: f32,
    /// How the lane draws.
    pub(in super::super) sampling: Sampling,
    /// The drafts and their probabilities.
    pub(in super::super) drafts: Vec<(u32, f32)>,
}

/// A lane's chain while it grows.
struct Chain<'r, 'a, D: Device> {
    request: &'r mut DraftRequest<'a, D>,
    head: Box<HeadLane<D>>,
    /// Rows of the head that stay.
    kept: usize,
    growing: bool,
    /// Whether its last draft was asked for together with the others'.
    drew: bool,
}

impl<D: Device> Executor<'_, D> {
    /// Makes drafts for some lanes. Lanes without a head get none.
    pub(in super::super) fn draft_chains(
        &mut self,
        requests: &mut [DraftRequest<'_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        if self.head.is_none() {
            return Ok(());
        }
        let mut rest = requests;
        while !rest.is_empty() {
            // As many lanes together as have their rows in one pass; a lane alone always has.
            let mut rows = 0;
            let count = rest.iter().take_while(|request| {
                rows += request.lane.head.as_ref().map_or(0, |head| head.waiting);
                rows <= PASS_ROWS
            });
            let count = count.count();
            let (group, later) = rest.split_at_mut(count);
            rest = later;
            let mut chains = Vec::with_capacity(group.len());
            for request in group {
                let Some(head) = request.lane.head.take() else { continue };
                let growing = request.count > 0 && head.waiting > 0;
                chains.push(Chain { kept: 0, growing, drew: false, head, request });
            }
            let outcome = self.grow(&mut chains, observer);
            for chain in chains {
                chain.request.lane.head = Some(chain.head);
            }
            outcome?;
        }
        Ok(())
    }

    fn grow(
        &mut self,
        chains: &mut [Chain<'_, '_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        self.begin(chains, observer)?;
        let longest = chains.iter().map(|chain| chain.request.count).max().unwrap_or(0);
        for length in 1..=longest {
            self.propose(chains, observer)?;
            for chain in chains.iter_mut() {
                chain.drew = chain.growing;
                chain.growing &= chain.request.drafts.len() == length && length < chain.request.count;
            }
            if chains.iter().all(|chain| !chain.growing) {
                break;
            }
            self.extend(chains, observer)?;
        }
        for chain in chains.iter_mut().filter(|chain| chain.kept > 0) {
            chain.head.truncate(&mut self.device, chain.kept)?;
        }
        Ok(())
    }

    /// Takes in what waits, and the last state with the token that was drawn.
    fn begin(
        &mut self,
        chains: &mut [Chain<'_, '_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let hidden = self.spec.hidden_size as usize;
        let mut rows = Vec::new();
        let mut members: Vec<(&mut HeadLane<D>, Range<usize>)> = Vec::new();
        for chain in chains.iter_mut().filter(|chain| chain.growing) {
            let (head, next) = (&mut chain.head, chain.request.lane.position);
            if head.ahead.take().is_some() {
                // Drafts were wanted twice after the same row.
                head.truncate(&mut self.device, head.caches.position - 1)?;
            }
            let first = rows.len();
            let count = head.waiting;
            self.fetch_backlog(head, next, first)?;
            for row in 0..count {
                let token = head.following.get(row).copied().unwrap_or(chain.request.token);
                let position = next - count + row;
                rows.push(HeadRow { state: first + row, token, position });
            }
            // Only the last one goes on waiting, for the token that is fed.
            (head.waiting, head.ahead) = (1, Some(chain.request.token));
            head.following.clear();
            chain.kept = head.caches.position + count;
            members.push((head, first..first + count));
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.head_pass(&rows, &mut members, observer)?;
        let ends: Vec<usize> = members.iter().map(|(_, rows)| rows.end - 1).collect();
        let head = self.head.as_mut().expect("only called while a head is open");
        self.device.gather(&ends, hidden, &self.workspace.normed, &mut head.last)?;
        Ok(())
    }

    /// Draws the next draft of every chain that grows, from the head's last outputs.
    fn propose(
        &mut self,
        chains: &mut [Chain<'_, '_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let Executor { device, spec, trunk, workspace: w, head, .. } = self;
        let head = head.as_mut().expect("only called while a head is open");
        let (hidden, width) = (spec.hidden_size as usize, spec.vocabulary_rows as usize);
        let matrix = trunk.head.as_ref().unwrap_or(&trunk.embed);
        let mut growing: Vec<_> = chains.iter_mut().filter(|chain| chain.growing).collect();
        for (part, chains) in growing.chunks_mut(HEAD_ROWS).enumerate() {
            let rows = chains.len();
            let from = part * HEAD_ROWS..part * HEAD_ROWS + rows;
            device.copy_rows(hidden, &head.last, from, &mut w.chosen_normed, 0)?;
            let product = Product { matrix, bias: None, out: &mut w.logits };
            device.multiply(rows, &w.chosen_normed, &mut [product])?;
            observer.observe(device, Point::HeadLogits, rows, width, &w.logits)?;
            let asked: Vec<DrawRequest<'_>> = chains
                .iter()
                .map(|chain| DrawRequest {
                    sampling: chain.request.sampling,
                    position: (chain.request.lane.position + 1 + chain.request.drafts.len()) as u64,
                    allowed: None,
                    log_probabilities: Some(0),
                })
                .collect();
            let draws = device.draw(&w.logits, width, spec.selectable_vocabulary, &asked)?;
            for (chain, draw) in chains.iter_mut().zip(draws) {
                let probability = draw.log_probabilities.first().map(|entry| entry.1.exp());
                let DraftRequest { drafts, confidence, .. } = &mut *chain.request;
                if let (Some(token), Some(probability)) = (draw.token, probability)
                    && (drafts.is_empty() || probability >= *confidence)
                {
                    drafts.push((token, probability));
                }
            }
        }
        Ok(())
    }

    /// Feeds every growing chain its last draft.
    fn extend(
        &mut self,
        chains: &mut [Chain<'_, '_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let hidden = self.spec.hidden_size as usize;
        let mut rows = Vec::new();
        let mut members: Vec<(&mut HeadLane<D>, Range<usize>)> = Vec::new();
        // Outputs lie in the order of the chains that had been growing until now: those, and those whose last draft
        // has just ended.
        let mut output = 0;
        for chain in chains.iter_mut() {
            if chain.growing {
                let drafts = &chain.request.drafts;
                let token = drafts[drafts.len() - 1].0;
                let position = chain.request.lane.position - 1 + drafts.len();
                let row = rows.len();
                let head = self.head.as_mut().expect("only called while a head is open");
                self.device.copy_rows(hidden, &head.last, output..output + 1, &mut head.hidden, row)?;
                rows.push(HeadRow { state: row, token, position });
                members.push((&mut chain.head, row..row + 1));
            }
            if chain.drew {
                output += 1;
            }
        }
        self.head_pass(&rows, &mut members, observer)?;
        let head = self.head.as_mut().expect("only called while a head is open");
        self.device.copy_rows(hidden, &self.workspace.normed, 0..rows.len(), &mut head.last, 0)?;
        Ok(())
    }
}
