//! A QEMU guest in software emulation: Debian's own kernel, or only the network card's boot ROM.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    command::find_program,
    guest::{Guest, Plan, initramfs, initramfs_with},
    kernel::Kernel,
    process::Process,
};

/// The emulator.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// How to start a guest.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Properties of the network device, such as `mrg_rxbuf=off`.
    pub device: &'a [&'a str],
    /// QEMU listens on the socket, and the backend connects.
    pub listen: bool,
}

/// A guest, and the way to its machine.
#[derive(Debug)]
pub struct Qemu {
    /// The guest.
    pub guest: Guest,
    monitor: PathBuf,
}

impl Qemu {
    /// Boots Debian's kernel with `plan`, attached to the `socket`. The console is logged in `logs`,
    /// other files go beside the socket.
    pub fn linux(logs: &Path, socket: &Path, plan: &Plan, options: &Options<'_>) -> Result<Self> {
        let kernel = Kernel::find()?;
        let place = socket.parent().context("the socket has no directory")?;
        let initramfs = initramfs(place, plan, &kernel.modules(&["virtio_pci", "virtio_net"])?)?;
        // The boot ROM is left out: it would only wait for a key.
        let device = [options.device, &["romfile="]].concat();
        let mut command = machine(socket, &Options { device: &device, ..options.clone() })?;
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
        command.args(["-append", "console=ttyS0 quiet loglevel=4 panic=-1 tsc=unstable"]);
        Self::start(logs, socket, command)
    }

    /// Boots nothing but the network card's ROM, which is iPXE.
    pub fn boot_rom(logs: &Path, socket: &Path, options: &Options<'_>) -> Result<Self> {
        let device = [options.device, &["bootindex=0"]].concat();
        let options = Options { device: &device, ..options.clone() };
        Self::start(logs, socket, machine(socket, &options)?)
    }

    /// Resets the machine, as the button on the front does.
    pub fn reset(&self) -> Result<()> {
        self.monitor("system_reset")
    }

    /// Gives a command to QEMU's monitor.
    pub fn monitor(&self, command: &str) -> Result<()> {
        let path = self.monitor.display();
        let mut stream = UnixStream::connect(&self.monitor)
            .with_context(|| format!("cannot reach QEMU's monitor at {path}"))?;
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .context("cannot set the monitor's time limit")?;
        writeln!(stream, "{command}").with_context(|| format!("cannot write to {path}"))?;
        // QEMU drops what it has not read when we hang up: give it the time to echo and answer.
        let mut echo = [0; 1024];
        while !matches!(stream.read(&mut echo), Ok(0) | Err(_)) {}
        Ok(())
    }

    fn start(logs: &Path, socket: &Path, command: Command) -> Result<Self> {
        let guest = Guest::new(Process::spawn("guest", logs, command)?);
        Ok(Self { guest, monitor: monitor_of(socket) })
    }
}

/// Boots a machine with an IOMMU and QEMU's `edu` device behind a port of its own, to run the driver
/// at `program` in. Files go to `place`.
pub fn with_iommu(logs: &Path, place: &Path, program: &Path) -> Result<Guest> {
    const INIT: &str = include_str!("../guest/vfio.sh");
    let kernel = Kernel::find()?;
    let modules = kernel.modules(&["vfio_iommu_type1", "vfio_pci"])?;
    let initramfs = initramfs_with(place, INIT, program, &modules)?;
    let emulator =
        find_program(PROGRAM).with_context(|| format!("no {PROGRAM}: install qemu-system-x86"))?;
    let mut command = Command::new(emulator);
    command.args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio"]);
    command.args(["-accel", "tcg", "-m", "320M", "-machine", "q35"]);
    command.args(["-device", "intel-iommu", "-device", "pcie-root-port,id=rp0,chassis=1"]);
    command.args(["-device", "edu,bus=rp0"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
    let append = "console=ttyS0 quiet loglevel=4 panic=-1 tsc=unstable intel_iommu=on";
    command.args(["-append", append]);
    Ok(Guest::new(Process::spawn("guest", logs, command)?))
}

/// The command line up to what is booted.
fn machine(socket: &Path, options: &Options<'_>) -> Result<Command> {
    let program =
        find_program(PROGRAM).with_context(|| format!("no {PROGRAM}: install qemu-system-x86"))?;
    let mut command = Command::new(program);
    // Shared memory, for the backend to reach it; -nographic brings the firmware's text on serial.
    command.args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio"]);
    command.args(["-accel", "tcg", "-m", "320M", "-machine", "pc,memory-backend=memory"]);
    command.args(["-object", "memory-backend-memfd,id=memory,size=320M,share=on"]);
    let role = if options.listen { "server=on,wait=on" } else { "reconnect=1" };
    command.args(["-chardev", &format!("socket,id=backend,path={},{role}", socket.display())]);
    command.args(["-netdev", "vhost-user,id=wire,chardev=backend"]);
    // Without vectors=0 Debian's QEMU 7.2 crashes under TCG when MSI-X meets vhost-user.
    let mut device = format!("virtio-net-pci,netdev=wire,vectors=0,mac={MAC}");
    for property in options.device {
        write!(device, ",{property}").context("cannot compose the device")?;
    }
    command.args(["-device", &device]);
    let monitor = monitor_of(socket);
    command.args(["-monitor", &format!("unix:{},server=on,wait=off", monitor.display())]);
    Ok(command)
}

fn monitor_of(socket: &Path) -> PathBuf {
    socket.with_file_name("monitor.sock")
}

const MAC: &str = "52:54:00:12:34:56";
