//! What a guest counts. All numbers only grow.

use std::ops::AddAssign;

/// Of receive queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStats {
    /// Packets taken.
    pub packets: u64,
    /// Segments that they stand for, by `gso_size`.
    pub segments: u64,
    /// Bytes of frames, without virtio-net headers.
    pub bytes: u64,
    /// Buffers that they took.
    pub buffers: u64,
    /// Bursts found: changes of the used index, as far as seen.
    pub publishes: u64,
    /// Notifications received.
    pub interrupts: u64,
    /// Notifications sent.
    pub kicks: u64,
    /// Rules broken by the device.
    pub violations: u64,
}

/// Of transmit queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxStats {
    /// Packets pushed.
    pub packets: u64,
    /// Segments that they stand for.
    pub segments: u64,
    /// Bytes of frames, without virtio-net headers.
    pub bytes: u64,
    /// Packets refused as the device had all slots.
    pub full: u64,
    /// Packets refused as their header used what was not acked.
    pub refused: u64,
    /// Notifications received.
    pub interrupts: u64,
    /// Notifications sent.
    pub kicks: u64,
    /// Rules broken by the device.
    pub violations: u64,
}

/// Of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// All receive queues together.
    pub rx: RxStats,
    /// All transmit queues together.
    pub tx: TxStats,
}

impl AddAssign for RxStats {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.buffers += other.buffers;
        self.publishes += other.publishes;
        self.interrupts += other.interrupts;
        self.kicks += other.kicks;
        self.violations += other.violations;
    }
}

impl AddAssign for TxStats {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.full += other.full;
        self.refused += other.refused;
        self.interrupts += other.interrupts;
        self.kicks += other.kicks;
        self.violations += other.violations;
    }
}
