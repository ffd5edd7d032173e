//! The driver's queues with a card that writes anything, and replies of its controller.

use std::cell::RefCell;

use packet::{Burst, Frame, Pool};
use pci::fake::{Fake, FakeDevice, Host};
use pci::{DmaRing, Iova, PacketMemory, PciFunction, Width};
use sfc::device::Generation;
use sfc::event::ChecksumRules;
use sfc::evq::EventQueue;
use sfc::mcdi::Reply;
use sfc::mcdi::command::{
    AllocVis, Command, GetAsserts, GetCapabilities, GetClock, GetFunctionInfo, GetLink,
    GetMacAddresses, GetParserInfo, GetPhyConfig, GetPortAssignment, GetRxdpConfig,
    GetTimerProperties, GetVersion, GetWorkarounds, RssAlloc, VportGetMacAddresses,
};
use sfc::mcdi::header::Response;
use sfc::registers::{RX_DOORBELL, TX_DOORBELL, TX_PUSH, TX_PUSH_DOORBELL};
use sfc::rx::completion::Modes;
use sfc::rx::{RxParts, RxQueue};
use sfc::tx::{TxParts, TxQueue};

use crate::input::Input;

const EVENTS: u32 = 512;
const RING: u32 = 512;
const BUFFERS: usize = 640;
const BUFFER: usize = 256;

/// A card that takes every write.
struct Silent;

impl FakeDevice for Silent {
    fn read(&mut self, _: u64, _: Width, _: &Host) -> u64 {
        u64::MAX
    }

    fn write(&mut self, _: u64, _: Width, _: u64, _: &Host) {}

    fn reset(&mut self, _: &Host) {}
}

/// A function with packet memory, which lives as long as the process: made once per thread.
struct Rig {
    fake: Fake,
    memory: PacketMemory,
    pool: Pool,
}

impl Rig {
    fn new() -> Self {
        let mut fake = Fake::new(0x2000, Silent);
        let region = fake.dma(BUFFERS * BUFFER, 4096).expect("a fake has memory");
        let (bytes, memory) = region.into_packet_memory();
        Self { fake, memory, pool: Pool::from_memory(bytes, BUFFER) }
    }

    fn ring(&mut self, entries: u32) -> (DmaRing<u64>, Iova) {
        let region = self.fake.dma(entries as usize * 8, 4096).expect("a fake has memory");
        let iova = region.iova();
        (DmaRing::new(region, entries), iova)
    }

    /// All buffers are back.
    fn check(&self) {
        assert_eq!(self.pool.available(), BUFFERS, "every buffer comes back");
    }
}

thread_local! {
    static RIG: RefCell<Rig> = RefCell::new(Rig::new());
}

/// Input: two bytes of modes, then events of 8 bytes; a byte in front of each says whether the queue is
/// polled first, and what the buffer that it completes starts with.
pub(crate) fn receive(data: &[u8]) {
    RIG.with_borrow_mut(|rig| {
        let mut input = Input(data);
        let [modes, generation] = input.array();
        let window = rig.fake.bar(0).expect("a fake has a BAR");
        let (events, at) = rig.ring(EVENTS);
        let (ring, _) = rig.ring(RING);
        let host = rig.fake.host();
        let generations = [Generation::Huntington, Generation::Medford, Generation::Medford2];
        let mut queue = RxQueue::new(RxParts {
            events: EventQueue::new(events, &window, modes & 8 != 0).expect("the window is large"),
            ring,
            doorbell: window.register(RX_DOORBELL).expect("the window is large"),
            memory: rig.memory,
            modes: Modes { label: 0, batching: modes & 1 != 0, scatter: modes & 2 != 0 },
            checksums: ChecksumRules::new(generations[usize::from(generation % 3)], modes & 4 != 0),
            hashed: true,
            padding: 64,
        });
        let mut burst = Burst::new(8);
        let mut poll = |queue: &mut RxQueue, pool: &mut Pool| {
            queue.poll(&mut burst, pool);
            for frame in burst.drain() {
                assert!(frame.len() >= 14, "no frame is shorter than its header");
                pool.recycle(frame);
            }
        };
        poll(&mut queue, &mut rig.pool);
        let mut written = 0;
        while !input.is_empty() && written < 4 * EVENTS {
            let first = input.u8();
            let event = input.u64();
            host.write(at.add(u64::from(written % EVENTS) * 8), &event.to_le_bytes());
            written += 1;
            // Before the ring of events wraps in any case: a card that overruns it loses events.
            if first & 1 != 0 || written % (EVENTS / 2) == 0 {
                while queue.is_pending() && queue.end().is_none() {
                    poll(&mut queue, &mut rig.pool);
                }
            }
        }
        poll(&mut queue, &mut rig.pool);
        queue.settle();
        queue.reclaim(&mut rig.pool);
        rig.check();
    });
}

