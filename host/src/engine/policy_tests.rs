//! Synthetic engines and texts: depths that are known to be best, and time that must not be lost.

use super::*;

/// An engine with a known cost of rounds and drafts, and a text with a known share of right drafts.
struct World {
    /// Seconds of a round by its rows.
    round: fn(u32) -> f64,
    /// Seconds of a draft.
    draft: f64,
    /// Share of drafts that hold, after so many tokens.
    acceptance: fn(u64) -> f64,
    most: u32,
}

/// What a reply took.
#[derive(Debug, Default)]
struct Run {
    seconds: f64,
    tokens: u64,
    drafted: u64,
    /// Depths of the last rounds.
    depths: Vec<u32>,
}

impl World {
    /// One reply of so many tokens with the measured rule.
    fn run(&self, pace: &mut Pace, length: u64) -> Run {
        let drafters = Drafters { mtp: Some(self.most), block: None };
        let mut lane = LanePace::new();
        let mut run = Run::default();
        let mut state = 7_u64;
        let mut fed = 0;
        while run.tokens < length {
            let mut accepted = 0;
            while accepted < fed {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let chance = (state >> 40) as f64 / (1_u64 << 24) as f64;
                if chance >= (self.acceptance)(run.tokens) {
                    break;
                }
                accepted += 1;
            }
            if fed > 0 {
                lane.note(Proposer::Mtp, fed, accepted);
            }
            let asked = lane.choose(pace, drafters, Load::default()).map_or(0, |(_, depth)| depth);
            let round = Measured {
                lanes: 1,
                rows: fed + 1,
                tokens: accepted + 1,
                seconds: (self.round)(fed + 1),
                draft_seconds: self.draft * f64::from(asked),
                drafting: (asked > 0).then_some((Proposer::Mtp, 1, asked)),
                drafted: fed > 0 || asked > 0,
            };
            pace.note(&round);
            run.seconds += round.seconds + round.draft_seconds;
            run.tokens += u64::from(accepted) + 1;
            run.drafted += u64::from(fed);
            run.depths.push(fed);
            fed = asked;
        }
        run
    }

    /// Speed against one token a round, over a reply of so many tokens on a fresh engine.
    fn against_serial(&self, length: u64) -> (f64, Run) {
        let run = self.run(&mut Pace::new(), length);
        let serial = (self.round)(1) * run.tokens as f64;
        (serial / run.seconds, run)
    }
}

fn flat(_: u32) -> f64 {
    1.0
}

/// As measured on a machine whose kernels end at eight rows.
fn rising(rows: u32) -> f64 {
    let table = [33.0, 35.9, 34.9, 38.5, 42.9, 47.0, 55.7, 84.4];
    table.get(rows as usize - 1).copied().unwrap_or(138.0) / 33.0
}

/// Every row costs as much as the first.
fn linear(rows: u32) -> f64 {
    f64::from(rows)
}

#[test]
fn a_good_drafter_is_used_to_its_full_depth_where_rows_are_free() {
    let world = World { round: flat, draft: 0.02, acceptance: |_| 0.9, most: 7 };
    let (speed, run) = world.against_serial(2000);
    assert!(speed > 3.0, "{speed}");
    assert!(run.depths.iter().rev().take(50).filter(|&&depth| depth == 7).count() > 40);
}

#[test]
fn depth_ends_where_further_rows_cost_more_than_they_bring() {
    let world = World { round: rising, draft: 0.05, acceptance: |_| 0.8, most: 15 };
    let (speed, run) = world.against_serial(3000);
    assert!(speed > 1.5, "{speed}");
    let late = &run.depths[run.depths.len() / 2..];
    let deep = late.iter().filter(|&&depth| depth > 7).count();
    assert!(deep * 20 < late.len(), "{deep} of {}", late.len());
}

#[test]
fn drafting_never_costs_more_than_its_share() {
    let curves: [fn(u32) -> f64; 3] = [flat, rising, linear];
    let texts: [fn(u64) -> f64; 4] =
        [|_| 0.0, |_| 0.3, |_| 0.6, |tokens| if tokens % 400 < 200 { 0.95 } else { 0.0 }];
    for (curve, round) in curves.into_iter().enumerate() {
        for (text, acceptance) in texts.into_iter().enumerate() {
            for draft in [0.0, 0.1, 0.5] {
                let world = World { round, draft, acceptance, most: 15 };
                let (speed, run) = world.against_serial(2000);
                assert!(speed > 0.97, "curve {curve}, text {text}, draft {draft}: {speed} {}", run.drafted);
            }
        }
    }
}

#[test]
fn a_useless_drafter_is_parked_and_tried_ever_less_often() {
    let world = World { round: rising, draft: 0.3, acceptance: |_| 0.0, most: 7 };
    let (_, run) = world.against_serial(4000);
    let rounds = |depths: &[u32]| depths.iter().filter(|&&depth| depth > 0).count();
    let (early, late) = (rounds(&run.depths[..1000]), rounds(&run.depths[3000..]));
    assert!(early > late && late > 0, "{early} {late}");
    assert!(late < 10, "{late}");
}

#[test]
fn a_text_that_becomes_easy_is_noticed() {
    let world = World {
        round: rising,
        draft: 0.05,
        acceptance: |tokens| if tokens < 500 { 0.0 } else { 0.9 },
        most: 4,
    };
    let run = world.run(&mut Pace::new(), 4000);
    let late = &run.depths[run.depths.len() - 100..];
    assert!(late.iter().filter(|&&depth| depth > 0).count() > 80, "{late:?}");
}

#[test]
fn nothing_is_drafted_before_plain_rounds_were_measured() {
    let mut lane = LanePace::new();
    let drafters = Drafters { mtp: Some(3), block: None };
    let mut pace = Pace::new();
    let plain = Measured { lanes: 1, rows: 1, tokens: 1, seconds: 1.0, ..Measured::default() };
    for _ in 0..FIRST_PLAIN {
        assert_eq!(lane.choose(&pace, drafters, Load::default()), None);
        pace.note(&plain);
    }
    assert!(lane.choose(&pace, drafters, Load::default()).is_some());
}

#[test]
fn many_lanes_leave_less_room_for_drafts() {
    let mut pace = Pace::new();
    // Rows are free up to eight.
    for rows in 1..=32 {
        let seconds = f64::from(rows.max(8)) / 8.0;
        for _ in 0..4 {
            pace.note(&Measured { lanes: rows, rows, tokens: rows, seconds, ..Measured::default() });
        }
    }
    let mut lane = LanePace::new();
    let mut depth = |others: u32| {
        let load = Load { rows: others, tokens: f64::from(others), draft_seconds: 0.0 };
        lane.copies(&pace, 7, load)
    };
    assert_eq!(depth(0), 7);
    assert!(depth(15) < 3);
}

#[test]
fn times_between_and_beyond_those_measured_are_drawn_out() {
    let mut pace = Pace::new();
    assert_eq!(pace.round(1), None);
    let note = |pace: &mut Pace, rows, seconds| {
        pace.note(&Measured { lanes: 1, rows, tokens: 1, seconds, drafted: true, ..Measured::default() });
    };
    note(&mut pace, 2, 1.0);
    assert_eq!(pace.round(1), Some(1.0));
    assert_eq!(pace.round(4), Some(1.0 + ROW_PRIOR));
    note(&mut pace, 6, 3.0);
    assert_eq!((pace.round(4), pace.round(8)), (Some(2.0), Some(4.0)));
    assert_eq!(pace.round(1000), Some(500.0));
}
