//! A PCI function seen from user space: registers, DMA memory, interrupts.
//!
//! A driver is given a [`PciFunction`] and knows no more about where it is. Life of one: opened;
//! [`enable`](PciFunction::enable)d; [`Bar`]s mapped and cut into windows; [`DmaRegion`]s set aside;
//! interrupts asked for. From then on the hot path uses [`Register`]s and [`DmaRing`]s alone: each
//! access is one volatile load or store, with [`release_to_device`] and [`acquire_from_device`]
//! between memory and doorbells. Everything is given back by dropping it.
//!
//! Who owns what: the function is the control half and stays with the thread that controls the card.
//! BARs, regions and rings are owned by whoever asked for them, may move to other threads, and
//! outlive the function if need be; they then reach nothing but memory.

pub mod fake;

mod bar;
mod client;
mod config;
mod dma;
mod error;
mod iova;
mod kernel;
mod memory;
mod packets;
mod reg;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

pub use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK};

pub use bar::{Bar, Register};
pub use client::Served;
pub use config::is_address;
pub use dma::{DmaRegion, DmaRing, acquire_from_device, release_to_device};
pub use error::Error;
pub use iova::Iova;
pub use kernel::Kernel;
pub use packets::{PacketMemory, Posted};
pub use reg::{ReadOnly, ReadWrite, Readable, Reg, Value, Width, Writable, WriteOnly};

/// Opens a function: one behind the vfio-user socket at that path, if there is a `/` in it, else the one
/// at that PCI address, through the kernel.
///
/// # Errors
///
/// When it is not there, or not for us to have; the message says how to mend it.
pub fn open(location: &str) -> Result<Box<dyn PciFunction>, Error> {
    if location.contains('/') {
        return Ok(Box::new(Served::connect(Path::new(location))?));
    }
    if !is_address(location) {
        return Err(Error::Location(location.to_owned()));
    }
    Ok(Box::new(Kernel::open(location)?))
}

/// One function of a PCI device: the control half, for the thread that brings it up.
pub trait PciFunction: Send + fmt::Debug {
    /// Its address or its socket, for messages.
    fn name(&self) -> &str;

    /// The NUMA node that it is attached to, where the platform says so: memory for it is best taken
    /// from there.
    fn numa_node(&self) -> Option<u32> {
        None
    }

    /// Reads configuration space.
    ///
    /// # Errors
    ///
    /// When the access is wider than 4 bytes, not aligned or not inside, or nobody answers.
    fn config_read(&self, offset: u16, width: Width) -> Result<u32, Error>;

    /// Writes configuration space; bits of the value above the width are ignored.
    ///
    /// # Errors
    ///
    /// As [`Self::config_read`].
    fn config_write(&mut self, offset: u16, width: Width, value: u32) -> Result<(), Error>;

    /// A BAR, 0 to 5. A 64-bit BAR has the index of its lower half.
    ///
    /// # Errors
    ///
    /// When there is none of that index or it can't be mapped.
    fn bar(&mut self, index: u8) -> Result<Bar, Error>;

    /// Zeroed memory for DMA, in huge pages when it is large and the system has some free. The
    /// device's address is a multiple of `align` and of the page size.
    ///
    /// # Errors
    ///
    /// When `bytes` is 0, `align` is not a power of two, or memory, addresses or the right to lock
    /// memory are used up.
    fn dma(&mut self, bytes: usize, align: usize) -> Result<DmaRegion, Error>;

    /// Shows part of a file (guest memory, a memfd) to the device, at an address of the caller's
    /// choice. The part is mapped here a second time, so that it stays as long as the region does.
    /// Everything is in whole pages of 4096 bytes.
    ///
    /// # Errors
    ///
    /// When it is not, the file is too short, the addresses are taken, or it can't be mapped.
    fn map_guest(
        &mut self,
        iova: Iova,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> Result<DmaRegion, Error>;

    /// Sets the first `count` interrupt vectors up, MSI-X where there is, and switches the others off.
    /// Each descriptor counts the interrupts of its vector; reading it never blocks.
    ///
    /// # Errors
    ///
    /// When there are not so many.
    fn interrupts(&mut self, count: usize) -> Result<Vec<EventFd>, Error>;

    /// Resets the function (FLR, or what the device has for it). Mappings stay.
    ///
    /// # Errors
    ///
    /// When the function can't be reset.
    fn reset(&mut self) -> Result<(), Error>;

    /// The vendor and the device identifier; also the way to find out whether it is still there.
    ///
    /// # Errors
    ///
    /// When it is gone.
    fn ids(&self) -> Result<(u16, u16), Error> {
        let vendor = self.config_read(config::IDS, Width::Word)?;
        let device = self.config_read(config::IDS + 2, Width::Word)?;
        // No vendor has all ones: it is what a bus without the device gives.
        match (u16::try_from(vendor), u16::try_from(device)) {
            (Ok(vendor), Ok(device)) if vendor != u16::MAX => Ok((vendor, device)),
            _ => Err(Error::Gone { name: self.name().to_owned() }),
        }
    }

    /// Lets the function answer to its memory BARs and do DMA.
    ///
    /// # Errors
    ///
    /// When configuration space can't be reached.
    fn enable(&mut self) -> Result<(), Error> {
        let command = self.config_read(config::COMMAND, Width::Word)?;
        let wanted = command | config::COMMAND_MEMORY | config::COMMAND_BUS_MASTER;
        self.config_write(config::COMMAND, Width::Word, wanted)
    }

    /// Ends the function's DMA.
    ///
    /// # Errors
    ///
    /// When configuration space can't be reached.
    fn disable(&mut self) -> Result<(), Error> {
        let command = self.config_read(config::COMMAND, Width::Word)?;
        self.config_write(config::COMMAND, Width::Word, command & !config::COMMAND_BUS_MASTER)
    }
}

/// Event descriptors, one per interrupt vector.
fn event_fds(name: &str, count: usize) -> Result<Vec<EventFd>, Error> {
    let flags = EFD_NONBLOCK | EFD_CLOEXEC;
    let events = (0..count).map(|_| EventFd::new(flags)).collect::<io::Result<_>>();
    events.map_err(kernel_error(name, "make an event descriptor"))
}

/// What turns the failure of a system call into an [`Error`].
fn kernel_error(name: &str, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    let name = name.to_owned();
    move |source| Error::Kernel { name, doing, source }
}
