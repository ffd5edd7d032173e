//! The drainer against a driver: what ports can and can't do, headers that lie, rings that break.

use packet::{Gso, Layout};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::driver::{AVAIL, BUFFERS, Driver, INDIRECT, NEXT, TABLES, WRITE};
use crate::feature::{
    VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO,
};
use crate::header::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use crate::stream::{Stream, normalise, set_pseudo_header};

const ALL: Features = Features::new(
    1 << VIRTIO_NET_F_CSUM
        | 1 << VIRTIO_NET_F_HOST_TSO4
        | 1 << VIRTIO_NET_F_HOST_TSO6
        | 1 << VIRTIO_NET_F_HOST_ECN
        | 1 << VIRTIO_NET_F_HOST_USO
        | 1 << VIRTIO_F_VERSION_1,
);
const EVERYTHING: TxOffloads = TxOffloads { csum: true, tso4: true, tso6: true, uso: true };
const NOTHING: TxOffloads = TxOffloads { csum: false, tso4: false, tso6: false, uso: false };
const NEEDS_TCP: NetHeader = NetHeader {
    flags: NEEDS_CSUM,
    gso_type: 0,
    hdr_len: 0,
    gso_size: 0,
    csum_start: 34,
    csum_offset: 16,
    num_buffers: 0,
};

struct Bench {
    driver: Driver,
    drain: TxDrain,
    pool: Pool,
    burst: Burst,
}

impl Bench {
    fn new(features: Features) -> Self {
        let driver = Driver::new(64, 65530);
        let drain = TxDrain::new(driver.ring(), features);
        Self { driver, drain, pool: Pool::new(128, 2048), burst: Burst::new(64) }
    }

    fn send(&mut self, header: NetHeader, bytes: &[u8]) {
        let header = &header.to_bytes()[..self.drain.features().header_len()];
        self.driver.send(&[header, bytes].concat(), &[]);
    }

    fn drain(&mut self, can: TxOffloads) -> usize {
        self.drain.drain(&mut self.burst, &mut self.pool, can)
    }

    /// The frames in the burst, whose buffers go back.
    fn frames(&mut self) -> Vec<(Vec<u8>, packet::Meta)> {
        let frames: Vec<_> = self.burst.drain().collect();
        let take = |frame: Frame| {
            let taken = (frame.to_vec(), frame.meta);
            self.pool.recycle(frame);
            taken
        };
        frames.into_iter().map(take).collect()
    }

    fn bytes(&mut self) -> Vec<Vec<u8>> {
        self.frames().into_iter().map(|(bytes, _)| bytes).collect()
    }

    /// Sends a packet whose header lies; the reason for which it is dropped.
    fn lie(&mut self, header: NetHeader, bytes: &[u8]) -> TxDrop {
        let before = self.drain.counters().clone();
        self.send(header, bytes);
        assert_eq!(self.drain(EVERYTHING), 1);
        assert!(self.burst.is_empty(), "nothing is handed on");
        assert_eq!(self.driver.used().len(), 1, "its chain comes back");
        assert_eq!(self.pool.available(), self.pool.total());
        let after = self.drain.counters();
        let reason = |reason: &&TxDrop| after.drops(**reason) == before.drops(**reason) + 1;
        *TxDrop::ALL.iter().find(reason).expect("it is dropped for a reason")
    }
}

/// A merged stream as a driver hands it over: header and bytes.
fn super_packet(stream: Stream, count: usize) -> (NetHeader, Vec<u8>) {
    let (start, kind) = if stream.v6 { (54, GSO_TCPV6) } else { (34, GSO_TCPV4) };
    let header = NetHeader {
        gso_type: if stream.cwr { kind | GSO_ECN } else { kind },
        hdr_len: start + 32,
        gso_size: u16::try_from(stream.size).unwrap(),
        csum_start: start,
        ..NEEDS_TCP
    };
    (header, stream.merged_bytes(0, count))
}

