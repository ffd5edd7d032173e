//! The backend as the driver of a card: of its software model, which counts what a driver does wrong.

use std::{path::Path, thread, time::Duration};

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

use crate::faults::{BYTES, intact_rounds};
use crate::transfers::{BOOT_LIMIT, MB, Received, TRANSFER_LIMIT, both_ways};

pub(crate) const TESTS: &[Test] = &[
    alone("model_nic_commands_huntington", |logs| nic(logs, &["--generation=huntington"])),
    alone("model_nic_commands_medford", |logs| nic(logs, &["--generation=medford"])),
    alone("model_nic_commands_medford2", |logs| nic(logs, &["--generation=medford2"])),
    alone("model_nic_commands_vf", |logs| nic(logs, &["--vf"])),
    Test { name: "model_qemu_32_mb_each_way", needs: &[Need::Tap, Need::Qemu], run: qemu },
    test("model_uml_32_mb_each_way_huntington", |logs| {
        transfer(logs, Wire::Model(&["--generation=huntington"]), 32 * MB)?.check_merged()
    }),
    test("model_uml_32_mb_each_way_medford", |logs| {
        transfer(logs, Wire::Model(&["--generation=medford"]), 32 * MB)?.check_merged()
    }),
    test("model_uml_32_mb_each_way_medford2", |logs| {
        transfer(logs, Wire::Model(&["--generation=medford2"]), 32 * MB)?.check_merged()
    }),
    Test {
        name: "model_uml_4_mb_each_way_over_a_packet_socket",
        needs: &[Need::Namespaces, Need::Uml],
        run: |logs| transfer(logs, Wire::ModelOnCable, 4 * MB).map(|_| ()),
    },
    test("stock_driver_on_the_model_of_a_medford2", |logs| {
        stock_driver(logs, &["--generation=medford2"])
    }),
    test("stock_driver_on_the_model_of_a_medford", |logs| {
        stock_driver(logs, &["--generation=medford"])
    }),
    test("stock_driver_on_the_model_of_a_huntington", |logs| {
        stock_driver(logs, &["--generation=huntington"])
    }),
    test("model_controller_reboots_under_traffic", |logs| {
        survives(logs, &["--fault=mc-reboot@5", "--fault=mc-reboot@7"])
    }),
    test("model_link_flaps_under_traffic", |logs| survives(logs, &["--fault=link-flap=0.5@5"])),
    test("model_bad_checksums_under_traffic", |logs| {
        survives(logs, &["--fault=bad-checksum=200@5"])
    }),
    test("model_crc_errors_under_traffic", |logs| survives(logs, &["--fault=crc-error=10@5"])),
    test("model_bad_prefixes_under_traffic", |logs| survives(logs, &["--fault=bad-prefix=20@5"])),
    test("model_events_lost_under_traffic", |logs| survives(logs, &["--fault=lose-events=3@5"])),
    test("model_event_queue_overflows_under_traffic", |logs| {
        survives(logs, &["--fault=evq-overflow@5"])
    }),
    test("model_slow_controller", |logs| survives(logs, &["--fault=mcdi-delay=0.05"])),
    test("model_function_removed_under_traffic", removed),
    alone("model_command_fails_at_start", |logs| {
        // ALLOC_VIS: ENOSPC.
        refused(
            logs,
            &["--fault=mcdi-error=0x8b:0x1c"],
            "1 queue pairs are wanted, the card gives 0",
        )
    }),
    alone("model_last_command_fails_at_start", |logs| {
        // FILTER_OP: EINVAL. Queues exist by then, and their memory may go only after them.
        refused(logs, &["--fault=mcdi-error=0x8a:0x16"], "FILTER_OP")
    }),
    alone("model_short_reply_at_start", |logs| {
        // GET_CAPABILITIES: 8 bytes.
        refused(logs, &["--fault=short-reply=0xbe:8"], "GET_CAPABILITIES")
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
        let command = backend::command(&["nic", what, "--json", "--port", lab.port()])?;
        let mut process = Process::spawn(&format!("nic-{what}-json"), logs, command)?;
        let status = process.wait(Duration::from_secs(20))?;
        let output = process.output()?;
        let json = output.find(['{', '[']).map_or("", |at| &output[at..]);
        let value: serde_json::Value = serde_json::from_str(json)
            .with_context(|| format!("nic {what} --json, which ended with {status}:\n{output}"))?;
        ensure!(!value.is_null(), "nic {what} --json says nothing");
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

fn transfer(logs: &Path, wire: Wire, bytes: u64) -> Result<Received> {
    let lab = Lab::new(logs, wire)?;
    let backend = Backend::start(&lab, &[])?;
    let mut guest = uml::linux(lab.logs(), backend.socket(), &Plan::both_ways(bytes))?;
    let (_, received) = both_ways(&mut guest, bytes)?;
    drop(guest);
    backend.stop()?;
    check(&lab.model_report()?)?;
    Ok(received)
}

/// A driver that nobody here wrote: that of Linux, in a guest that has the card as its own.
fn stock_driver(logs: &Path, options: &'static [&'static str]) -> Result<()> {
    let mut lab = Lab::new(logs, Wire::ModelAsPci(options))?;
    let socket = lab.model()?.socket().to_owned();
    let plan = Plan::both_ways(32 * MB).rebind_driver().get(Family::V4, BYTES).put(Family::V4);
    let mut guest = uml::linux_with_pci(lab.logs(), &socket, &plan)?;
    guest.expect("up", BOOT_LIMIT)?;
    for bytes in [32 * MB, 32 * MB, BYTES] {
        if bytes == BYTES {
            guest.expect("up", BOOT_LIMIT).context("after the driver was bound again")?;
        }
        guest.expect("get", TRANSFER_LIMIT)?.check_intact(bytes)?;
        guest.expect("put", TRANSFER_LIMIT)?.check_intact(bytes)?;
    }
    guest.expect("end", TRANSFER_LIMIT)?;
    drop(guest);
    check(&lab.model_report()?)
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

/// Something goes wrong under traffic, and traffic goes on.
fn survives(logs: &Path, faults: &'static [&'static str]) -> Result<()> {
    let mut lab = Lab::new(logs, Wire::Model(faults))?;
    let mut backend = Backend::start(&lab, &[])?;
    let plan = Plan::traffic(Family::V4, BYTES);
    let mut guest = uml::linux(lab.logs(), backend.socket(), &plan)?;
    guest.expect("up", BOOT_LIMIT)?;
    intact_rounds(&mut guest, 2).context("before the fault")?;
    lab.model()?.wait_for_faults(faults.len())?;
    thread::sleep(Duration::from_secs(1));
    guest.skip_to_now()?;
    intact_rounds(&mut guest, 5).context("after the fault")?;
    backend.check_running()?;
    drop(guest);
    backend.stop()?;
    lab.model_report()?.check_no_violations()
}

/// The card is pulled out: the backend says so and ends, for there is nothing left to do.
fn removed(logs: &Path) -> Result<()> {
    let mut lab = Lab::new(logs, Wire::Model(&["--fault=remove@5"]))?;
    let backend = Backend::start(&lab, &[])?;
    let plan = Plan::traffic(Family::V4, BYTES);
    let mut guest = uml::linux(lab.logs(), backend.socket(), &plan)?;
    guest.expect("up", BOOT_LIMIT)?;
    intact_rounds(&mut guest, 2)?;
    lab.model()?.wait_for_faults(1)?;
    let (status, output) = backend.wait(Duration::from_secs(20))?;
    ensure!(status.code() == Some(1), "the backend ended with {status}");
    ensure!(output.contains("the card is gone"), "it does not say why");
    drop(guest);
    lab.model_report()?.check_no_violations()
}

/// The card answers wrongly when it is brought up: a clear error that names the command.
fn refused(logs: &Path, options: &'static [&'static str], named: &str) -> Result<()> {
    let lab = Lab::new(logs, Wire::Model(options))?;
    let socket = lab.socket();
    let socket = socket.to_string_lossy();
    let command = backend::command(&["--socket-path", &socket, "--port", lab.port()])?;
    let mut process = Process::spawn("backend", logs, command)?;
    let status = process.wait(Duration::from_secs(20))?;
    let output = process.output()?;
    ensure!(!status.success(), "it started all the same");
    ensure!(output.contains(named), "the message does not name {named}:\n{output}");
    lab.model_report()?.check_no_violations()
}
