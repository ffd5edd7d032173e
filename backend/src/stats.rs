//! What a worker counts, gathered for whoever wants to see it.

use std::fmt;
use std::time::Duration;

use gro::Counters as GroCounters;
use port::{RxCounters, TxCounters};
use virtio_net::{RxDrop, RxFillCounters, TxDrainCounters, TxDrop};

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
        let RxCounters { no_buffer, too_long, malformed, missed, .. } = self.port_rx;
        let rx_drops = RxDrop::ALL.iter().map(|why| (why.name(), self.fill.drops(*why)));
        let tx_drops = TxDrop::ALL.iter().map(|why| (why.name(), self.drain.drops(*why)));
        write!(
            f,
            "received {} frames ({} bytes), delivered {} packets ({} super-packets) to the guest, \
             dropped {}; sent {} frames for the guest, dropped {}",
            self.port_rx.frames,
            self.port_rx.bytes,
            self.fill.frames,
            self.fill.supers,
            Reasons(
                rx_drops
                    .chain([
                        ("no_ring", self.no_ring),
                        ("port_no_buffer", no_buffer),
                        ("port_too_long", too_long),
                        ("port_malformed", malformed),
                        ("port_missed", missed),
                    ])
                    .collect()
            ),
            self.port_tx.frames,
            Reasons(tx_drops.chain([("port_refused", self.port_tx.refused)]).collect()),
        )
    }
}

/// A sum, and the reasons that it is made of.
struct Reasons(Vec<(&'static str, u64)>);

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum: u64 = self.0.iter().map(|(_, count)| count).sum();
        write!(f, "{sum}")?;
        let mut open = " (";
        for (name, count) in self.0.iter().filter(|(_, count)| *count > 0) {
            write!(f, "{open}{name} {count}")?;
            open = ", ";
        }
        if sum > 0 { write!(f, ")") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_by_reason() {
        let mut stats = Stats { no_ring: 3, ..Stats::default() };
        stats.port_rx.missed = 2;
        let text = stats.to_string();
        assert!(text.contains("dropped 5 (no_ring 3, port_missed 2); sent 0"), "{text}");
        assert!(text.ends_with("dropped 0"), "{text}");
    }
}
