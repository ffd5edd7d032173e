//! The MAC's counters, which the card writes into memory (`spec/ef10.md` 4.10).
//!
//! The card writes a generation number first, then the counters, then the same number last. We read
//! in the opposite order: equal numbers, and everything between them belongs together.

use std::time::Duration;

use pci::{DmaRegion, PciFunction, acquire_from_device};

use crate::error::Error;
use crate::mcdi::Mcdi;
use crate::mcdi::command::{MacStatistics, StatisticsMode};

/// The counters of the network port. Frames, unless they say bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received.
    pub rx_frames: u64,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Received with a bad frame check sequence.
    pub rx_bad_fcs: u64,
    /// Lost in the MAC.
    pub rx_overflow: u64,
    /// Longer than the port's limit and damaged.
    pub rx_jabber: u64,
    /// Shorter than a frame can be.
    pub rx_undersize: u64,
    /// Dropped because no descriptor was posted.
    pub rx_no_descriptor: u64,
    /// Dropped because the queue they were for did not exist.
    pub rx_queue_disabled: u64,
    /// Sent.
    pub tx_frames: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
}

impl Statistics {
    /// Picks the counters out of the array.
    fn of(counters: &[u64]) -> Self {
        let at = |index: usize| counters.get(index).copied().unwrap_or(0);
        Self {
            rx_frames: at(28),
            rx_bytes: at(35),
            rx_bad_fcs: at(46),
            rx_overflow: at(47),
            rx_jabber: at(53),
            rx_undersize: at(45),
            rx_no_descriptor: at(54),
            rx_queue_disabled: at(67),
            tx_frames: at(1),
            tx_bytes: at(7),
        }
    }

    /// The counters with their names, in the order of the structure.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("rx_frames", self.rx_frames),
            ("rx_bytes", self.rx_bytes),
            ("rx_bad_fcs", self.rx_bad_fcs),
            ("rx_overflow", self.rx_overflow),
            ("rx_jabber", self.rx_jabber),
            ("rx_undersize", self.rx_undersize),
            ("rx_no_descriptor", self.rx_no_descriptor),
            ("rx_queue_disabled", self.rx_queue_disabled),
            ("tx_frames", self.tx_frames),
            ("tx_bytes", self.tx_bytes),
        ]
    }
}

/// The memory that the card writes counters into.
#[derive(Debug)]
pub(super) struct Buffer {
    memory: DmaRegion,
    count: u16,
    /// The card writes again and again; otherwise only when asked.
    periodic: bool,
}

impl Buffer {
    /// Sets the memory aside; the card has not been told of it.
    pub(super) fn new(
        function: &mut dyn PciFunction,
        count: u16,
        periodic: bool,
    ) -> Result<Self, Error> {
        let memory = function.dma(usize::from(count) * 8, 4096)?;
        let buffer = Self { memory, count, periodic };
        buffer.invalidate();
        Ok(buffer)
    }

    /// Starts the card's writing, where it does that by itself.
    pub(super) fn start(&self, mcdi: &mut Mcdi) -> Result<(), Error> {
        if !self.periodic {
            return Ok(());
        }
        self.ask(mcdi, StatisticsMode::Periodic { period_ms: PERIOD_MS })
    }

    /// Reads a consistent set; `None` when the card has not written one in time.
    pub(super) fn read(&mut self, mcdi: &mut Mcdi) -> Result<Option<Statistics>, Error> {
        if !self.periodic {
            self.invalidate();
            self.ask(mcdi, StatisticsMode::Once)?;
        }
        for _ in 0..ATTEMPTS {
            if let Some(statistics) = self.snapshot() {
                return Ok(Some(statistics));
            }
            mcdi.clock().sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    /// Ends the card's writing.
    pub(super) fn stop(&self, mcdi: &mut Mcdi) -> Result<(), Error> {
        if self.periodic { self.ask(mcdi, StatisticsMode::Off) } else { Ok(()) }
    }

    fn ask(&self, mcdi: &mut Mcdi, mode: StatisticsMode) -> Result<(), Error> {
        let address = self.memory.iova().get();
        mcdi.call(&MacStatistics { address, count: self.count, mode })
    }

    fn invalidate(&self) {
        self.memory.write(self.last(), INVALID);
    }

    fn last(&self) -> usize {
        usize::from(self.count - 1) * 8
    }

    fn snapshot(&self) -> Option<Statistics> {
        let end: u64 = self.memory.read(self.last());
        if end == INVALID {
            return None;
        }
        acquire_from_device();
        let counters: Vec<u64> =
            (0..usize::from(self.count)).map(|index| self.memory.read(index * 8)).collect();
        acquire_from_device();
        let start: u64 = self.memory.read(0);
        (start == end).then(|| Statistics::of(&counters))
    }
}

const INVALID: u64 = u64::MAX;
const PERIOD_MS: u16 = 1000;
const ATTEMPTS: usize = 20;

#[cfg(test)]
mod tests {
    use pci::fake::Host;

    use super::*;
    use crate::card::{Card, TestClock};

    /// A buffer, the card's side of it, and what it takes to ask.
    fn buffer(card: &Card) -> (Buffer, Host, Mcdi) {
        card.reply(0x2e, &[]);
        let mut function = card.function();
        let bar = function.bar(2).unwrap();
        let mut mcdi = Mcdi::open(&mut function, bar, Box::new(TestClock::default())).unwrap();
        let buffer = Buffer::new(&mut function, 97, true).unwrap();
        buffer.start(&mut mcdi).unwrap();
        let host = function.host();
        (buffer, host, mcdi)
    }

    #[test]
    fn only_a_whole_set_counts() {
        let (mut buffer, host, mut mcdi) = buffer(&Card::new());
        let put = |index: u64, value: u64| {
            host.write(buffer.memory.iova().add(index * 8), &value.to_le_bytes());
        };
        assert_eq!(buffer.snapshot(), None, "nothing written yet");
        put(0, 7);
        put(28, 1000);
        put(54, 3);
        assert_eq!(buffer.snapshot(), None, "the end is missing");
        put(96, 7);
        let statistics = buffer.snapshot().unwrap();
        assert_eq!((statistics.rx_frames, statistics.rx_no_descriptor), (1000, 3));
        put(0, 8);
        assert_eq!(buffer.snapshot(), None, "the next set has begun");
        assert_eq!(buffer.read(&mut mcdi).unwrap(), None);
    }
}
