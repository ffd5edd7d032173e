//! Creating and destroying queues (4.5).

use super::{Command, PORT_ASSIGNED, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// Where a ring lies: one DMA address per 4 KiB page. The rings of this driver are contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    /// The first page's address, 4 KiB-aligned.
    pub address: u64,
    /// The ring's size in bytes.
    pub bytes: usize,
}

impl Pages {
    /// The size of a page.
    pub const BYTES: usize = 4096;
    /// The most pages that a ring can have.
    pub const MAX: usize = 64;

    fn count(self) -> usize {
        self.bytes.div_ceil(Self::BYTES)
    }

    fn put(self, request: &mut Request, offset: usize) {
        assert!(self.count() <= Self::MAX, "a ring has at most 64 pages");
        for (page, at) in (offset..).step_by(8).take(self.count()).enumerate() {
            request.u64(at, self.address + (page * Self::BYTES) as u64);
        }
    }
}

/// `INIT_EVQ`: an event queue that raises the interrupt of the same number, its timer off.
#[derive(Debug, Clone, Copy)]
pub struct InitEvq {
    /// The queue.
    pub instance: u32,
    /// Entries: a power of two, 512 to 32,768.
    pub entries: u32,
    /// The interrupt vector, function relative; `None`: it wakes event queue 0 instead.
    pub vector: Option<u32>,
    /// The firmware knows queue types (capability `INIT_EVQ_V2`).
    pub typed: bool,
    /// Completions are merged where the firmware can (capability `RX_BATCHING`).
    pub merging: bool,
    /// The ring, filled with all-ones.
    pub ring: Pages,
}

impl Command for InitEvq {
    const CODE: u16 = 0x80;
    const NAME: &'static str = "INIT_EVQ";
    type Reply = ();

    fn request(&self) -> Request {
        const INTERRUPTING: u32 = 1;
        const CUT_THROUGH: u32 = 1 << 3;
        const MERGE: u32 = 1 << 4 | 1 << 5;
        const TYPE_THROUGHPUT: u32 = 2 << 7;
        // The second layout names a type instead of the merge bits. Without merging the first form
        // also asks for cut-through, as the reference's first driver does.
        let kind = match (self.typed, self.merging) {
            (true, _) => TYPE_THROUGHPUT,
            (false, true) => MERGE,
            (false, false) => MERGE | CUT_THROUGH,
        };
        let interrupting = if self.vector.is_some() { INTERRUPTING } else { 0 };
        let mut request = Request::zeroed(36 + 8 * self.ring.count());
        request
            .u32(0, self.entries)
            .u32(4, self.instance)
            .u32(16, interrupting | kind)
            .u32(24, self.vector.unwrap_or(0));
        self.ring.put(&mut request, 36);
        request
    }

    fn reply(&self, reply: Reply<'_>) -> Result<(), Malformed> {
        // The vector, then (second layout) the flags in effect: neither is acted on.
        if reply.len() < if self.typed { 8 } else { 4 } { Err(Malformed) } else { Ok(()) }
    }
}

/// `INIT_RXQ`: one packet per descriptor, with the 14-byte prefix.
#[derive(Debug, Clone, Copy)]
pub struct InitRxq {
    /// The queue.
    pub instance: u32,
    /// Descriptors: a power of two, 512 to 4096.
    pub entries: u32,
    /// The event queue for its completions.
    pub event_queue: u32,
    /// The label in its events.
    pub label: u8,
    /// A packet may take several descriptors.
    pub scatter: bool,
    /// The ring.
    pub ring: Pages,
}

silent!(InitRxq, 0x81, "INIT_RXQ", |self| {
    const PREFIX: u32 = 1 << 8;
    const DISABLE_SCATTER: u32 = 1 << 9;
    let mut request = Request::zeroed(564);
    request
        .u32(0, self.entries)
        .u32(4, self.event_queue)
        .u32(8, self.label.into())
        .u32(12, self.instance)
        .u32(16, PREFIX | if self.scatter { 0 } else { DISABLE_SCATTER })
        .u32(24, PORT_ASSIGNED);
    self.ring.put(&mut request, 28);
    request
});

/// `INIT_TXQ`.
#[derive(Debug, Clone, Copy)]
pub struct InitTxq {
    /// The queue.
    pub instance: u32,
    /// Descriptors: a power of two, 512 to 2048.
    pub entries: u32,
    /// The event queue for its completions.
    pub event_queue: u32,
    /// The label in its events.
    pub label: u8,
    /// Takes one of the adapter's TSO contexts.
    pub tso: bool,
    /// The ring.
    pub ring: Pages,
}

