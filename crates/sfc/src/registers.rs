//! The registers (`spec/ef10.md` section 2). Offsets are those in a virtual interface's window; the
//! first three exist once and are used in window 0.

use pci::{ReadOnly, Reg, WriteOnly};

/// BIU_MC_SFT_STATUS, row 0: 0xb007 above the count of warm boots once the controller runs.
pub const STATUS: Reg<u32, ReadOnly> = Reg::new(0x010);
/// MC_DB_LWRD: the *upper* half of the request's address (the controller swaps the two).
pub const MC_DOORBELL_FIRST: Reg<u32, WriteOnly> = Reg::new(0x200);
/// MC_DB_HWRD: the *lower* half of the request's address; this write rings.
pub const MC_DOORBELL_SECOND: Reg<u32, WriteOnly> = Reg::new(0x204);
/// EVQ_RPTR: how far the queue is read; arms its interrupt.
pub const EVQ_RPTR: Reg<u32, WriteOnly> = Reg::new(0x400);
/// EVQ_TMR: the queue's timer.
pub const EVQ_TMR: Reg<u32, WriteOnly> = Reg::new(0x420);
/// RX_DESC_UPD: the write pointer, a multiple of 8.
pub const RX_DOORBELL: Reg<u32, WriteOnly> = Reg::new(0x830);
/// TX_DESC_UPD, first half: a descriptor that travels with the doorbell.
pub const TX_PUSH: Reg<u64, WriteOnly> = Reg::new(0xa10);
/// TX_DESC_UPD, second half after a push: the write pointer, rings.
pub const TX_PUSH_DOORBELL: Reg<u64, WriteOnly> = Reg::new(0xa18);
/// TX_DESC_UPD, the write pointer alone: rings.
pub const TX_DOORBELL: Reg<u32, WriteOnly> = Reg::new(0xa18);
/// EVQ_INDIRECT: the event queue's registers under bug 35388, at the same place.
pub const EVQ_INDIRECT: Reg<u32, WriteOnly> = Reg::new(0xa18);

/// How much of a window the driver uses.
pub const WINDOW_USED: u64 = 0x1000;

/// What a read gives when the card is gone.
pub const GONE: u32 = u32::MAX;

/// The two writes that set the read pointer through [`EVQ_INDIRECT`]; the second triggers (2.7).
pub fn indirect_read_pointer(pointer: u32) -> [u32; 2] {
    [0x8 << 8 | pointer >> 8 & 0xff, 0x9 << 8 | pointer & 0xff]
}

/// The write that sets the timer through [`EVQ_INDIRECT`].
pub fn indirect_timer(mode: u32, ticks: u32) -> u32 {
    0b11 << 10 | (mode & 3) << 8 | ticks & 0xff
}

/// The value of [`EVQ_TMR`]: the same ticks for load and reload.
pub fn timer(mode: u32, ticks: u32) -> u32 {
    let ticks = ticks & 0x3fff;
    ticks | (mode & 3) << 14 | ticks << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_values() {
        assert_eq!(indirect_read_pointer(0x1234), [0x812, 0x934]);
        assert_eq!(indirect_timer(3, 31), 0xf1f);
        assert_eq!(indirect_timer(0, 0), 0xc00);
    }

    #[test]
    fn timer_values() {
        assert_eq!(timer(3, 31), 0x001f_c01f);
        assert_eq!(timer(0, 0), 0);
        assert_eq!(timer(3, 0x3fff), 0x3fff_ffff);
    }
}