#[test]
fn packets_arrive_as_they_were_sent_however_they_are_cut() {
    for features in [ALL, Features::default(), ALL.without(VIRTIO_F_VERSION_1)] {
        let mut bench = Bench::new(features);
        let header_len = features.header_len();
        let bytes = Stream::tcp_v4(700).segment(0, 1);
        let whole = [&vec![0; header_len][..], &bytes].concat();
        let cuts: [&[usize]; 7] = [
            &[],
            &[header_len],
            &[3],
            &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            &[header_len + 14],
            &[5, 30, 100],
            &[11],
        ];
        for cuts in cuts {
            bench.driver.send(&whole, cuts);
        }
        assert_eq!(bench.drain(NOTHING), 7);
        assert_eq!(bench.driver.used().len(), 7);
        let frames = bench.frames();
        assert!(frames.iter().all(|(frame, _)| *frame == bytes), "{features}");
        assert!(frames.iter().all(|(_, meta)| *meta == packet::Meta::default()));
        let counters = bench.drain.counters();
        assert_eq!((counters.packets, counters.publishes), (7, 1));
        assert_eq!(counters.bytes, 7 * bytes.len() as u64);
        assert_eq!((bench.drain.next_avail(), bench.drain.next_used()), (1, 1), "round 65535");
    }
}

#[test]
fn an_indirect_chain_is_a_packet_too() {
    let mut bench = Bench::new(ALL);
    let bytes = Stream::tcp_v6(300).segment(0, 1);
    bench.driver.memory.write_slice(&bytes, GuestAddress(BUFFERS + 100)).unwrap();
    bench.driver.describe_at(TABLES, 0, BUFFERS, 12, NEXT, 1);
    bench.driver.describe_at(TABLES, 1, BUFFERS + 100, u32::try_from(bytes.len()).unwrap(), 0, 0);
    bench.driver.describe(9, TABLES, 32, INDIRECT, 0);
    bench.driver.enter(9);
    bench.driver.expose();
    assert_eq!(bench.drain(NOTHING), 1);
    assert_eq!(bench.bytes(), [bytes]);
    assert_eq!(bench.driver.used(), [(9, 0)]);
}

#[test]
fn a_partial_checksum_is_the_ports_or_completed() {
    let v4 = Stream::tcp_v4(200);
    let mut bytes = v4.segment(0, 1);
    set_pseudo_header(&mut bytes, 34, 16);
    let mut bench = Bench::new(ALL);
    bench.send(NEEDS_TCP, &bytes);
    bench.drain(EVERYTHING);
    let (frame, meta) = bench.frames().remove(0);
    assert_eq!(
        (frame, meta.checksum),
        (bytes.clone(), Checksum::Partial { start: 34, offset: 16 })
    );
    assert_eq!(meta.layout, Layout { network: 14, transport: 34, payload: 66 });
    bench.send(NEEDS_TCP, &bytes);
    bench.drain(TxOffloads { csum: false, ..EVERYTHING });
    assert_eq!(bench.bytes(), [v4.segment(0, 1)]);
    assert_eq!(bench.drain.counters().completed, 1);
}

