//! The backend as the driver of a card: of its software model, which counts what a driver does wrong.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    backend::{self, Backend},
    guest::{Family, Plan},
    lab::{Lab, Wire},
    model::Report,
    process::Process,
    qemu::{Options, Qemu},
    suite::{Need, Test, note},
    uml,
};

use crate::transfers::{BOOT_LIMIT, MB, Received, both_ways};

pub(crate) const TESTS: &[Test] = &[
    alone("model_nic_commands_huntington", |logs| nic(logs, &["--generation=huntington"])),
    alone("model_nic_commands_medford", |logs| nic(logs, &["--generation=medford"])),
    alone("model_nic_commands_medford2", |logs| nic(logs, &["--generation=medford2"])),
    alone("model_nic_commands_vf", |logs| nic(logs, &["--vf"])),
    Test { name: "model_qemu_32_mb_each_way", needs: &[Need::Tap, Need::Qemu], run: qemu },
    test("model_uml_32_mb_each_way_huntington", |logs| {
        transfer(logs, &["--generation=huntington"], 32 * MB)?.check_merged()
    }),
    test("model_uml_32_mb_each_way_medford", |logs| {
        transfer(logs, &["--generation=medford"], 32 * MB)?.check_merged()
    }),
    test("model_uml_32_mb_each_way_medford2", |logs| {
        transfer(logs, &["--generation=medford2"], 32 * MB)?.check_merged()
    }),
];

const fn alone(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[Need::Tap], run }
}

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[Need::Tap, Need::Uml], run }
}

/// `nic selftest`, `nic info` and `nic stats`, one after the other on one card.
fn nic(logs: &Path, options: &'static [&'static str]) -> Result<()> {
    let lab = Lab::new(logs, Wire::Model(options))?;
    for what in ["selftest", "info", "stats", "selftest"] {
        let command = backend::command(&["nic", what, "--port", lab.port()])?;
        let mut process = Process::spawn(&format!("nic-{what}"), logs, command)?;
        let status = process.wait(Duration::from_secs(20))?;
        let output = process.output()?;
        ensure!(status.success(), "nic {what} ended with {status}:\n{output}");
        ensure!(output.lines().count() > 4, "nic {what} says too little:\n{output}");
    }
    let report = lab.model_report()?;
    ensure!(report.count("commands")? > 50, "the model saw few commands");
    report.check_no_violations()
}

fn qemu(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Model(&[]))?;
    let backend = Backend::start(&lab, &[])?;
    let plan = Plan::both_ways(32 * MB);
    let mut qemu = Qemu::linux(lab.logs(), backend.socket(), &plan, &Options::default())?;
    let (_, received) = both_ways(&mut qemu.guest, 32 * MB)?;
    drop(qemu);
    backend.stop()?;
    check(&lab.model_report()?)?;
    received.check_merged()
}

fn transfer(logs: &Path, options: &'static [&'static str], bytes: u64) -> Result<Received> {
    let lab = Lab::new(logs, Wire::Model(options))?;
    let backend = Backend::start(&lab, &[])?;
    let mut guest = uml::linux(lab.logs(), backend.socket(), &Plan::both_ways(bytes))?;
    let (_, received) = both_ways(&mut guest, bytes)?;
    drop(guest);
    backend.stop()?;
    check(&lab.model_report()?)?;
    Ok(received)
}

fn check(report: &Report) -> Result<()> {
    let count = |name| report.count(name).context("the model's report");
    note(&format!(
        "the card received {} packets, sent {}, lacked descriptors for {}",
        count("rx_packets")?,
        count("tx_packets")?,
        count("rx_no_descriptors")?
    ));
    report.check_no_violations()
}
