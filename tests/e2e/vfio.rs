//! The way to a card through the kernel's VFIO, on a real kernel, a real IOMMU driver, and a device that
//! does DMA and raises interrupts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    command::target,
    qemu,
    suite::{Need, Test, note},
};

use crate::transfers::BOOT_LIMIT;

pub(crate) const TESTS: &[Test] =
    &[Test { name: "vfio_dma_and_interrupts_behind_an_iommu", needs: &[Need::Qemu], run: edu }];

fn edu(logs: &Path) -> Result<()> {
    let place = tempfile::tempdir().context("cannot make a directory")?;
    let mut guest = qemu::with_iommu(logs, place.path(), &program()?)?;
    let device = guest.expect("device", BOOT_LIMIT)?;
    ensure!(device.text("address")?.ends_with(":00.0"), "there is no edu: {device:?}");

    // Not bound to vfio-pci: the message has the commands that mend it.
    guest.expect("failed:", LIMIT)?;
    let said = guest.process().output()?;
    ensure!(
        said.contains("is bound to no driver, not to vfio-pci"),
        "it says nothing of the driver"
    );

    let opened = guest.expect("opened", LIMIT)?;
    ensure!(opened.text("mapped")? == "true", "registers are not mapped: {opened:?}");
    ensure!(guest.expect("dma", LIMIT)?.number("bytes")? == 2048, "not all of it was copied");
    guest.expect("allocated", LIMIT)?;
    ensure!(guest.expect("interrupts", LIMIT)?.number("count")? == 2, "interrupts are missing");
    guest.expect("unmapped", LIMIT)?;
    guest.expect("reset", LIMIT)?;
    let ended = guest.expect("ended", LIMIT)?;
    ensure!(ended.text("status")? == "0", "the driver failed: {ended:?}");
    guest.expect("fault", LIMIT).context("the IOMMU has stopped nothing")?;
    let said = guest.process().output()?;
    let fault = said.lines().find(|line| line.contains("E2E fault")).unwrap_or_default();
    ensure!(fault.contains("0x7654"), "the IOMMU stopped something else: {fault}");
    note(fault.trim());
    guest.expect("end", LIMIT)?;
    Ok(())
}

/// The driver, linked so that it needs no library in the guest; `tests/run` builds it.
fn program() -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let path = target().join(triple).join("release/examples/edu");
    ensure!(path.is_file(), "no {}: tests/run builds it", path.display());
    Ok(path)
}

const LIMIT: Duration = Duration::from_secs(30);