#[test]
fn a_super_packet_is_the_ports_or_cut() {
    let v4 = Stream::tcp_v4(1000);
    for stream in [v4, Stream::tcp_v6(1000), Stream { cwr: true, ..v4 }] {
        let (header, bytes) = super_packet(stream, 5);
        let mut bench = Bench::new(ALL);
        bench.send(header, &bytes);
        bench.drain(EVERYTHING);
        let frame = bench.burst.drain().next().unwrap();
        assert_eq!(frame.to_vec(), bytes);
        assert_eq!(frame.piece_count(), 3, "as many buffers as it needs");
        let kind = if stream.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso =
            Gso { kind, size: 1000, segments: 5, fixed_id: false, ecn: stream.cwr, trusted: false };
        assert_eq!(frame.meta.gso, Some(gso));
        let start = header.csum_start;
        assert_eq!(frame.meta.checksum, Checksum::Partial { start, offset: 16 });
        let layout = Layout { network: 14, transport: start, payload: start + 32 };
        assert_eq!(frame.meta.layout, layout);
        bench.pool.recycle(frame);

        let segments = normalise(header, &bytes);
        assert_eq!(segments, (0..5).map(|at| stream.segment(at, 5)).collect::<Vec<_>>());
        let lacking = [
            NOTHING,
            TxOffloads { csum: false, ..EVERYTHING },
            TxOffloads { tso4: false, tso6: false, ..EVERYTHING },
        ];
        for can in lacking {
            bench.send(header, &bytes);
            assert_eq!(bench.drain(can), 1);
            assert_eq!(bench.bytes(), segments, "{can:?}");
            assert_eq!(bench.pool.available(), bench.pool.total());
        }
        let counters = bench.drain.counters();
        assert_eq!((counters.supers, counters.cut, counters.segments), (4, 3, 15));
    }
}

#[test]
fn a_udp_super_packet_is_the_ports_or_cut() {
    let mut bench = Bench::new(ALL);
    let payload: Vec<u8> = (0..=249).collect();
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 1, 22, 0, 1];
    bytes.extend([0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 1, 2, 0, 0]);
    bytes.extend(&payload);
    set_pseudo_header(&mut bytes, 34, 6);
    let header = NetHeader { gso_type: GSO_UDP_L4, gso_size: 100, csum_offset: 6, ..NEEDS_TCP };
    bench.send(header, &bytes);
    bench.drain(EVERYTHING);
    let (frame, meta) = bench.frames().remove(0);
    assert_eq!(frame, bytes);
    assert_eq!(meta.gso.map(|gso| (gso.kind, gso.segments)), Some((GsoKind::UdpV4, 3)));
    bench.send(header, &bytes);
    bench.drain(TxOffloads { uso: false, ..EVERYTHING });
    let cut = bench.bytes();
    let lengths: Vec<_> = cut.iter().map(Vec::len).collect();
    assert_eq!(lengths, [142, 142, 92]);
    let joined: Vec<_> = cut.iter().flat_map(|bytes| bytes[42..].to_vec()).collect();
    assert_eq!(joined, payload);
}

#[test]
fn segments_that_do_not_fit_the_burst_come_first_next_time() {
    let mut bench = Bench::new(ALL);
    bench.burst = Burst::new(4);
    let v4 = Stream::tcp_v4(500);
    let (header, bytes) = super_packet(v4, 10);
    bench.send(header, &bytes);
    let after = v4.segment(0, 1);
    bench.send(NetHeader::default(), &after);
    let mut segments = Vec::new();
    assert_eq!(bench.drain(NOTHING), 1);
    assert_eq!(bench.driver.used().len(), 1, "its chain is back already");
    assert!(bench.drain.kick(true), "waiting segments are work");
    segments.extend(bench.bytes());
    for taken in [0, 1] {
        assert_eq!(bench.drain(NOTHING), taken);
        segments.extend(bench.bytes());
    }
    let mut expected = normalise(header, &bytes);
    expected.push(after);
    assert_eq!(segments, expected);
    assert_eq!(bench.pool.available(), bench.pool.total());
}

#[test]
fn waiting_segments_can_be_given_up() {
    let mut bench = Bench::new(ALL);
    bench.burst = Burst::new(1);
    let (header, bytes) = super_packet(Stream::tcp_v4(500), 10);
    bench.send(header, &bytes);
    bench.drain(NOTHING);
    bench.bytes();
    assert_eq!(bench.pool.available(), bench.pool.total() - 9);
    bench.drain.recycle_pending(&mut bench.pool);
    assert_eq!(bench.pool.available(), bench.pool.total());
    assert!(!bench.drain.kick(true));
}

