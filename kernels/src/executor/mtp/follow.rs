//! How the head follows what its lanes commit.

use std::ops::Range;

use super::super::forward::{Pass, PassLane};
use super::super::lane::Lane;
use super::super::observe::{Nobody, Observer, Point};
use super::super::{Executor, ExecutorError, PASS_ROWS};
use super::{BACKLOG, HeadLane};
use crate::device::{Device, Product};

/// One row for the head: a state, the token after it, and the state's position.
#[derive(Clone, Copy)]
pub(super) struct HeadRow {
    /// Where the state lies in the buffer of states.
    pub(super) state: usize,
    pub(super) token: u32,
    pub(super) position: usize,
}

/// Rows that a lane has committed in a pass of the target.
pub(in super::super) struct Committed<'a> {
    /// Their states, in the head's buffer.
    pub(in super::super) states: Range<usize>,
    /// Their tokens, and the one after the last where it is known.
    pub(in super::super) tokens: &'a [u32],
    /// Whether the head takes them in at once: they are a prompt's.
    pub(in super::super) at_once: bool,
}

impl<D: Device> Executor<'_, D> {
    /// Keeps the final, normed states of a pass.
    pub(in super::super) fn keep_states(&mut self, rows: usize) -> Result<(), ExecutorError> {
        if let Some(head) = &mut self.head {
            let epsilon = self.spec.norm_epsilon as f32;
            self.device.norm(rows, &self.workspace.x, &self.trunk.norm, epsilon, &mut head.states)?;
        }
        Ok(())
    }

    /// Takes note of the rows that a lane has just committed; the lane's
    /// position is the one after them.
    pub(in super::super) fn follow(
        &mut self,
        lane: &mut Lane<D>,
        committed: &Committed<'_>,
    ) -> Result<(), ExecutorError> {
        let (Some(_), Some(mut head_lane)) = (&self.head, lane.head.take()) else { return Ok(()) };
        let outcome = self.follow_lane(&mut head_lane, lane.position, committed);
        lane.head = Some(head_lane);
        outcome
    }

    fn follow_lane(
        &mut self,
        lane: &mut HeadLane<D>,
        position: usize,
        committed: &Committed<'_>,
    ) -> Result<(), ExecutorError> {
        let count = committed.states.len();
        let Some(&first) = committed.tokens.first() else { return Ok(()) };
        self.settle(lane, first)?;
        if committed.at_once && count > 1 {
            self.catch_up(lane, position - count)?;
            // The last row waits for its token.
            let rows: Vec<HeadRow> = (0..count - 1)
                .map(|row| HeadRow {
                    state: committed.states.start + row,
                    token: committed.tokens[row + 1],
                    position: position - count + row,
                })
                .collect();
            self.take_in_states(lane, &rows)?;
            self.wait(lane, position, committed.states.end - 1..committed.states.end, &[])?;
        } else {
            self.wait(lane, position, committed.states.clone(), &committed.tokens[1..count])?;
        }
        Ok(())
    }

    /// Learns the token after the last state that waits.
    fn settle(&mut self, lane: &mut HeadLane<D>, token: u32) -> Result<(), ExecutorError> {
        if lane.waiting == 0 {
            return Ok(());
        }
        match lane.ahead.take() {
            // The head has that row already.
            Some(ahead) if ahead == token => {
                lane.waiting = 0;
                lane.following.clear();
            }
            Some(_) => {
                lane.truncate(&mut self.device, lane.caches.position - 1)?;
                lane.following.push(token);
            }
            None => lane.following.push(token),
        }
        Ok(())
    }

    /// Puts states into the backlog; the oldest make room. The lane's next row
    /// has position `position`, and `following` are the tokens after all but
    /// the last of them.
    fn wait(
        &mut self,
        lane: &mut HeadLane<D>,
        position: usize,
        states: Range<usize>,
        following: &[u32],
    ) -> Result<(), ExecutorError> {
        let head = self.head.as_ref().expect("only called while a head is open");
        let hidden = self.spec.hidden_size as usize;
        // A round may commit more than fits.
        let skipped = states.len().saturating_sub(BACKLOG);
        let (states, following) = (states.start + skipped..states.end, &following[skipped..]);
        let forgotten =
            if skipped > 0 { lane.waiting } else { (lane.waiting + states.len()).saturating_sub(BACKLOG) };
        lane.following.drain(..forgotten);
        lane.waiting -= forgotten;
        for (places, offset) in places(position - states.len(), states.len()) {
            let from = states.start + offset..states.start + offset + places.len();
            self.device.copy_rows(hidden, &head.states, from, &mut lane.backlog, places.start)?;
        }
        lane.waiting += states.len();
        lane.following.extend(following);
        Ok(())
    }

    /// Takes in what waits and has its token; the lane's next row has position `position`.
    fn catch_up(&mut self, lane: &mut HeadLane<D>, position: usize) -> Result<(), ExecutorError> {
        let count = lane.waiting;
        if count == 0 {
            return Ok(());
        }
        self.fetch_backlog(lane, position, 0)?;
        let rows: Vec<HeadRow> = (0..count)
            .map(|row| HeadRow { state: row, token: lane.following[row], position: position - count + row })
            .collect();
        lane.waiting = 0;
        lane.following.clear();
        let mut lanes = [(lane, 0..count)];
        self.head_pass(&rows, &mut lanes, &mut Nobody)
    }

    /// Copies a lane's backlog to the states for a pass of the head, from row
    /// `row` on; the lane's next row has position `position`.
    pub(super) fn fetch_backlog(
        &mut self,
        lane: &HeadLane<D>,
        position: usize,
        row: usize,
    ) -> Result<(), ExecutorError> {
        let head = self.head.as_mut().expect("only called while a head is open");
        let hidden = self.spec.hidden_size as usize;
        for (places, offset) in places(position - lane.waiting, lane.waiting) {
            self.device.copy_rows(hidden, &lane.backlog, places, &mut head.hidden, row + offset)?;
        }
        Ok(())
    }

    /// Takes in rows whose states are those of the target's pass.
    fn take_in_states(&mut self, lane: &mut HeadLane<D>, rows: &[HeadRow]) -> Result<(), ExecutorError> {
        let hidden = self.spec.hidden_size as usize;
        for rows in rows.chunks(PASS_ROWS) {
            let head = self.head.as_mut().expect("only called while a head is open");
            let from = rows[0].state..rows[0].state + rows.len();
            self.device.copy_rows(hidden, &head.states, from, &mut head.hidden, 0)?;
            let mut lanes = [(&mut *lane, 0..rows.len())];
            self.head_pass(rows, &mut lanes, &mut Nobody)?;
        }
        Ok(())
    }

    /// Sends rows of some lanes through the head; their states are the leading
    /// rows of the head's buffer. Their outputs, normed, are in the workspace
    /// afterwards, and the lanes' caches have grown.
    pub(super) fn head_pass(
        &mut self,
        rows: &[HeadRow],
        lanes: &mut [(&mut HeadLane<D>, Range<usize>)],
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let Executor { device, spec, trunk, frequencies, workspace: w, head, .. } = self;
        let head = head.as_mut().expect("only called while a head is open");
        let (count, hidden) = (rows.len(), spec.hidden_size as usize);
        let epsilon = spec.norm_epsilon as f32;
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<usize> = rows.iter().map(|row| row.position).collect();
        let weights = &head.weights;
        device.embed(&trunk.embed, &tokens, &mut w.x)?;
        device.norm(count, &w.x, &weights.embed_norm, epsilon, &mut w.normed)?;
        device.place(count, hidden, &w.normed, 0, 2 * hidden, &mut head.pair)?;
        device.norm(count, &head.hidden, &weights.hidden_norm, epsilon, &mut w.normed)?;
        device.place(count, hidden, &w.normed, hidden, 2 * hidden, &mut head.pair)?;
        let product = Product { matrix: &weights.fc, bias: None, out: &mut w.x };
        device.multiply(count, &head.pair, &mut [product])?;
        device.rotary_angles(&positions, frequencies, &mut w.angles)?;
        let mut members: Vec<PassLane<'_, D>> = lanes
            .iter_mut()
            .map(|(lane, rows)| PassLane {
                lane: &mut lane.caches,
                rows: rows.clone(),
                // Nothing in the head is recurrent.
                effects: Vec::new(),
                cancelled: &|| false,
                is_cancelled: false,
            })
            .collect();
        let half = frequencies.len();
        let mut pass = Pass { device, w, rows: count, hidden, epsilon, half, observer: &mut Nobody };
        for (index, layer) in weights.layers.iter().enumerate() {
            pass.layer(index, layer, &mut members)?;
        }
        let device = pass.device;
        let w = pass.w;
        device.norm(count, &w.x, &weights.norm, epsilon, &mut w.normed)?;
        observer.observe(device, Point::HeadHidden, count, hidden, &w.normed)?;
        for (lane, rows) in lanes {
            lane.caches.position += rows.len();
        }
        Ok(())
    }
}

/// Where the states of `count` positions from `first` on lie in a backlog,
/// which is a ring: two ranges of places, each with the states before it.
fn places(first: usize, count: usize) -> [(Range<usize>, usize); 2] {
    let start = first % BACKLOG;
    let before_end = count.min(BACKLOG - start);
    [(start..start + before_end, 0), (0..count - before_end, before_end)]
}
