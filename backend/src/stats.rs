//! What a worker counts, gathered for whoever wants to see it.

use std::fmt;
use std::time::Duration;

use gro::Counters as GroCounters;
use port::{RxCounters, TxCounters};
use virtio_net::{RxFillCounters, TxDrainCounters};

/// A snapshot of a worker's counters.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// The worker's age when it counted.
    pub age: Duration,
    /// Polls of the loop.
    pub polls: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// Frames from the port that came while the guest had no receive ring.
    pub no_ring: u64,
    /// The port's receive queue.
    pub port_rx: RxCounters,
    /// The port's transmit queue.
    pub port_tx: TxCounters,
    /// The GRO engine.
    pub gro: GroCounters,
    /// Deliveries of the normal batch.
    pub batches: u64,
    /// The guest's receive ring.
    pub fill: RxFillCounters,
    /// The guest's transmit rings.
    pub drain: TxDrainCounters,
    /// Packet buffers: free, all.
    pub buffers: (usize, usize),
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.no_ring + self.fill.dropped();
        write!(
            f,
            "received {} frames ({} bytes), delivered {} packets ({} super-packets) to the guest, \
             dropped {dropped}; sent {} frames for the guest, dropped {}",
            self.port_rx.frames,
            self.port_rx.bytes,
            self.fill.frames,
            self.fill.supers,
            self.port_tx.frames,
            self.port_tx.refused + self.drain.dropped(),
        )
    }
}
