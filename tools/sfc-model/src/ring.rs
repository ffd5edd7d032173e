//! Rings of 8-byte entries in the host's memory, one address per page (4.5).

use crate::bits::{number, size};
use crate::host::Host;

/// Bytes per page of a ring.
pub(crate) const PAGE: u64 = 4096;

/// Where a ring is.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pages: Vec<u64>,
    entries: u32,
}

impl Ring {
    pub(crate) fn new(pages: Vec<u64>, entries: u32) -> Self {
        Self { pages, entries }
    }

    /// Pages that a ring of so many entries has.
    pub(crate) fn pages(entries: u32) -> usize {
        size(u64::from(entries) * 8 / PAGE)
    }

    pub(crate) fn entries(&self) -> u64 {
        u64::from(self.entries)
    }

    /// Where the entry of a running count is.
    pub(crate) fn address(&self, count: u64) -> u64 {
        let offset = (count & (self.entries() - 1)) * 8;
        self.pages[size(offset / PAGE)] + offset % PAGE
    }

    /// Whether all of it is mapped.
    pub(crate) fn is_mapped(&self, host: &Host) -> bool {
        self.pages.iter().all(|&page| host.dma.holds(page, PAGE))
    }

    /// Whether a stretch of memory holds a part of it.
    pub(crate) fn touches(&self, iova: u64, len: u64) -> bool {
        self.pages.iter().any(|&page| page < iova.saturating_add(len) && iova < page + PAGE)
    }

    /// Reads entries from a running count on, until `out` is full or the page ends; tells how many.
    pub(crate) fn load(
        &self,
        host: &mut Host,
        count: u64,
        out: &mut [u64],
        what: &str,
    ) -> Option<usize> {
        let at = self.address(count);
        let room = size((PAGE - at % PAGE) / 8);
        let len = out.len().min(room);
        let mut bytes = [0; 512];
        let len = len.min(bytes.len() / 8);
        if !host.read(at, &mut bytes[..len * 8], what) {
            return None;
        }
        for (to, from) in out.iter_mut().zip(bytes.chunks_exact(8)).take(len) {
            *to = u64::from_le_bytes(from.try_into().expect("chunks of 8 bytes"));
        }
        debug_assert!(number(len) > 0, "a ring has no empty page");
        Some(len)
    }
}
