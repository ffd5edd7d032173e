//! The invariants of `spec/gro.md`, section 6.2, on arbitrary traffic: several connections in any order,
//! with gaps, repetitions, other orders, changed fields, wrong bytes, padding, cut frames, and with ends
//! of polls and flushes anywhere. (I8 and I16 are the virtio side's.)

mod play;
mod traffic;

use std::collections::HashMap;
use std::time::Duration;

use packet::{Checksum, Frame, header};
use proptest::prelude::*;

use play::{Outcome, Setup, Unit, play, with_pool};
use traffic::{Input, Step, steps};

proptest! {
    #![proptest_config(config())]

    /// I1 to I7, I9, I14, I17.
    #[test]
    fn what_comes_out_is_what_went_in(steps in steps(0..4), setup in setups()) {
        let outcome = play(&steps, &setup);
        for unit in &outcome.units {
            if unit.gso.is_some() {
                // I6, I7, I9.
                check_super(unit, &outcome.inputs, &setup)?;
            } else {
                // I4.
                prop_assert_eq!(&unit.bytes, &outcome.inputs[unit.inputs[0]].bytes);
            }
        }
        check_all_and_once(&outcome)?;
        check_order(&outcome)?;
        check_counters(&outcome)?;
    }

    /// I10. Connections with an even number and those with an odd one share neither link nor IP addresses.
    #[test]
    fn a_flow_does_not_depend_on_others(steps in steps(0..4), setup in setups()) {
        // In a full table they do.
        let setup = Setup { max_flows: 4096, ..setup };
        let even = |step: &Step| match step {
            Step::Give(input) => input.connection.is_multiple_of(2),
            _ => true,
        };
        let all = play(&steps, &setup);
        let some = play(&steps.iter().filter(|step| even(step)).cloned().collect::<Vec<_>>(), &setup);
        let all: Vec<_> = all
            .units
            .iter()
            .filter(|unit| all.inputs[unit.inputs[0]].connection.is_multiple_of(2))
            .map(Unit::content)
            .collect();
        let some: Vec<_> = some.units.iter().map(Unit::content).collect();
        prop_assert_eq!(all, some);
    }

    /// I11.
    #[test]
    fn hints_change_nothing(steps in steps(0..4), setup in setups()) {
        let without: Vec<_> = steps
            .iter()
            .cloned()
            .map(|step| match step {
                Step::Give(input) => Step::Give(Input {
                    checksum: Checksum::Unknown,
                    hash: None,
                    ..input
                }),
                other => other,
            })
            .collect();
        let (with, without) = (play(&steps, &setup), play(&without, &setup));
        let content = |outcome: &Outcome| outcome.units.iter().map(Unit::content).collect::<Vec<_>>();
        prop_assert_eq!(content(&with), content(&without));
    }

    /// I12.
    #[test]
    fn the_batch_changes_nothing(steps in steps(0..4), setup in setups(), batch in 1..20_usize) {
        let content = |batch| {
            let outcome = play(&steps, &Setup { batch, ..setup });
            outcome.units.iter().map(Unit::content).collect::<Vec<_>>()
        };
        prop_assert_eq!(content(setup.batch), content(batch));
    }

    /// I13.
    #[test]
    fn a_cut_super_packet_is_merged_again(steps in steps(0..4), setup in setups()) {
        let outcome = play(&steps, &setup);
        for unit in outcome.units.iter().filter(|unit| unit.gso.is_some()) {
            let again: Vec<_> = unit
                .segments
                .iter()
                .map(|bytes| Step::Give(Input {
                    bytes: bytes.clone(),
                    checksum: Checksum::Verified { levels: 1 },
                    vlan: outcome.inputs[unit.inputs[0]].vlan,
                    ..Input::default()
                }))
                .collect();
            let again = play(&again, &Setup { flush_timeout: Duration::from_secs(1), ..setup });
            prop_assert_eq!(again.units.len(), 1);
            prop_assert_eq!(again.units[0].content(), unit.content());
        }
    }

    /// I13, for what did not merge.
    #[test]
    fn without_merging_everything_passes(steps in steps(0..4), setup in setups()) {
        let outcome = play(&steps, &Setup { enabled: false, ..setup });
        let inputs: Vec<_> = outcome.inputs.iter().map(|input| &input.bytes).collect();
        let outputs: Vec<_> = outcome.units.iter().map(|unit| &unit.bytes).collect();
        prop_assert_eq!(inputs, outputs);
    }

    /// I15.
    #[test]
    fn arbitrary_bytes_pass(frames in prop::collection::vec(traffic::noise(), 0..40)) {
        let steps: Vec<_> = frames.into_iter().map(Step::Give).collect();
        let outcome = play(&steps, &Setup::default());
        check_all_and_once(&outcome)?;
        for unit in &outcome.units {
            if unit.segments.is_empty() {
                prop_assert_eq!(&unit.bytes, &outcome.inputs[unit.inputs[0]].bytes);
            }
        }
        prop_assert_eq!(outcome.counters.received, outcome.inputs.len() as u64);
    }
}

/// I5.
#[test]
fn nothing_is_held_for_longer_than_it_may() {
    proptest!(config(), |(steps in steps(0..4), micros in 1..100_u64)| {
        let timeout = Duration::from_micros(micros);
        let setup = Setup { flush_timeout: timeout, ..Setup::default() };
        let outcome = play(&steps, &setup);
        for unit in &outcome.units {
            for index in &unit.inputs {
                let since = outcome.inputs[*index].at;
                // Seen at the first end of a poll after the timeout.
                let due = outcome.polls.iter().find(|poll| **poll >= since.after(timeout));
                if let Some(due) = due {
                    prop_assert!(unit.at <= *due, "held from {since:?} to {:?}", unit.at);
                }
            }
        }
    });
}

