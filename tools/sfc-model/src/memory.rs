//! The host's memory as the card sees it: files mapped at device addresses.
//!
//! Life: a stretch is mapped when the driver (or the machine around it) shows it, read and written by
//! the card through checked copies, and unmapped when the driver takes it back. The driver may write
//! at the same time; nothing is read twice.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

use crate::bits::{number, size};

/// Nothing is mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmapped(pub(crate) u64);

/// What is mapped, by device address.
#[derive(Debug, Default)]
pub(crate) struct DmaMap {
    stretches: Vec<Stretch>,
}

#[derive(Debug)]
struct Stretch {
    iova: u64,
    memory: MmapRegion,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.iova + number(self.memory.size())
    }
}

impl DmaMap {
    /// Shows part of a file at a device address.
    pub(crate) fn map(&mut self, iova: u64, len: u64, file: File, offset: u64) -> io::Result<()> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let end = iova.checked_add(len).filter(|_| len > 0);
        let end = end.ok_or_else(|| invalid(format!("{len:#x} bytes at {iova:#x}")))?;
        if self.stretches.iter().any(|other| iova < other.end() && other.iova < end) {
            return Err(invalid(format!("{len:#x} bytes at {iova:#x} are mapped already")));
        }
        let file = FileOffset::new(file, offset);
        let memory = MmapRegion::from_file(file, size(len)).map_err(io::Error::other)?;
        self.stretches.push(Stretch { iova, memory });
        Ok(())
    }

    /// Takes away what is wholly inside; tells whether anything was.
    pub(crate) fn unmap(&mut self, iova: u64, len: u64) -> bool {
        let before = self.stretches.len();
        let end = iova.saturating_add(len);
        self.stretches.retain(|stretch| stretch.iova < iova || stretch.end() > end);
        self.stretches.len() < before
    }

    pub(crate) fn clear(&mut self) {
        self.stretches.clear();
    }

    /// Whether all of it is mapped.
    pub(crate) fn holds(&self, iova: u64, len: u64) -> bool {
        let mut at = iova;
        let Some(end) = iova.checked_add(len) else { return false };
        while at < end {
            let Some(stretch) = self.find(at) else { return false };
            at = stretch.end();
        }
        true
    }

    fn find(&self, iova: u64) -> Option<&Stretch> {
        self.stretches.iter().find(|stretch| stretch.iova <= iova && iova < stretch.end())
    }

    /// What is mapped from an address on, at most so much.
    fn part(&self, iova: u64, most: usize) -> Result<VolatileSlice<'_>, Unmapped> {
        let stretch = self.find(iova).ok_or(Unmapped(iova))?;
        let len = most.min(size(stretch.end() - iova));
        stretch.memory.get_slice(size(iova - stretch.iova), len).map_err(|_| Unmapped(iova))
    }

    /// Copies from the host.
    pub(crate) fn read(&self, iova: u64, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let (mut at, mut rest) = (iova, bytes);
        while !rest.is_empty() {
            let part = self.part(at, rest.len())?;
            let (head, tail) = rest.split_at_mut(part.len());
            part.copy_to(head);
            (at, rest) = (at + number(head.len()), tail);
        }
        Ok(())
    }

    /// Copies to the host.
    pub(crate) fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Unmapped> {
        let (mut at, mut rest) = (iova, bytes);
        while !rest.is_empty() {
            let part = self.part(at, rest.len())?;
            let (head, tail) = rest.split_at(part.len());
            part.copy_from(head);
            (at, rest) = (at + number(head.len()), tail);
        }
        Ok(())
    }

    /// One aligned 64-bit load that no earlier read passes.
    pub(crate) fn load_qword(&self, iova: u64) -> Result<u64, Unmapped> {
        let value = self.part(iova, 8)?.load(0, Ordering::Acquire);
        value.map(u64::from_le).map_err(|_| Unmapped(iova))
    }

    /// One aligned 64-bit store, after everything written before it.
    pub(crate) fn store_qword(&self, iova: u64, value: u64) -> Result<(), Unmapped> {
        let part = self.part(iova, 8)?;
        part.store(value.to_le(), 0, Ordering::Release).map_err(|_| Unmapped(iova))
    }

    /// One aligned 32-bit store, after everything written before it.
    pub(crate) fn store_dword(&self, iova: u64, value: u32) -> Result<(), Unmapped> {
        let part = self.part(iova, 4)?;
        part.store(value.to_le(), 0, Ordering::Release).map_err(|_| Unmapped(iova))
    }
}
