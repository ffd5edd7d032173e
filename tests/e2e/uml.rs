//! User Mode Linux.

use std::path::Path;

use anyhow::{Result, ensure};
use e2e::{
    backend::Backend,
    guest::{Answer, Family, Plan},
    lab::{Lab, Wire},
    suite::{Need, Test},
    uml,
};

use crate::transfers::{self, MB, Received, both_ways};

pub(crate) const TESTS: &[Test] = &[
    test("uml_32_mb_each_way_merged", |logs| {
        main_transfer(logs, &["--gro", "on"], Wire::Cable)?.check_merged()
    }),
    test("uml_32_mb_each_way_gro_off", |logs| {
        main_transfer(logs, &["--gro", "off"], Wire::Cable)?.check_unmerged()
    }),
    test("uml_32_mb_each_way_partial_checksums", |logs| {
        main_transfer(logs, &[], Wire::PartialChecksums)?.check_merged()
    }),
    Test {
        name: "uml_4_mb_each_way_over_tap",
        needs: &[Need::Namespaces, Need::Tap, Need::Uml],
        run: |logs| transfer(logs, &[], Wire::Tap, 4 * MB).map(|_| ()),
    },
    test("uml_mrg_rxbuf_off", |logs| without(logs, "mrg_rxbuf", 15).map(|_| ())),
    test("uml_csum_off", |logs| without(logs, "csum", 0)?.check_merging()),
    test("uml_guest_csum_off", |logs| without(logs, "guest_csum", 1)?.check_unmerged()),
    test("uml_guest_tso4_off", |logs| {
        transfers::check_unmerged(Family::V4, without(logs, "guest_tso4", 7)?.v4)
    }),
    test("uml_guest_tso6_off", |logs| {
        transfers::check_unmerged(Family::V6, without(logs, "guest_tso6", 8)?.v6)
    }),
    test("uml_host_tso4_off", |logs| without(logs, "host_tso4", 11)?.check_merging()),
    test("uml_host_tso6_off", |logs| without(logs, "host_tso6", 12)?.check_merging()),
    test("uml_event_idx_off", |logs| without(logs, "event_idx", 29)?.check_merging()),
    test("uml_indirect_desc_off", |logs| without(logs, "indirect_desc", 28)?.check_merging()),
];

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[Need::Namespaces, Need::Uml], run }
}

fn main_transfer(logs: &Path, backend: &[&str], wire: Wire) -> Result<Received> {
    let (_, received) = transfer(logs, backend, wire, 32 * MB)?;
    Ok(received)
}

/// The backend does not offer the feature; smaller transfers have to arrive all the same.
fn without(logs: &Path, feature: &str, bit: usize) -> Result<Received> {
    let (up, received) = transfer(logs, &["--disable-feature", feature], Wire::Cable, 4 * MB)?;
    ensure!(!up.has_feature(bit)?, "{feature} was negotiated after all: {up:?}");
    Ok(received)
}

fn transfer(
    logs: &Path,
    backend_options: &[&str],
    wire: Wire,
    bytes: u64,
) -> Result<(Answer, Received)> {
    let lab = Lab::new(logs, wire)?;
    let backend = Backend::start(&lab, backend_options)?;
    let mut guest = uml::linux(lab.logs(), backend.socket(), &Plan::both_ways(bytes))?;
    let outcome = both_ways(&mut guest, bytes)?;
    backend.stop()?;
    Ok(outcome)
}
