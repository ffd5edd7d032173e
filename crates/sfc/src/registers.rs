//! The registers (`spec/ef10.md` section 2). Offsets are those in a virtual interface's window; the
//! first three exist once and are used in window 0.

use pci::{ReadOnly, Reg, WriteOnly};

/// BIU_MC_SFT_STATUS, row 0: 0xb007 above the count of warm boots once the controller runs.
pub(crate) const STATUS: Reg<u32, ReadOnly> = Reg::new(0x010);
/// MC_DB_LWRD: the *upper* half of the request's address (the controller swaps the two).
pub(crate) const MC_DOORBELL_FIRST: Reg<u32, WriteOnly> = Reg::new(0x200);
/// MC_DB_HWRD: the *lower* half of the request's address; this write rings.
pub(crate) const MC_DOORBELL_SECOND: Reg<u32, WriteOnly> = Reg::new(0x204);
/// What a read gives when the card is gone.
pub(crate) const GONE: u32 = u32::MAX;
