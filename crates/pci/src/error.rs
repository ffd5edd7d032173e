//! What can go wrong between us and a PCI function, each with the way to mend it where there is one.

use std::io;
use std::path::PathBuf;

use crate::Iova;

/// Why something asked of a PCI function was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names nothing.
    #[error(
        "`{0}` is neither a PCI address, such as 0000:03:00.0, nor the path of a vfio-user socket, \
         such as /run/nic.sock"
    )]
    Location(String),
    /// Nothing is at that PCI address.
    #[error("there is no PCI function {name}: `lspci -D` lists them")]
    NoFunction {
        /// Its address.
        name: String,
    },
    /// The kernel has no VFIO, or its modules are not loaded.
    #[error("{name}: the kernel has no VFIO here: `modprobe vfio-pci` as root, once")]
    NoVfio {
        /// The function.
        name: String,
    },
    /// No IOMMU stands before the function.
    #[error(
        "{name} is behind no IOMMU: switch VT-d or AMD-Vi on in the firmware set-up, and boot the \
         kernel with intel_iommu=on (Intel)"
    )]
    NoIommu {
        /// The function.
        name: String,
    },
    /// The function is not bound to vfio-pci.
    #[error(
        "{name} is bound to {}, not to vfio-pci; as root: `{}echo vfio-pci > \
         /sys/bus/pci/devices/{name}/driver_override; echo {name} > /sys/bus/pci/drivers_probe`",
        if driver.is_empty() { "no driver".to_owned() } else { format!("`{driver}`") },
        if driver.is_empty() {
            String::new()
        } else {
            format!("echo {name} > /sys/bus/pci/devices/{name}/driver/unbind; ")
        }
    )]
    Driver {
        /// The function.
        name: String,
        /// The driver; empty for none.
        driver: String,
    },
    /// Other functions of the IOMMU group are held by drivers.
    #[error(
        "{name} shares IOMMU group {group} with {others}: unbind those or bind them to vfio-pci too, \
         or use a slot with a group of its own"
    )]
    Shared {
        /// The function.
        name: String,
        /// Its group.
        group: String,
        /// Addresses and drivers.
        others: String,
    },
    /// The group's file may not be opened.
    #[error(
        "{name}: no permission to open {}: run as root, or `chown USER {}` as root", file.display(),
        file.display()
    )]
    Permission {
        /// The function.
        name: String,
        /// The file.
        file: PathBuf,
    },
    /// Somebody has it.
    #[error(
        "{name} is in use, or another function of its IOMMU group is: end the process that has it first"
    )]
    InUse {
        /// The function.
        name: String,
    },
    /// The process may not pin so much memory.
    #[error(
        "{name}: {bytes} bytes more can't be pinned: the limit for locked memory is {limit} bytes; \
         raise it with `ulimit -l unlimited` or LimitMEMLOCK=infinity in the service's unit"
    )]
    LockedMemory {
        /// The function.
        name: String,
        /// How many were asked for.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The kernel's VFIO refused, for a reason that has no message of its own.
    #[error("{name}: could not {doing}")]
    Vfio {
        /// The function.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// What the kernel says.
        source: vfio_ioctls::VfioError,
    },
    /// A kernel call failed for no reason that has its own message.
    #[error("{name}: could not {doing}")]
    Kernel {
        /// The function.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody serves the socket.
    #[error("{path}: could not connect to a vfio-user server")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the connection says.
        source: vfio_user::Error,
    },
    /// The vfio-user connection failed.
    #[error("{name}: could not {doing}")]
    Connection {
        /// The function.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// What the connection says.
        source: vfio_user::Error,
    },
    /// No answer within the time limit.
    #[error("{name}: no answer within {seconds} s to the request to {doing}; it is given up")]
    NoAnswer {
        /// The function.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The function has been removed, or its server is gone.
    #[error("{name} is gone: removed, switched off, or its server has ended")]
    Gone {
        /// The function.
        name: String,
    },
    /// The function has no such BAR.
    #[error("{name} has no BAR {index}")]
    NoBar {
        /// The function.
        name: String,
        /// The BAR.
        index: u8,
    },
    /// A window or register that is not inside the BAR.
    #[error("{len} bytes at {offset:#x} are not inside the {size:#x} bytes of BAR {bar}")]
    Outside {
        /// The BAR.
        bar: u8,
        /// Where the window was to begin.
        offset: u64,
        /// Its length.
        len: u64,
        /// The length of the BAR, or of the window that was to be cut.
        size: u64,
    },
    /// A window that does not begin at a multiple of 8.
    #[error("a window at {offset:#x} of BAR {bar}: windows begin at multiples of 8")]
    Unaligned {
        /// The BAR.
        bar: u8,
        /// Where the window was to begin.
        offset: u64,
    },
    /// A configuration space access that is not there, or not aligned.
    #[error("{name}: no {bytes}-byte access at {offset:#x} of configuration space")]
    Config {
        /// The function.
        name: String,
        /// Where.
        offset: u16,
        /// How wide.
        bytes: usize,
    },
    /// DMA memory of no bytes, or with an alignment that is not a power of two.
    #[error("DMA memory of {bytes} bytes aligned to {align}: not possible")]
    DmaShape {
        /// The size asked for.
        bytes: usize,
        /// The alignment asked for.
        align: usize,
    },
    /// Not part of a whole number of pages.
    #[error(
        "memory at {iova} ({bytes} bytes at {offset:#x} of its file): only whole pages of 4096 \
         bytes can be mapped"
    )]
    NotPages {
        /// Where the device was to see it.
        iova: Iova,
        /// Where it begins in its file.
        offset: u64,
        /// Its length.
        bytes: usize,
    },
    /// The address range is in use, or is reserved by the platform.
    #[error("{bytes} bytes at {iova}: part of it is mapped already, or reserved by the platform")]
    IovaTaken {
        /// Where the device was to see the memory.
        iova: Iova,
        /// Its length.
        bytes: u64,
    },
    /// No free address range is large enough.
    #[error("no room for {bytes} bytes in the device's address space")]
    IovaFull {
        /// The length asked for.
        bytes: u64,
    },
    /// Memory could not be had.
    #[error("{name}: could not set {bytes} bytes of memory aside for DMA")]
    Memory {
        /// The function.
        name: String,
        /// The size asked for.
        bytes: usize,
        /// What the system says.
        source: io::Error,
    },
    /// More interrupt vectors than the function has.
    #[error("{name} has {offered} interrupt vectors, wanted are {wanted}")]
    Interrupts {
        /// The function.
        name: String,
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        offered: usize,
    },
}
