//! Debian's kernel in QEMU.

use std::path::Path;

use anyhow::{Result, ensure};
use e2e::{
    backend::Backend,
    guest::{Answer, Family, Plan},
    lab::{Lab, Wire},
    qemu::{Options, Qemu},
    suite::{Need, Test},
};

use crate::transfers::{self, MB, Received, both_ways};

pub(crate) const TESTS: &[Test] = &[
    test("qemu_32_mb_each_way_merged", |logs| {
        main_transfer(logs, &["--gro", "on"])?.check_merged()
    }),
    test("qemu_32_mb_each_way_gro_off", |logs| {
        main_transfer(logs, &["--gro", "off"])?.check_unmerged()
    }),
    test("qemu_mrg_rxbuf_off", |logs| without(logs, "mrg_rxbuf", 15).map(|_| ())),
    test("qemu_csum_off", |logs| without(logs, "csum", 0)?.check_merging()),
    test("qemu_guest_csum_off", |logs| without(logs, "guest_csum", 1)?.check_unmerged()),
    test("qemu_guest_tso4_off", |logs| {
        transfers::check_unmerged(Family::V4, without(logs, "guest_tso4", 7)?.v4)
    }),
    test("qemu_guest_tso6_off", |logs| {
        transfers::check_unmerged(Family::V6, without(logs, "guest_tso6", 8)?.v6)
    }),
    test("qemu_host_tso4_off", |logs| without(logs, "host_tso4", 11)?.check_merging()),
    test("qemu_host_tso6_off", |logs| without(logs, "host_tso6", 12)?.check_merging()),
    test("qemu_event_idx_off", |logs| without(logs, "event_idx", 29)?.check_merging()),
    test("qemu_indirect_desc_off", |logs| without(logs, "indirect_desc", 28)?.check_merging()),
    test("qemu_listens_and_backend_connects", |logs| backend_connects(logs)?.check_merging()),
];

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[Need::Namespaces, Need::Qemu], run }
}

/// The main test: 32 MB each way over IPv4 and IPv6.
fn main_transfer(logs: &Path, backend: &[&str]) -> Result<Received> {
    let (_, received) = transfer(logs, backend, &Options::default(), 32 * MB)?;
    Ok(received)
}

/// The guest is not offered the feature; smaller transfers have to arrive all the same.
fn without(logs: &Path, feature: &str, bit: usize) -> Result<Received> {
    let property = format!("{feature}=off");
    let options = Options { device: &[&property], ..Options::default() };
    let (up, received) = transfer(logs, &[], &options, 4 * MB)?;
    ensure!(!up.has_feature(bit)?, "{feature} was negotiated after all: {up:?}");
    Ok(received)
}

fn transfer(
    logs: &Path,
    backend_options: &[&str],
    options: &Options<'_>,
    bytes: u64,
) -> Result<(Answer, Received)> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let backend = Backend::start(&lab, backend_options)?;
    let plan = Plan::both_ways(bytes);
    let mut qemu = Qemu::linux(lab.logs(), backend.socket(), &plan, options)?;
    let outcome = both_ways(&mut qemu.guest, bytes)?;
    backend.stop()?;
    Ok(outcome)
}

fn backend_connects(logs: &Path) -> Result<Received> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let plan = Plan::both_ways(4 * MB);
    let options = Options { listen: true, ..Options::default() };
    // The backend is there first, and has to wait until there is a socket to connect to.
    let backend = Backend::start_client(&lab, &lab.socket(), &[])?;
    let mut qemu = Qemu::linux(lab.logs(), &lab.socket(), &plan, &options)?;
    let (_, received) = both_ways(&mut qemu.guest, 4 * MB)?;
    backend.stop()?;
    Ok(received)
}