/// PROPTEST_CASES asks for more.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(400), ..config }
}

fn setups() -> impl Strategy<Value = Setup> {
    let limits = (
        prop::sample::select(vec![65535_u32, 3000, 9000]),
        prop::sample::select(vec![u16::MAX, 1, 2, 4]),
        prop::sample::select(vec![8_usize, 64, 2048]),
    );
    let switches = (any::<bool>(), any::<bool>(), 1..10_usize);
    let timeout = prop::sample::select(vec![0_u64, 0, 30]);
    (limits, switches, timeout).prop_map(
        |((max_size, max_pieces, max_flows), (kernel, trim_padding, batch), timeout)| Setup {
            enabled: true,
            kernel,
            trim_padding,
            max_size,
            max_pieces,
            max_flows,
            batch,
            flush_timeout: Duration::from_micros(timeout),
        },
    )
}

/// I6, I7, I9: a super-packet is regular, within its limits, and made of good packets.
fn check_super(unit: &Unit, inputs: &[Input], setup: &Setup) -> Result<(), TestCaseError> {
    let gso = unit.gso.expect("a super-packet");
    let parsed = header::parse(&unit.bytes).expect("its headers");
    prop_assert_eq!(unit.layout, parsed.layout);
    let (network, start) = (usize::from(parsed.layout.network), parsed.layout.transport);
    prop_assert_eq!(unit.checksum, Checksum::Partial { start, offset: 16 });
    prop_assert_eq!(network + parsed.ip_len, unit.bytes.len());
    prop_assert!(unit.bytes.len() - 14 <= setup.max_size as usize);
    prop_assert!(unit.pieces <= usize::from(setup.max_pieces));
    prop_assert!(gso.segments >= 2 && gso.size >= 8 && !gso.ecn && gso.trusted);
    prop_assert_eq!(usize::from(gso.segments), unit.segments.len());
    let payload = usize::from(parsed.layout.payload);
    for (index, segment) in unit.segments.iter().enumerate() {
        let len = segment.len() - payload;
        prop_assert!(len >= 1 && len <= usize::from(gso.size));
        prop_assert!(len == usize::from(gso.size) || index + 1 == unit.segments.len());
    }
    for index in &unit.inputs {
        let bytes = &inputs[*index].bytes;
        let parsed = header::parse(bytes).expect("a packet that was merged has headers");
        let valid = with_pool(|pool| {
            let frame = Frame::copied_from(bytes, pool).expect("a small frame");
            let valid = packet::transport_is_valid(&frame, &parsed);
            pool.recycle(frame);
            valid
        });
        prop_assert!(valid);
        if !parsed.v6 {
            let network = usize::from(parsed.layout.network);
            prop_assert_eq!(packet::checksum::sum(&bytes[network..network + 20]), 0xffff);
        }
    }
    Ok(())
}

/// I1, I2: every input is in exactly one output (that it is there bit for bit was found by [`play`]).
fn check_all_and_once(outcome: &Outcome) -> Result<(), TestCaseError> {
    let mut seen: Vec<_> = outcome.units.iter().flat_map(|unit| unit.inputs.clone()).collect();
    seen.sort_unstable();
    prop_assert_eq!(seen, (0..outcome.inputs.len()).collect::<Vec<_>>());
    prop_assert_eq!(outcome.lost_buffers, 0);
    Ok(())
}

/// I3: packets of a connection, and those that may belong to it, leave in the order in which they came.
fn check_order(outcome: &Outcome) -> Result<(), TestCaseError> {
    let mut last: HashMap<_, usize> = HashMap::new();
    let mut strays: HashMap<_, usize> = HashMap::new();
    let mut addresses: HashMap<_, usize> = HashMap::new();
    for index in outcome.units.iter().flat_map(|unit| &unit.inputs) {
        let input = &outcome.inputs[*index];
        if let Some(connection) = input.connection_key() {
            let before = last.insert(connection, *index);
            prop_assert!(before.is_none_or(|before| before < *index), "{before:?}, then {index}");
        }
        if let Some(pair) = input.address_key() {
            // A stray leaves behind all packets with its addresses that came before it, and before those
            // that came after it.
            if input.connection_key().is_none() {
                let before = addresses.get(&pair).copied();
                prop_assert!(before.is_none_or(|before| before < *index));
                strays.insert(pair.clone(), *index);
            } else if let Some(stray) = strays.get(&pair) {
                prop_assert!(stray < index, "a packet that came before a stray left behind it");
            }
            let newest = addresses.entry(pair).or_insert(*index);
            *newest = (*newest).max(*index);
        }
    }
    Ok(())
}

/// I17.
fn check_counters(outcome: &Outcome) -> Result<(), TestCaseError> {
    let counters = &outcome.counters;
    let passed: u64 = counters.passed().map(|(_, count)| count).sum();
    let completed: u64 = counters.completed().map(|(_, count)| count).sum();
    let supers = outcome.units.iter().filter(|unit| unit.gso.is_some());
    prop_assert_eq!(counters.received, outcome.inputs.len() as u64);
    prop_assert_eq!(counters.received, counters.merged + counters.held + passed);
    prop_assert_eq!(counters.held, completed);
    prop_assert_eq!(counters.supers, supers.clone().count() as u64);
    let segments: usize = supers.clone().map(|unit| unit.inputs.len()).sum();
    prop_assert_eq!(counters.segments, segments as u64);
    let bytes: usize = supers.map(|unit| unit.bytes.len()).sum();
    prop_assert_eq!(counters.bytes, bytes as u64);
    Ok(())
}