#[test]
fn without_buffers_a_packet_stays_in_the_ring() {
    let mut bench = Bench::new(ALL);
    let (header, bytes) = super_packet(Stream::tcp_v4(1000), 5);
    bench.send(header, &bytes);
    let taken: Vec<_> = (0..126).map(|_| bench.pool.take().unwrap()).collect();
    assert_eq!(bench.drain(EVERYTHING), 0, "two buffers are too few for the bytes");
    for buffer in taken {
        bench.pool.give(buffer);
    }
    let taken: Vec<_> = (0..123).map(|_| bench.pool.take().unwrap()).collect();
    assert_eq!(bench.drain(NOTHING), 0, "five are too few for bytes and segments");
    assert_eq!(bench.pool.available(), 5);
    assert!(bench.driver.used().is_empty());
    assert_eq!(bench.drain.counters().no_buffers, 2);
    for buffer in taken {
        bench.pool.give(buffer);
    }
    assert_eq!(bench.drain(NOTHING), 1);
    assert_eq!(bench.bytes(), normalise(header, &bytes));
}

#[test]
fn what_the_pool_could_never_hold_is_dropped() {
    let mut bench = Bench::new(ALL);
    bench.pool = Pool::new(4, 1024);
    let (header, bytes) = super_packet(Stream::tcp_v4(1000), 5);
    assert_eq!(bench.lie(header, &bytes), TxDrop::TooLong);
    bench.pool = Pool::new(9, 1024);
    bench.send(header, &bytes);
    assert_eq!(bench.drain(NOTHING), 1, "it could hold the bytes, but not the segments as well");
    assert!(bench.burst.is_empty());
    assert_eq!(bench.drain.counters().drops(TxDrop::TooLong), 2);
}

#[test]
fn a_packet_has_a_length() {
    let mut bench = Bench::new(ALL);
    assert_eq!(bench.lie(NetHeader::default(), &[1; 13]), TxDrop::TooShort);
    assert_eq!(bench.lie(NetHeader::default(), &[1; 65554]), TxDrop::TooLong);
    for len in [14, 65553] {
        bench.send(NetHeader::default(), &vec![1; len]);
        assert_eq!(bench.drain(NOTHING), 1);
        assert_eq!(bench.bytes(), [vec![1; len]]);
    }
    let before = bench.drain.counters().bad_chains();
    bench.driver.send(&[0; 11], &[]);
    bench.drain(NOTHING);
    assert_eq!(bench.drain.counters().bad_chains[ChainError::TooShort as usize], 1);
    assert_eq!(bench.drain.counters().bad_chains(), before + 1);
}

#[test]
fn nothing_is_done_that_was_not_negotiated() {
    let v4 = super_packet(Stream::tcp_v4(100), 3);
    let v6 = super_packet(Stream::tcp_v6(100), 3);
    let cwr = super_packet(Stream { cwr: true, ..Stream::tcp_v4(100) }, 3);
    let udp = (NetHeader { gso_type: GSO_UDP_L4, csum_offset: 6, ..v4.0 }, v4.1.clone());
    let cases = [
        (VIRTIO_NET_F_HOST_TSO4, &v4),
        (VIRTIO_NET_F_HOST_TSO6, &v6),
        (VIRTIO_NET_F_HOST_ECN, &cwr),
        (VIRTIO_NET_F_HOST_USO, &udp),
        (VIRTIO_NET_F_CSUM, &v4),
    ];
    for (bit, (header, bytes)) in cases {
        let mut bench = Bench::new(ALL.without(bit));
        assert_eq!(bench.lie(*header, bytes), TxDrop::NotNegotiated);
    }
    let mut bench = Bench::new(ALL);
    for gso_type in [2, 3, 6, 0x20 | GSO_TCPV4, 0x7f, GSO_UDP_L4 | GSO_ECN, GSO_ECN] {
        let header = NetHeader { gso_type, ..v4.0 };
        assert_eq!(bench.lie(header, &v4.1), TxDrop::NotNegotiated, "{gso_type}");
    }
}