silent!(InitTxq, 0x82, "INIT_TXQ", |self| {
    // Nothing is inserted until an option descriptor says so.
    const IP_CHECKSUM_OFF: u32 = 1 << 1;
    const TRANSPORT_CHECKSUM_OFF: u32 = 1 << 2;
    const TSO_V2: u32 = 1 << 12;
    let tso = if self.tso { TSO_V2 } else { 0 };
    let mut request = Request::zeroed(28 + 8 * self.ring.count());
    request
        .u32(0, self.entries)
        .u32(4, self.event_queue)
        .u32(8, self.label.into())
        .u32(12, self.instance)
        .u32(16, IP_CHECKSUM_OFF | TRANSPORT_CHECKSUM_OFF | tso)
        .u32(24, PORT_ASSIGNED);
    self.ring.put(&mut request, 28);
    request
});

/// `DRIVER_EVENT`: has an event of the host's own written into an event queue.
#[derive(Debug, Clone, Copy)]
pub struct DriverEvent {
    /// The event queue.
    pub instance: u32,
    /// What comes back: 60 bits.
    pub data: u64,
}

silent!(DriverEvent, 0x86, "DRIVER_EVENT", |self| {
    const SOFTWARE: u64 = 7 << 60;
    let mut request = Request::zeroed(12);
    request.u32(0, self.instance).u64(4, SOFTWARE | self.data & ((1 << 60) - 1));
    request
});

/// `FINI_EVQ`: destroys an event queue, at once.
#[derive(Debug, Clone, Copy)]
pub struct FiniEvq(
    /// The queue.
    pub u32,
);

silent!(FiniEvq, 0x83, "FINI_EVQ", |self| words([self.0]));

/// `FINI_RXQ`: starts to destroy a receive queue; it is gone when its flush event has come.
#[derive(Debug, Clone, Copy)]
pub struct FiniRxq(
    /// The queue.
    pub u32,
);

silent!(FiniRxq, 0x84, "FINI_RXQ", |self| words([self.0]));

/// `FINI_TXQ`: starts to destroy a transmit queue; it is gone when its flush event has come.
#[derive(Debug, Clone, Copy)]
pub struct FiniTxq(
    /// The queue.
    pub u32,
);

silent!(FiniTxq, 0x85, "FINI_TXQ", |self| words([self.0]));

#[cfg(test)]
mod tests {
    use super::*;

    fn word(request: &Request, offset: usize) -> u32 {
        Reply(request.bytes()).u32(offset).unwrap()
    }

    fn qword(request: &Request, offset: usize) -> u64 {
        Reply(request.bytes()).u64(offset).unwrap()
    }

    #[test]
    fn event_queues() {
        let ring = Pages { address: 0x1_0000_0000, bytes: 2048 * 8 };
        let mut evq = InitEvq {
            instance: 2,
            entries: 2048,
            vector: Some(2),
            typed: true,
            merging: true,
            ring,
        };
        let request = evq.request();
        assert_eq!(request.bytes().len(), 36 + 4 * 8);
        assert_eq!([0, 4, 8, 16, 20, 24].map(|at| word(&request, at)), [2048, 2, 0, 0x101, 0, 2]);
        assert_eq!(qword(&request, 60), 0x1_0000_3000);
        evq.typed = false;
        assert_eq!(word(&evq.request(), 16), 0x31);
        evq.merging = false;
        assert_eq!(word(&evq.request(), 16), 0x39);
        assert_eq!(evq.reply(Reply(&[0; 4])), Ok(()));
        assert_eq!(evq.reply(Reply(&[])), Err(Malformed));
        evq.vector = None;
        assert_eq!([16, 24].map(|at| word(&evq.request(), at)), [0x38, 0]);
    }

    #[test]
    fn receive_queues() {
        let mut rxq = InitRxq {
            instance: 1,
            entries: 1024,
            event_queue: 2,
            label: 1,
            scatter: true,
            ring: Pages { address: 0x8000, bytes: 8192 },
        };
        let request = rxq.request();
        assert_eq!(request.bytes().len(), 564);
        let expected = [1024, 2, 1, 1, 0x100, 0, PORT_ASSIGNED];
        assert_eq!([0, 4, 8, 12, 16, 20, 24].map(|at| word(&request, at)), expected);
        assert_eq!([28, 36, 44].map(|at| qword(&request, at)), [0x8000, 0x9000, 0]);
        rxq.scatter = false;
        assert_eq!(word(&rxq.request(), 16), 0x300);
    }

    #[test]
    fn transmit_queues() {
        let mut txq = InitTxq {
            instance: 1,
            entries: 512,
            event_queue: 4,
            label: 1,
            tso: true,
            ring: Pages { address: 0x8000, bytes: 4096 },
        };
        let request = txq.request();
        assert_eq!(request.bytes().len(), 36);
        let expected = [512, 4, 1, 1, 0x1006, 0, PORT_ASSIGNED];
        assert_eq!([0, 4, 8, 12, 16, 20, 24].map(|at| word(&request, at)), expected);
        txq.tso = false;
        assert_eq!(word(&txq.request(), 16), 6);
    }
}
