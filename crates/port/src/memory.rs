//! A port in memory: frames come from one closure and go to another.
//!
//! For demos, benches and tests. The source fills bursts as fast as it is asked; the sink gets every
//! frame that is sent. Who owns what: the port owns both closures until [`Port::open`] moves the
//! source into the receive queue and the sink into the transmit queue.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use packet::{Burst, Frame, Pool};

use crate::{
    Armed, Capabilities, End, Error, Link, Port, QueuePair, RxCounters, RxQueue, TxCounters,
    TxQueue,
};

/// The answer of a source that was asked to fill a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// That many frames were added.
    Frames(usize),
    /// None now; ask again.
    Idle,
    /// None now, and none ever again.
    Drained,
}

type Source = Box<dyn FnMut(&mut Burst, &mut Pool) -> Fill + Send>;
type Sink = Box<dyn FnMut(Frame, &mut Pool) + Send>;

/// A port whose frames are made and taken by closures.
pub struct Memory {
    name: String,
    capabilities: Capabilities,
    mac: Option<[u8; 6]>,
    mtu: Option<u16>,
    queues: Option<(Source, Sink)>,
    wake: Option<OwnedFd>,
}

impl Memory {
    /// A port of one queue pair without any capability.
    ///
    /// `source` adds frames to the burst's room and says how many; `sink` takes each frame that is
    /// sent and has to give its buffers back to the pool.
    pub fn new(
        name: impl Into<String>,
        source: impl FnMut(&mut Burst, &mut Pool) -> Fill + Send + 'static,
        sink: impl FnMut(Frame, &mut Pool) + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            capabilities: Capabilities { queue_pairs: 1, ..Capabilities::default() },
            mac: None,
            mtu: None,
            queues: Some((Box::new(source), Box::new(sink))),
            wake: None,
        }
    }

    /// What the port says that it does. The number of queue pairs stays 1.
    #[must_use]
    pub fn with_capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities: Capabilities { queue_pairs: 1, ..capabilities }, ..self }
    }

    /// The port's own address.
    #[must_use]
    pub fn with_mac(self, mac: [u8; 6]) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// The largest frame behind the Ethernet header, in bytes.
    #[must_use]
    pub fn with_mtu(self, mtu: u16) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Something to sleep on: an event descriptor that the source's other end writes to when there
    /// are frames. Readable means work, and the source reads it empty before it looks for frames.
    /// Without it the queue can't be slept on.
    #[must_use]
    pub fn with_wake(self, wake: OwnedFd) -> Self {
        Self { wake: Some(wake), ..self }
    }
}

impl Port for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    fn link(&self) -> Link {
        Link { up: true, speed_mbps: None }
    }

    fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    fn open(&mut self, pairs: usize) -> Result<Vec<QueuePair>, Error> {
        crate::hand_out(&self.name, pairs, &mut self.queues, |(source, sink)| {
            let counters = RxCounters::default();
            let rx = MemoryRx { source, counters, end: None, wake: self.wake.take() };
            let tx = MemoryTx { sink, counters: TxCounters::default() };
            QueuePair { rx: Box::new(rx), tx: Box::new(tx) }
        })
    }
}

struct MemoryRx {
    source: Source,
    counters: RxCounters,
    end: Option<End>,
    wake: Option<OwnedFd>,
}

impl RxQueue for MemoryRx {
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        if self.end.is_some() || burst.room() == 0 {
            return 0;
        }
        let before = burst.len();
        if (self.source)(burst, pool) == Fill::Drained {
            self.end = Some(End::Drained);
        }
        // What is in the burst counts, not what the source says.
        let added = &burst.frames()[before..];
        self.counters.count(added);
        added.len()
    }

    fn arm(&mut self) -> Armed {
        match &self.wake {
            None => Armed::Unsupported,
            Some(wake) if crate::sys::readable(wake.as_fd()) => Armed::Pending,
            Some(_) => Armed::Sleep,
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

struct MemoryTx {
    sink: Sink,
    counters: TxCounters,
}

impl TxQueue for MemoryTx {
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let count = burst.len();
        self.counters.count(burst.frames());
        for frame in burst.drain() {
            (self.sink)(frame, pool);
        }
        count
    }

    fn reap(&mut self, _pool: &mut Pool) {}

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRx").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn three() -> impl FnMut(&mut Burst, &mut Pool) -> Fill + Send {
        let mut left = 3;
        move |burst, pool| {
            let mut added = 0;
            while left > 0 && burst.room() > 0 {
                burst.push(Frame::copied_from(&[left; 60], pool).unwrap());
                (left, added) = (left - 1, added + 1);
            }
            if left == 0 { Fill::Drained } else { Fill::Frames(added) }
        }
    }

    #[test]
    fn frames_come_from_the_source_and_go_to_the_sink() {
        let (sender, sent) = mpsc::channel();
        let mut port = Memory::new("memory", three(), move |frame: Frame, pool: &mut Pool| {
            sender.send(frame.head()[0]).unwrap();
            pool.recycle(frame);
        });
        let (mut pool, mut burst) = (Pool::new(4, 64), Burst::new(2));
        let mut pair = port.open(1).unwrap().remove(0);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 2);
        assert_eq!(pair.rx.end(), None);
        assert_eq!(pair.tx.tx_burst(&mut burst, &mut pool), 2);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 1);
        assert_eq!(pair.rx.end(), Some(&End::Drained));
        assert_eq!(pair.tx.tx_burst(&mut burst, &mut pool), 1);
        assert_eq!(pair.rx.rx_burst(&mut burst, &mut pool), 0);
        assert_eq!(sent.try_iter().collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!((pair.rx.counters().frames, pair.rx.counters().bytes), (3, 180));
        assert_eq!((pair.tx.counters().frames, pair.tx.counters().bytes), (3, 180));
        assert_eq!(pool.available(), 4);
        assert_eq!(pair.rx.arm(), Armed::Unsupported);
    }

    #[test]
    fn queues_are_handed_out_once() {
        let mut port = Memory::new("m", |_: &mut Burst, _: &mut Pool| Fill::Idle, |_, _| {});
        assert!(matches!(port.open(2), Err(Error::TooManyQueues { have: 1, asked: 2, .. })));
        assert_eq!(port.open(1).unwrap().len(), 1);
        assert!(matches!(port.open(1), Err(Error::TooManyQueues { have: 0, asked: 1, .. })));
    }

    #[test]
    fn a_queue_with_a_wake_can_be_slept_on() {
        use std::io::{Read, Write};
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let wake = OwnedFd::from(reader.try_clone().unwrap());
        let mut port = Memory::new("m", |_: &mut Burst, _: &mut Pool| Fill::Idle, |_, _| {})
            .with_wake(wake)
            .with_mac([2, 0, 0, 0, 0, 1])
            .with_mtu(9000);
        assert_eq!((port.mac(), port.mtu()), (Some([2, 0, 0, 0, 0, 1]), Some(9000)));
        let mut pair = port.open(1).unwrap().remove(0);
        assert!(pair.rx.wait_fd().is_some());
        assert_eq!(pair.rx.arm(), Armed::Sleep);
        writer.write_all(&[1]).unwrap();
        assert_eq!(pair.rx.arm(), Armed::Pending);
        reader.read_exact(&mut [0]).unwrap();
        assert_eq!(pair.rx.arm(), Armed::Sleep);
    }
}