#[test]
fn a_checksum_lies_inside_its_packet() {
    let mut bench = Bench::new(ALL);
    let bytes = [1; 60];
    for (csum_start, csum_offset) in
        [(13, 16), (0, 0), (59, 0), (43, 16), (60, 0), (u16::MAX, u16::MAX), (34, u16::MAX)]
    {
        let header = NetHeader { csum_start, csum_offset, ..NEEDS_TCP };
        assert_eq!(bench.lie(header, &bytes), TxDrop::Checksum, "{csum_start}+{csum_offset}");
    }
    bench.send(NetHeader { csum_start: 42, csum_offset: 16, ..NEEDS_TCP }, &bytes);
    assert_eq!(bench.drain(EVERYTHING), 1);
    assert_eq!(bench.frames().len(), 1, "up to the last byte is fine");
}

#[test]
fn a_segmentation_makes_sense() {
    let mut bench = Bench::new(ALL);
    let (header, bytes) = super_packet(Stream::tcp_v4(100), 3);
    let no_size = NetHeader { gso_size: 0, ..header };
    assert_eq!(bench.lie(no_size, &bytes), TxDrop::Segmentation);
    let no_checksum = NetHeader { flags: 0, ..header };
    assert_eq!(bench.lie(no_checksum, &bytes), TxDrop::Segmentation);
    let (header, bytes) = super_packet(Stream::tcp_v4(1000), 60);
    let tiny = NetHeader { gso_size: 42, ..header };
    assert_eq!(bench.lie(tiny, &bytes), TxDrop::Segmentation, "too many segments");
}

#[test]
fn a_segmentation_fits_its_packet() {
    let mut bench = Bench::new(ALL);
    let (header, bytes) = super_packet(Stream::tcp_v4(100), 3);
    let lies = [
        NetHeader { gso_type: GSO_TCPV6, ..header },
        NetHeader { gso_type: GSO_UDP_L4, ..header },
        NetHeader { csum_start: 38, ..header },
        NetHeader { csum_offset: 6, ..header },
    ];
    for lie in lies {
        assert_eq!(bench.lie(lie, &bytes), TxDrop::Headers, "{lie:?}");
    }
    assert_eq!(bench.lie(header, &bytes[..60]), TxDrop::Headers, "half a TCP header");
    let mut arp = bytes.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(bench.lie(header, &arp), TxDrop::Headers);
}

#[test]
fn the_header_length_is_a_hint() {
    let mut bench = Bench::new(ALL);
    let (header, bytes) = super_packet(Stream::tcp_v4(100), 3);
    for hdr_len in [0, 1, 65, 67, u16::MAX] {
        bench.send(NetHeader { hdr_len, ..header }, &bytes);
        bench.drain(NOTHING);
        assert_eq!(bench.bytes(), normalise(header, &bytes));
    }
}

#[test]
fn a_super_packet_of_one_segment_is_none() {
    let mut bench = Bench::new(ALL);
    let (header, bytes) = super_packet(Stream::tcp_v4(100), 3);
    bench.send(NetHeader { gso_size: 299, ..header }, &bytes);
    bench.drain(EVERYTHING);
    let (frame, meta) = bench.frames().remove(0);
    assert_eq!((frame, meta.gso), (bytes, None));
    assert_eq!(meta.checksum, Checksum::Partial { start: 34, offset: 16 });
}

