//! A plugin's engine as the round loop calls it.

use std::time::Duration;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::host::{EngineClient, LaneRequest};

use super::drafting::Drafters;
use super::round::{
    Draft, EngineFacts, LaneDrawn, LaneId, LaneRows, RoundEngine, RoundTimes, Snapshot, SnapshotId,
};

/// An open engine of a plugin.
pub struct PluginEngine {
    client: EngineClient,
    facts: EngineFacts,
}

impl PluginEngine {
    /// Takes an open engine. `name` is the engine's name for users, `rows` the
    /// most rows a lane may feed in a round and `vocabulary` the number of ids
    /// that can be drawn, both as the engine was opened with; `drafters` are those that were
    /// opened on it.
    ///
    /// # Errors
    /// What the plugin says when it is asked for its facts.
    pub fn new(
        client: EngineClient,
        name: impl Into<String>,
        rows: u32,
        vocabulary: u32,
        drafters: Drafters,
    ) -> Result<PluginEngine, PluginError> {
        let info = client.info()?;
        let facts = EngineFacts {
            name: name.into(),
            lanes: info.lanes,
            positions: u32::try_from(info.context).unwrap_or(u32::MAX),
            rows,
            vocabulary,
            // Every draft passes through `round`, whose answer says what became of it.
            counts_drafts: true,
            outputs: info.output_rows,
            drafters,
        };
        Ok(PluginEngine { client, facts })
    }
}

impl RoundEngine for PluginEngine {
    fn facts(&self) -> EngineFacts {
        self.facts.clone()
    }

    fn lane_open(&mut self) -> Result<LaneId, PluginError> {
        self.client.lane_open().map(LaneId)
    }

    fn lane_close(&mut self, lane: LaneId) -> Result<(), PluginError> {
        self.client.lane_close(lane.0)
    }

    fn snapshot(&mut self, lane: LaneId) -> Result<Snapshot, PluginError> {
        let kept = self.client.snapshot(lane.0)?;
        let position = u32::try_from(kept.position).unwrap_or(u32::MAX);
        Ok(Snapshot { id: SnapshotId(kept.snapshot), position, bytes: kept.bytes })
    }

    fn restore(&mut self, lane: LaneId, snapshot: SnapshotId) -> Result<(), PluginError> {
        self.client.restore(lane.0, snapshot.0)
    }

    fn drop_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), PluginError> {
        self.client.drop_snapshot(snapshot.0)
    }

    fn round(
        &mut self,
        rows: &[LaneRows<'_>],
        drawn: &mut Vec<LaneDrawn>,
    ) -> Result<RoundTimes, PluginError> {
        let requests: Vec<LaneRequest<'_>> = rows
            .iter()
            .map(|rows| LaneRequest {
                lane: rows.lane.0,
                position: u64::from(rows.position),
                tokens: rows.tokens,
                draft_count: rows.drafts as usize,
                output_count: rows.draws as usize,
                sampling: rows.sampling,
                allowed: None,
                logprobs: None,
                next_drafts: rows.next,
                cancel: None,
            })
            .collect();
        let outcome = self.client.round(&requests)?;
        drawn.extend(outcome.lanes.into_iter().map(|lane| LaneDrawn {
            tokens: lane.tokens,
            accepted: lane.accepted as u32,
            next: lane.drafts.into_iter().map(|(token, probability)| Draft { token, probability }).collect(),
            next_kind: lane.draft_kind,
        }));
        let measured = |nanoseconds: Option<u64>| nanoseconds.map(Duration::from_nanos);
        Ok(RoundTimes {
            forward: measured(outcome.forward_nanoseconds),
            sample: measured(outcome.sample_nanoseconds),
            draft: measured(outcome.draft_nanoseconds),
        })
    }
}
