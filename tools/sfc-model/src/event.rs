//! Events (section 5), as the card writes them.

/// Sub-codes of driver events (5.5).
pub(crate) const WAKE_UP: u64 = 1;
pub(crate) const START_UP: u64 = 2;

/// Codes of controller events (5.6).
pub(crate) mod code {
    pub(crate) const CMDDONE: u64 = 3;
    pub(crate) const LINKCHANGE: u64 = 4;
    pub(crate) const MAC_STATS_DMA: u64 = 8;
    pub(crate) const TX_ERR: u64 = 0xb;
    pub(crate) const TX_FLUSH: u64 = 0xc;
    pub(crate) const RX_FLUSH: u64 = 0x10;
    pub(crate) const MC_REBOOT: u64 = 0x15;
    pub(crate) const LINKCHANGE_V2: u64 = 0x20;
}

/// A driver event (5.5).
pub(crate) fn driver(sub_code: u64, evq: u64) -> u64 {
    5 << 60 | sub_code << 56 | evq
}

/// A controller event (5.6).
pub(crate) fn controller(code: u64, data: u32) -> u64 {
    0xc << 60 | code << 44 | u64::from(data)
}

/// A transmit completion (5.4).
pub(crate) fn transmitted(label: u64, index: u64) -> u64 {
    2 << 60 | label << 16 | index
}
