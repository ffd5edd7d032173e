//! Guest memory for hostile tests: regions that lie between guard areas in our own address space, so
//! that a write outside them is seen.
//!
//! ```text
//!   │ guard │ rings, tables │ guard │ buffers │ guard │ more buffers │ guard │
//! ```
//!
//! The two regions with buffers are adjacent for the guest, and not in our address space.

use std::sync::Arc;

use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Where the regions are in the guest's address space: start and length.
pub(crate) const REGIONS: [(u64, usize); 3] =
    [(0x1_0000, PART), (0x10_0000, PART), (0x11_0000, PART)];

pub(crate) struct Guarded {
    whole: MmapRegion,
    pub(crate) memory: Arc<GuestMemoryMmap<()>>,
}

impl Guarded {
    pub(crate) fn new() -> Self {
        let whole = MmapRegion::<()>::new(PART * (2 * REGIONS.len() + 1)).unwrap();
        let regions = (0..REGIONS.len()).map(|at| {
            // SAFETY: the offset is inside the mapping.
            let start = unsafe { whole.as_ptr().add(PART * (2 * at + 1)) };
            // SAFETY: PART bytes from there are mapped for as long as `whole` is, which is kept beside
            // the memory that is made of them.
            let region = unsafe { MmapRegion::build_raw(start, PART, whole.prot(), whole.flags()) };
            GuestRegionMmap::new(region.unwrap(), GuestAddress(REGIONS[at].0)).unwrap()
        });
        let memory = GuestMemoryMmap::from_regions(regions.collect()).unwrap();
        let guarded = Self { memory: Arc::new(memory), whole };
        for at in guarded.guards() {
            // SAFETY: a guard area is PART bytes inside the mapping.
            unsafe { at.write_bytes(PATTERN, PART) };
        }
        guarded
    }

    /// Whether nothing outside the guest's regions was written.
    pub(crate) fn intact(&self) -> bool {
        self.guards().all(|at| {
            // SAFETY: a guard area is PART bytes inside the mapping, and nobody may write there.
            let guard = unsafe { std::slice::from_raw_parts(at, PART) };
            guard == [PATTERN; PART]
        })
    }

    fn guards(&self) -> impl Iterator<Item = *mut u8> {
        (0..=REGIONS.len()).map(|at| {
            // SAFETY: the offset is inside the mapping.
            unsafe { self.whole.as_ptr().add(2 * PART * at) }
        })
    }
}

const PART: usize = 0x1_0000;
const PATTERN: u8 = 0xa5;
