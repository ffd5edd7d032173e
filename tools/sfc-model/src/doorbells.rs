//! Windows in shared memory: the driver stores, the card looks.
//!
//! A word that triggers something is filled with ones, which no driver writes there, and is taken by
//! exchanging it for ones again: a store is never seen twice and never missed, but of several stores
//! to one word only the last is seen, as with posted writes that were merged on their way.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fmt, io};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::bits::{number, size};
use crate::card::register;
use crate::config::Config;
use crate::host::Host;
use crate::violation::Rule;

/// Bytes of a window that hold registers: one page.
pub(crate) const PAGE: u64 = 4096;
const IDLE: u32 = u32::MAX;
const TRIGGERS: [u64; 8] = [
    register::MC_HWRD,
    register::EVQ_RPTR,
    register::EVQ_TMR,
    register::RX_DESC_UPD,
    register::TX_DESC_LOW,
    register::TX_DESC_HIGH,
    register::TX_DESC_PTR,
    register::TX_DESC_REST,
];

/// The windows of a card.
pub(crate) struct Doorbells {
    file: OwnedFd,
    memory: MmapRegion,
    stride: u64,
    vis: u64,
}

impl fmt::Debug for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbells").field("vis", &self.vis).finish_non_exhaustive()
    }
}

impl Doorbells {
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        let file = memfd_create("sfc-model windows", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, config.bar_len())?;
        let mapped = FileOffset::new(File::from(file.try_clone()?), 0);
        let memory =
            MmapRegion::from_file(mapped, size(config.bar_len())).map_err(io::Error::other)?;
        let doorbells = Self { file, memory, stride: config.stride(), vis: u64::from(config.vis) };
        doorbells.drain();
        doorbells.store(register::HW_REV_ID, 0xeb14_face);
        Ok(doorbells)
    }

    /// The memory, at the offsets of the BAR.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Offsets of the pages in the BAR.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        let stride = self.stride;
        (0..self.vis).map(move |vi| vi * stride)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        self.memory.get_atomic_ref(size(offset)).expect("a register inside the BAR")
    }

    pub(crate) fn load(&self, offset: u64) -> u32 {
        u32::from_le(self.word(offset).load(Ordering::Acquire))
    }

    pub(crate) fn store(&self, offset: u64, value: u32) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    /// What was stored since the last time.
    pub(crate) fn take(&self, offset: u64) -> Option<u32> {
        let word = self.word(offset);
        if word.load(Ordering::Relaxed) == IDLE {
            return None;
        }
        Some(u32::from_le(word.swap(IDLE, Ordering::AcqRel))).filter(|&value| value != IDLE)
    }

    /// Forgets what was stored.
    pub(crate) fn drain(&self) {
        for page in self.pages() {
            for trigger in TRIGGERS {
                self.store(page + trigger, IDLE);
            }
        }
    }

    /// Looks for stores where no register is.
    pub(crate) fn audit(&self, host: &mut Host) {
        for (vi, page) in self.pages().enumerate() {
            let mut bytes = vec![0u8; size(PAGE)];
            let at = size(page);
            let Ok(slice) = self.memory.get_slice(at, bytes.len()) else { continue };
            slice.copy_to(&mut bytes[..]);
            for (index, word) in bytes.chunks_exact(4).enumerate() {
                let offset = number(index) * 4;
                let known = TRIGGERS.contains(&offset)
                    || vi == 0
                        && [register::MC_LWRD, register::MC_STATUS, register::HW_REV_ID]
                            .contains(&offset);
                if !known && word != [0; 4] {
                    host.violation(Rule::Reserved, format_args!("at {:#x}", page + offset));
                    self.store(page + offset, 0);
                }
            }
        }
    }
}
