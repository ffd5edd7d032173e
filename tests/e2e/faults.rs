//! Reboots, reloads and crashes under traffic: it has to resume.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context as _, Result};
use e2e::{
    backend::Backend,
    guest::{Family, Guest, Plan},
    lab::{Lab, Wire},
    qemu::{Options, Qemu},
    suite::{Need, Test},
    uml,
};

use crate::transfers::{BOOT_LIMIT, MB};

pub(crate) const TESTS: &[Test] = &[
    test("qemu_guest_reset_under_traffic", guest_reset),
    test("qemu_driver_reloaded", driver_reloaded),
    test("qemu_backend_killed_under_traffic", backend_killed),
    Test { name: "uml_guest_reboots", needs: &[Need::Namespaces, Need::Uml], run: uml_reboots },
    Test {
        name: "uml_guests_one_after_the_other",
        needs: &[Need::Namespaces, Need::Uml],
        run: uml_in_turn,
    },
];

const fn test(name: &'static str, run: fn(&Path) -> Result<()>) -> Test {
    Test { name, needs: &[Need::Namespaces, Need::Qemu], run }
}

fn guest_reset(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let mut backend = Backend::start(&lab, &[])?;
    let plan = Plan::traffic(Family::V4, BYTES);
    let mut qemu = Qemu::linux(lab.logs(), backend.socket(), &plan, &Options::default())?;
    qemu.guest.expect("up", BOOT_LIMIT)?;
    intact_rounds(&mut qemu.guest, 2).context("before the reset")?;
    for _ in 0..2 {
        qemu.reset()?;
        qemu.guest.wait_for("boot after the reset", BOOT_LIMIT, |answer| answer.what == "up")?;
        intact_rounds(&mut qemu.guest, 2).context("after the reset")?;
    }
    backend.check_running()?;
    drop(qemu);
    backend.stop()
}

fn driver_reloaded(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let backend = Backend::start(&lab, &[])?;
    let plan = Plan::new()
        .get(Family::V4, BYTES)
        .reload_driver()
        .get(Family::V4, BYTES)
        .put(Family::V4)
        .reload_driver()
        .get(Family::V6, BYTES);
    let mut qemu = Qemu::linux(lab.logs(), backend.socket(), &plan, &Options::default())?;
    for what in ["up", "get", "up", "get", "put", "up", "get"] {
        let answer = qemu.guest.expect(what, BOOT_LIMIT)?;
        if what != "up" {
            answer.check_intact(BYTES)?;
        }
    }
    qemu.guest.expect("end", BOOT_LIMIT)?;
    drop(qemu);
    backend.stop()
}

fn backend_killed(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let mut backend = Backend::start(&lab, &[])?;
    let plan = Plan::traffic(Family::V4, BYTES);
    let mut qemu = Qemu::linux(lab.logs(), backend.socket(), &plan, &Options::default())?;
    qemu.guest.expect("up", BOOT_LIMIT)?;
    intact_rounds(&mut qemu.guest, 1).context("before the first kill")?;
    for _ in 0..3 {
        backend.kill()?;
        thread::sleep(Duration::from_millis(500));
        backend = Backend::start(&lab, &[])?;
        // What the guest has printed already, it may have received before.
        qemu.guest.skip_to_now()?;
        intact_rounds(&mut qemu.guest, 2).context("after a kill and restart")?;
    }
    drop(qemu);
    backend.stop()
}

fn uml_reboots(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let mut backend = Backend::start(&lab, &[])?;
    let plan = Plan::new().get(Family::V4, BYTES).get(Family::V6, BYTES).reboot();
    let mut guest = uml::linux(lab.logs(), backend.socket(), &plan)?;
    for _ in 0..5 {
        guest.expect("up", BOOT_LIMIT)?;
        for _ in 0..2 {
            guest.expect("get", ROUND_LIMIT)?.check_intact(BYTES)?;
        }
    }
    backend.check_running()?;
    drop(guest);
    backend.stop()
}

/// A guest that is killed in the middle of traffic, and the next one on the same backend.
fn uml_in_turn(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let mut backend = Backend::start(&lab, &[])?;
    for _ in 0..5 {
        let plan = Plan::traffic(Family::V6, BYTES);
        let mut guest = uml::linux(lab.logs(), backend.socket(), &plan)?;
        guest.expect("up", BOOT_LIMIT)?;
        intact_rounds(&mut guest, 2)?;
        guest.process().kill()?;
        backend.check_running()?;
    }
    backend.stop()
}

/// Waits for so many rounds of traffic that arrived intact. Rounds given up are let pass: a
/// connection that lost its other end cannot know.
pub(crate) fn intact_rounds(guest: &mut Guest, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        guest.wait_for("intact round of traffic", ROUND_LIMIT, |answer| {
            answer.what == "traffic" && answer.check_intact(BYTES).is_ok()
        })?;
    }
    Ok(())
}

pub(crate) const BYTES: u64 = 4 * MB;
const ROUND_LIMIT: Duration = Duration::from_secs(60);
