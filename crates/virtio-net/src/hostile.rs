//! Both queues against a guest that writes whatever it likes into its rings, at any time.
//!
//! Whatever it writes: nothing panics, nothing outside its memory is written, every buffer comes back to
//! the pool, and everything is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use packet::{Burst, Checksum, Frame, Pool};
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::feature::{
    Features, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use crate::ring::guarded::{Guarded, REGIONS};
use crate::ring::{Memory, RingSetup, SplitRing};
use crate::stream::Stream;
use crate::{RxFill, TxDrain, TxOffloads};

/// One thing that the guest or the device does.
#[derive(Debug, Clone)]
enum Step {
    /// The guest writes a descriptor, of the table or of an indirect one.
    Describe { table: bool, index: u16, address: u64, len: u32, flags: u16, next: u16 },
    /// The guest writes an entry of the available ring.
    Enter { slot: u16, head: u16 },
    /// The guest makes so many more entries available.
    Expose(u16),
    /// The guest writes anything anywhere in the region with its rings.
    Scribble { offset: u64, bytes: Vec<u8> },
    /// The guest writes a packet header at the start of a buffer.
    Header { offset: u64, bytes: [u8; 12] },
    /// The device has its turn.
    Device { frames: u8, offloads: u8 },
    /// The guest sets the ring up anew.
    Reset,
}

const RING: u64 = REGIONS[0].0;
const AVAIL: u64 = RING + 0x1000;
const USED: u64 = RING + 0x2000;
const TABLE: u64 = RING + 0x4000;

fn address() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(
        REGIONS.iter().flat_map(|(at, len)| [*at, *at + *len as u64]).collect::<Vec<_>>(),
    );
    prop_oneof![
        4 => REGIONS[1].0..REGIONS[2].0 + REGIONS[2].1 as u64,
        2 => (edge, -64i64..64).prop_map(|(edge, off)| edge.wrapping_add_signed(off)),
        2 => Just(TABLE),
        1 => RING..RING + 0x4000,
        1 => any::<u64>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let index = || prop_oneof![8 => 0..16u16, 1 => any::<u16>()];
    let len = prop_oneof![
        6 => 1..3000u32,
        2 => (0..20u32).prop_map(|count| count * 16),
        1 => 60_000..70_000u32,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![4 => 0..2u16, 4 => 2..4u16, 1 => 4..8u16, 1 => any::<u16>()];
    let describe = (any::<bool>(), 0..16u16, address(), len, flags, index()).prop_map(
        |(table, index, address, len, flags, next)| Step::Describe {
            table,
            index,
            address,
            len,
            flags,
            next,
        },
    );
    let header_byte = prop_oneof![2 => Just(0u8), 2 => 0..6u8, 1 => any::<u8>()];
    prop_oneof![
        12 => describe,
        6 => (0..16u16, index()).prop_map(|(slot, head)| Step::Enter { slot, head }),
        6 => prop_oneof![12 => 0..6u16, 1 => any::<u16>()].prop_map(Step::Expose),
        1 => (0..0x5000u64, prop::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(offset, bytes)| Step::Scribble { offset, bytes }),
        3 => (0..0x2_0000u64 - 12, prop::array::uniform12(header_byte))
            .prop_map(|(offset, bytes)| Step::Header { offset, bytes }),
        6 => (0..12u8, any::<u8>()).prop_map(|(frames, offloads)| Step::Device { frames, offloads }),
        1 => Just(Step::Reset),
    ]
}

fn features() -> impl Strategy<Value = Features> {
    let bits = vec![
        VIRTIO_NET_F_MRG_RXBUF,
        VIRTIO_NET_F_CSUM,
        VIRTIO_NET_F_GUEST_CSUM,
        VIRTIO_NET_F_GUEST_TSO4,
        VIRTIO_NET_F_GUEST_TSO6,
        VIRTIO_NET_F_HOST_TSO4,
        VIRTIO_NET_F_HOST_TSO6,
        VIRTIO_NET_F_HOST_ECN,
        VIRTIO_NET_F_HOST_USO,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_F_VERSION_1,
    ];
    prop::sample::subsequence(bits, 0..=12)
        .prop_map(|bits| bits.into_iter().fold(Features::default(), Features::with))
}

/// The guest's side: its memory, and where it thinks its ring is.
struct Guest {
    guarded: Guarded,
    size: u16,
    features: Features,
    index: u16,
}

impl Guest {
    fn new(size: u16, features: Features, index: u16) -> Self {
        let guest = Self { guarded: Guarded::new(), size, features, index };
        // A ring that works, to begin with: what follows breaks it in places.
        for at in 0..16 {
            let address = REGIONS[1].0 + u64::from(at) * 0x1000;
            guest.describe(false, at, address, 2048, if at % 2 == 0 { 2 } else { 0 }, 0);
        }
        guest.store(AVAIL + 2, index);
        guest
    }

    fn memory(&self) -> &GuestMemoryMmap<()> {
        &self.guarded.memory
    }

    fn store(&self, address: u64, value: u16) {
        self.memory().write_obj(value, GuestAddress(address)).unwrap();
    }

    fn describe(&self, table: bool, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        let at = if table { TABLE } else { RING } + 16 * u64::from(index);
        self.memory().write_obj(address, GuestAddress(at)).unwrap();
        self.memory().write_obj(len, GuestAddress(at + 8)).unwrap();
        self.store(at + 12, flags);
        self.store(at + 14, next);
    }

    fn ring(&self) -> SplitRing {
        self.ring_at(self.index)
    }

    fn ring_at(&self, index: u16) -> SplitRing {
        let setup = RingSetup {
            size: self.size,
            desc: RING,
            avail: AVAIL,
            used: USED,
            next_avail: index,
            next_used: index,
            event_idx: self.features.has(VIRTIO_RING_F_EVENT_IDX),
            indirect: self.features.has(VIRTIO_RING_F_INDIRECT_DESC),
            call: None,
        };
        SplitRing::new(Memory::new(Arc::clone(&self.guarded.memory)), setup).unwrap()
    }

    /// Takes the guest's part of a step; answers whether it is the device's turn or a reset instead.
    fn act(&mut self, step: &Step) -> bool {
        match step {
            Step::Describe { table, index, address, len, flags, next } => {
                self.describe(*table, *index, *address, *len, *flags, *next);
            }
            Step::Enter { slot, head } => self.store(AVAIL + 4 + 2 * u64::from(*slot), *head),
            Step::Expose(count) => {
                self.index = self.index.wrapping_add(*count);
                self.store(AVAIL + 2, self.index);
            }
            Step::Scribble { offset, bytes } => {
                self.memory().write_slice(bytes, GuestAddress(RING + offset)).unwrap();
            }
            Step::Header { offset, bytes } => {
                let at = GuestAddress(REGIONS[1].0 + offset);
                self.memory().write_slice(bytes, at).unwrap();
            }
            Step::Device { .. } | Step::Reset => return false,
        }
        true
    }
}

/// Frames of all kinds, as many segments as they stand for.
fn frames(count: u8, pool: &mut Pool) -> (Vec<Frame>, u64) {
    let (v4, v6) = (Stream::tcp_v4(300), Stream::tcp_v6(900));
    let mut segments = 0;
    let frames = (0..count).map(|at| {
        let (frame, stands_for) = match at % 6 {
            0 => (v4.frame(0, 1, pool), 1),
            1 => (v4.merged(0, 5, pool), 5),
            2 => (v6.partial(0, pool), 1),
            3 => (v6.merged(0, 3, pool), 3),
            4 => (Frame::copied_from(&[7; 60], pool).unwrap(), 1),
            _ => {
                let mut frame = v4.frame(0, 1, pool);
                frame.meta.checksum = Checksum::Verified { levels: 1 };
                (frame, 1)
            }
        };
        segments += stands_for;
        frame
    });
    (frames.collect(), segments)
}

fn rx(mut guest: Guest, steps: &[Step]) {
    let mut pool = Pool::new(128, 1024);
    let mut fill = RxFill::new(guest.ring(), guest.features);
    let mut sent = 0;
    for step in steps {
        if guest.act(step) {
            continue;
        }
        if let Step::Device { frames: count, .. } = step {
            let (mut frames, segments) = frames(*count, &mut pool);
            fill.room();
            fill.deliver(&mut frames, &mut pool);
            sent += segments;
            let counters = fill.counters();
            assert_eq!(counters.segments + counters.dropped(), sent, "each segment is counted");
            assert_eq!(pool.available(), pool.total(), "each buffer is back");
        } else {
            fill = RxFill::new(guest.ring(), guest.features);
            sent = 0;
        }
        assert!(guest.guarded.intact(), "nothing outside guest memory is written");
    }
}

fn tx(mut guest: Guest, steps: &[Step]) {
    let mut pool = Pool::new(128, 1024);
    let mut burst = Burst::new(8);
    let mut drain = TxDrain::new(guest.ring(), guest.features);
    for step in steps {
        if guest.act(step) {
            continue;
        }
        if let Step::Device { offloads, .. } = step {
            let can = TxOffloads {
                csum: offloads & 1 != 0,
                tso4: offloads & 2 != 0,
                tso6: offloads & 4 != 0,
                uso: offloads & 8 != 0,
            };
            match offloads >> 4 {
                0 => drop(drain.discard()),
                1 => drop(drain.kick(true)),
                2 => drop(drain.kick(false)),
                _ => drop(drain.drain(&mut burst, &mut pool, can)),
            }
            for frame in burst.drain() {
                let gso = frame.meta.gso.map(|gso| gso.kind.is_tcp());
                assert!(gso != Some(true) || can.csum && (can.tso4 || can.tso6));
                assert!(gso != Some(false) || can.csum && can.uso);
                let partial = matches!(frame.meta.checksum, Checksum::Partial { .. });
                assert!(!partial || can.csum);
                pool.recycle(frame);
            }
            let counters = drain.counters();
            let taken = counters.packets + counters.dropped() + counters.bad_chains();
            assert_eq!(counters.chains, taken + counters.discarded, "each chain is counted");
        } else {
            drain.recycle_pending(&mut pool);
            drain = TxDrain::new(guest.ring(), guest.features);
            assert_eq!(pool.available(), pool.total(), "each buffer is back");
        }
        assert!(guest.guarded.intact(), "nothing outside guest memory is written");
    }
    drain.recycle_pending(&mut pool);
    assert_eq!(pool.available(), pool.total(), "each buffer is back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_receive_ring_may_hold_anything(
        (shift, index) in (0..5u32, prop_oneof![Just(65530u16), any::<u16>()]),
        features in features(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        rx(Guest::new(1 << shift, features, index), &steps);
    }

    #[test]
    fn a_transmit_ring_may_hold_anything(
        (shift, index) in (0..5u32, prop_oneof![Just(65530u16), any::<u16>()]),
        features in features(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        tx(Guest::new(1 << shift, features, index), &steps);
    }
}

#[test]
fn a_guest_may_write_while_the_device_reads() {
    let all = Features::new(u64::MAX);
    for features in [all, all.without(VIRTIO_NET_F_MRG_RXBUF)] {
        let guest = Guest::new(16, features, 0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = 0x9e37_79b9_7f4a_7c15u64;
                let mut index = 0u16;
                while !stop.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let [a, b, c, d, e, ..] = random.to_le_bytes();
                    let lengths = [2048, 100, 12, 16, 0, 70_000, u32::MAX, 1514];
                    let bases = [REGIONS[1].0, REGIONS[1].0, REGIONS[2].0, TABLE];
                    let address = bases[usize::from(a & 3)] + u64::from(b) * 256;
                    let flags = [2, 0, 2, 3, 1, 4, 2, 0][usize::from(c & 7)];
                    let len = lengths[usize::from(d & 7)];
                    guest.describe(
                        c & 8 != 0,
                        u16::from(e & 15),
                        address,
                        len,
                        flags,
                        u16::from(c >> 4),
                    );
                    guest.store(AVAIL + 4 + 2 * u64::from(b & 15), u16::from(e >> 4));
                    index = index.wrapping_add(u16::from(a >> 7));
                    guest.store(AVAIL + 2, index);
                }
            });
            let (mut pool, mut burst) = (Pool::new(128, 1024), Burst::new(16));
            let can = TxOffloads::default();
            for _ in 0..300 {
                // Whatever breaks is set up anew, where the guest's index happens to be.
                let at = guest.memory().read_obj(GuestAddress(AVAIL + 2)).unwrap();
                let mut fill = RxFill::new(guest.ring_at(at), features);
                let mut drain = TxDrain::new(guest.ring_at(at), features);
                for _ in 0..10 {
                    let (mut frames, _) = frames(6, &mut pool);
                    fill.deliver(&mut frames, &mut pool);
                    drain.drain(&mut burst, &mut pool, can);
                    burst.drain().for_each(|frame| pool.recycle(frame));
                }
                drain.recycle_pending(&mut pool);
                assert_eq!(pool.available(), pool.total());
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(guest.guarded.intact());
    }
}