/// Input: frames (a byte of metadata, one of length) and events (8 bytes), as a byte in front says.
pub(crate) fn transmit(data: &[u8]) {
    RIG.with_borrow_mut(|rig| {
        let mut input = Input(data);
        let window = rig.fake.bar(0).expect("a fake has a BAR");
        let (events, at) = rig.ring(EVENTS);
        let (ring, _) = rig.ring(RING);
        let host = rig.fake.host();
        let register = "the window is large";
        let mut queue = TxQueue::new(TxParts {
            events: EventQueue::new(events, &window, false).expect(register),
            ring,
            doorbell: window.register(TX_DOORBELL).expect(register),
            push: [
                window.register(TX_PUSH).expect(register),
                window.register(TX_PUSH_DOORBELL).expect(register),
            ],
            memory: rig.memory,
            label: 0,
            tso: true,
        });
        let mut burst = Burst::new(8);
        let mut written = 0;
        while !input.is_empty() && written < 4 * EVENTS {
            if input.u8() & 1 == 0 {
                let [meta, len] = input.array();
                if let Some(buffer) = rig.pool.take() {
                    let mut frame = Frame::new(buffer, 0, len.into());
                    describe(&mut frame, meta, &mut input);
                    burst.push(frame);
                }
                if burst.room() == 0 || meta & 0x80 != 0 {
                    queue.send(&mut burst, &mut rig.pool);
                    burst.drain().for_each(|frame| rig.pool.recycle(frame));
                }
            } else {
                let event = input.u64();
                host.write(at.add(u64::from(written % EVENTS) * 8), &event.to_le_bytes());
                written += 1;
                queue.reap(&mut rig.pool);
            }
        }
        burst.drain().for_each(|frame| rig.pool.recycle(frame));
        queue.settle();
        queue.reclaim(&mut rig.pool);
        rig.check();
    });
}

/// Metadata that a sender can have made up.
fn describe(frame: &mut Frame, meta: u8, input: &mut Input<'_>) {
    use packet::{Checksum, Gso, GsoKind, Layout};
    if meta & 1 != 0 {
        let [start, offset] = input.array();
        frame.meta.checksum = Checksum::Partial { start: start.into(), offset: offset.into() };
    }
    if meta & 2 != 0 {
        let [network, transport, payload] = input.array();
        frame.meta.layout = Layout {
            network: network.into(),
            transport: transport.into(),
            payload: payload.into(),
        };
        let kinds = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4, GsoKind::UdpV6];
        frame.meta.gso = Some(Gso {
            kind: kinds[usize::from(meta >> 2 & 3)],
            size: input.u16(),
            segments: input.u16(),
            fixed_id: false,
            ecn: meta & 16 != 0,
            trusted: false,
        });
    }
}

/// Input: the two words of a header, then a payload, which every command reads as its reply.
pub(crate) fn reply(data: &[u8]) {
    let mut input = Input(data);
    let words = input.u64();
    let [first, second] = [words, words >> 32]
        .map(|word| u32::try_from(word & 0xffff_ffff).expect("masked to 32 bits"));
    let response = Response::decode([first, second]);
    assert!(response.offset + response.len <= 8 + 1023, "a reply fits the buffer");
    let reply = Reply(input.0);
    fn read<C: Command>(command: &C, reply: Reply<'_>) {
        // An answer or "malformed": either will do.
        drop(command.reply(reply));
    }
    read(&GetAsserts, reply);
    read(&GetCapabilities, reply);
    read(&GetClock, reply);
    read(&GetFunctionInfo, reply);
    read(&GetLink, reply);
    read(&GetMacAddresses, reply);
    read(&GetParserInfo, reply);
    read(&GetPhyConfig, reply);
    read(&GetPortAssignment, reply);
    read(&GetRxdpConfig, reply);
    read(&GetTimerProperties, reply);
    read(&GetVersion, reply);
    read(&GetWorkarounds, reply);
    read(&RssAlloc { shared: false, queues: 4 }, reply);
    read(&VportGetMacAddresses, reply);
    if let Ok(vis) = (AllocVis { min: 3, max: 9 }).reply(reply) {
        assert!((3..=9).contains(&vis.count));
    }
}
