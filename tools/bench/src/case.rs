//! The kinds of traffic.

use traffic::StreamConfig;

/// One kind of traffic.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    flows: u32,
    run: u32,
    payload: u16,
    udp: bool,
}

impl Case {
    /// The streams to make.
    pub(crate) fn config(&self) -> StreamConfig {
        StreamConfig {
            flows: self.flows,
            run: self.run,
            payload: self.payload,
            udp: self.udp,
            timestamps: !self.udp,
            ..StreamConfig::default()
        }
    }
}

pub(crate) const CASES: [Case; 3] = [
    Case { name: "64 TCP flows, runs of 4, 1448 B", flows: 64, run: 4, payload: 1448, udp: false },
    Case { name: "4 TCP flows, runs of 8, 1448 B", flows: 4, run: 8, payload: 1448, udp: false },
    Case { name: "64 UDP flows, 64-byte frames", flows: 64, run: 1, payload: 18, udp: true },
];
