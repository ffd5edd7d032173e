//! The network card's boot ROM, iPXE: a guest that negotiates next to nothing.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use e2e::{
    backend::Backend,
    lab::{Lab, Wire},
    peer::http,
    qemu::{Options, Qemu},
    suite::{Need, Test},
};

pub(crate) const TESTS: &[Test] = &[Test {
    name: "ipxe_fetches_a_file",
    needs: &[Need::Namespaces, Need::BootRom],
    run: ipxe_fetches_a_file,
}];

/// DHCP, a script over HTTP, and what the script fetches: all of it seen by the server and by iPXE.
fn ipxe_fetches_a_file(logs: &Path) -> Result<()> {
    let lab = Lab::new(logs, Wire::Cable)?;
    let backend = Backend::start(&lab, &[])?;
    let mut qemu = Qemu::boot_rom(lab.logs(), backend.socket(), &Options::default())?;
    qemu.guest.wait_for_text(http::TOKEN, Duration::from_secs(90))?;
    let report = lab.peer_report()?;
    let sent = format!("sent all {} bytes of /payload", http::PAYLOAD_BYTES);
    ensure!(report.contains(&sent), "the server has not sent the file:\n{report}");
    let console = qemu.guest.process().output()?;
    let size = format!("payload : {} bytes", http::PAYLOAD_BYTES);
    ensure!(console.contains(&size), "iPXE does not show the file's size, {size:?}");
    drop(qemu);
    backend.stop()
}