#[test]
fn bad_chains_come_back_and_the_ring_goes_on() {
    let mut bench = Bench::new(ALL);
    bench.driver.describe(0, 0, 100, 0, 0);
    bench.driver.describe(1, BUFFERS, 100, WRITE, 0);
    bench.driver.describe(2, BUFFERS, 100, NEXT, 2);
    bench.driver.describe(3, BUFFERS, 100, 0, 0);
    for head in 0..4 {
        bench.driver.enter(head);
    }
    bench.driver.expose();
    assert_eq!(bench.drain(NOTHING), 4);
    assert_eq!(bench.frames().len(), 1);
    assert_eq!(bench.driver.used(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    let counters = bench.drain.counters();
    for reason in [ChainError::Outside, ChainError::Direction, ChainError::Loop] {
        assert_eq!(counters.bad_chains[reason as usize], 1, "{reason}");
    }
    assert_eq!(counters.chains, counters.packets + counters.dropped() + counters.bad_chains());
}

#[test]
fn a_broken_ring_takes_nothing_more() {
    let mut bench = Bench::new(ALL);
    bench.send(NetHeader::default(), &[1; 60]);
    bench.driver.enter(64);
    bench.driver.expose();
    assert_eq!(bench.drain(NOTHING), 1, "what came before is sent");
    assert_eq!((bench.frames().len(), bench.driver.used().len()), (1, 1));
    let error = RingError::HeadOutOfRange { head: 64, size: 64 };
    assert_eq!(bench.drain.broken(), Some(&error));
    assert_eq!((bench.drain(NOTHING), bench.drain.discard()), (0, 0));
    assert!(!bench.drain.kick(true));
}

#[test]
fn an_index_jump_breaks_the_ring() {
    let mut bench = Bench::new(ALL);
    bench.driver.set_avail_index(65530u16.wrapping_add(65));
    assert_eq!(bench.drain(NOTHING), 0);
    let error = RingError::AvailJump { index: 59, next: 65530, size: 64 };
    assert_eq!(bench.drain.into_ring().broken(), Some(&error));
}

#[test]
fn a_disabled_ring_is_emptied_unread() {
    let mut bench = Bench::new(ALL);
    for _ in 0..5 {
        bench.send(NetHeader { flags: 0xff, ..NetHeader::default() }, &[1; 60]);
    }
    assert_eq!(bench.drain.discard(), 5);
    assert_eq!(bench.driver.used().len(), 5);
    let counters = bench.drain.counters();
    assert_eq!((counters.chains, counters.discarded, counters.publishes), (5, 5, 1));
    assert_eq!((counters.packets, counters.dropped()), (0, 0));
}

#[test]
fn a_drain_has_a_budget() {
    let mut bench = Bench::new(ALL);
    for _ in 0..40 {
        bench.send(NetHeader::default(), &[1; 40_000]);
    }
    bench.pool = Pool::new(2048, 2048);
    assert_eq!(bench.drain(NOTHING), 27, "the packet that goes beyond a mebibyte is the last");
    assert_eq!(bench.drain(NOTHING), 13);
}

#[test]
fn kicks_are_for_sleepers() {
    let mut bench = Bench::new(ALL);
    assert!(!bench.drain.kick(false));
    assert_eq!(bench.driver.kicks().0, 1);
    assert!(!bench.drain.kick(true));
    assert_eq!(bench.driver.kicks().0, 0);
    bench.send(NetHeader::default(), &[1; 60]);
    assert!(bench.drain.kick(true));
}

#[test]
fn the_header_is_read_once() {
    // The available ring's entry, too: a guest that changes either after it was taken changes nothing.
    let mut bench = Bench::new(ALL);
    bench.send(NetHeader::default(), &[1; 60]);
    bench.drain(NOTHING);
    let buffer = GuestAddress(bench.driver.buffer(0));
    bench.driver.memory.write_slice(&[0xff; 72], buffer).unwrap();
    bench.driver.memory.write_obj(99u16, GuestAddress(AVAIL + 4)).unwrap();
    assert_eq!(bench.bytes(), [vec![1; 60]]);
    assert_eq!(bench.drain.broken(), None);
}
