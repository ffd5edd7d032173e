//! A User Mode Linux guest: a Linux kernel as a process, its `virtio_uml` driver on the socket.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::run,
    guest::{Guest, Plan, initramfs},
    process::Process,
};

/// Names a kernel to take instead of the one `tools/uml/build` makes.
pub const KERNEL_VARIABLE: &str = "UML_KERNEL";

/// Boots the kernel with `plan`, attached to the backend's `socket`. The console is logged in `logs`,
/// other files go beside the socket.
pub fn linux(logs: &Path, socket: &Path, plan: &Plan) -> Result<Guest> {
    // Device 1 is a network card (virtio 1.x, section 5.1).
    boot(logs, socket, 1, plan)
}

/// The same, but with a PCI function at the socket: PCI over virtio, with the device number that
/// `tools/uml/config` has for it.
pub fn linux_with_pci(logs: &Path, socket: &Path, plan: &Plan) -> Result<Guest> {
    boot(logs, socket, 1234, plan)
}

fn boot(logs: &Path, socket: &Path, device: u32, plan: &Plan) -> Result<Guest> {
    let place = socket.parent().context("the socket has no directory")?;
    let initramfs = initramfs(place, plan, &[])?;
    let mut command = Command::new(kernel()?);
    command.arg(format!("mem={MEMORY}"));
    command.arg(format!("initrd={}", initramfs.display()));
    command.arg(format!("virtio_uml.device={}:{device}", socket.display()));
    command.args(["con=null", "con0=fd:0,fd:1", "quiet", "loglevel=4", "panic=-1"]);
    // The guest's memory is an unlinked file here, and shared with the backend.
    command.env("TMPDIR", "/dev/shm");
    Ok(Guest::new(Process::spawn("guest", logs, command)?))
}

/// The kernel, if it has been built.
pub fn kernel() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(KERNEL_VARIABLE) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{KERNEL_VARIABLE} names {}, which is no file", path.display());
        }
        return Ok(path);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/uml/build");
    let path = run(&script.to_string_lossy(), &["--path"])
        .context("no User Mode Linux kernel: run tools/uml/build")?;
    Ok(PathBuf::from(path.trim()))
}

const MEMORY: &str = "320M";
