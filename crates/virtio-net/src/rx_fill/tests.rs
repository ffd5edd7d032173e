//! The filler against a driver: every set of features, every kind of frame, rings with too little and
//! rings that break the rules.

use packet::{Checksum, Frame, Gso, GsoKind, Layout, Pool, VlanTag};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::counters::RxDrop;
use crate::driver::{AVAIL, BUFFERS, Driver, NEXT, STRIDE, WRITE};
use crate::feature::{
    VIRTIO_F_VERSION_1, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use crate::header::{DATA_VALID, NEEDS_CSUM};
use crate::ring::ChainError;
use crate::stream::{Stream, normalise};

const ALL: Features = Features::new(
    1 << VIRTIO_NET_F_MRG_RXBUF
        | 1 << VIRTIO_NET_F_GUEST_CSUM
        | 1 << VIRTIO_NET_F_GUEST_TSO4
        | 1 << VIRTIO_NET_F_GUEST_TSO6
        | 1 << VIRTIO_F_VERSION_1,
);

struct Bench {
    driver: Driver,
    fill: RxFill,
    pool: Pool,
    header_len: usize,
}

impl Bench {
    fn new(features: Features, size: u16, start: u16) -> Self {
        let mut driver = Driver::new(size, start);
        driver.event_idx = features.has(VIRTIO_RING_F_EVENT_IDX);
        driver.indirect = features.has(VIRTIO_RING_F_INDIRECT_DESC);
        let fill = RxFill::new(driver.ring(), features);
        Self { driver, fill, pool: Pool::new(256, 2048), header_len: features.header_len() }
    }

    /// Delivers the frames; whatever comes of it, the pool has all its buffers afterwards.
    fn deliver(&mut self, frames: Vec<Frame>) -> Delivered {
        let mut frames = frames;
        let delivered = self.fill.deliver(&mut frames, &mut self.pool);
        assert!(frames.is_empty());
        assert_eq!(self.pool.available(), self.pool.total(), "all buffers are back");
        delivered
    }

    fn plain(&mut self, bytes: &[u8]) -> Frame {
        Frame::copied_from(bytes, &mut self.pool).unwrap()
    }

    /// The packets that the guest has got, header and bytes.
    fn received(&mut self) -> Vec<(NetHeader, Vec<u8>)> {
        let header_len = self.header_len;
        let split = |packet: Vec<u8>| {
            let mut header = [0; 12];
            header[..header_len].copy_from_slice(&packet[..header_len]);
            (NetHeader::from_bytes(header), packet[header_len..].to_vec())
        };
        self.driver.packets(header_len).into_iter().map(split).collect()
    }

    /// The packets as they would be on the wire: cut again, checksums complete.
    fn wire(&mut self) -> Vec<Vec<u8>> {
        let received = self.received();
        received.iter().flat_map(|(header, bytes)| normalise(*header, bytes)).collect()
    }
}

fn verified(mut frame: Frame) -> Frame {
    frame.meta.checksum = Checksum::Verified { levels: 1 };
    frame
}

/// The rules V1 to V10 of the behaviour reference, as far as they can be seen in a header.
fn assert_legal(header: NetHeader, bytes: &[u8], features: Features) {
    let accept = features.accept();
    let NetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers } =
        header;
    assert!(accept.csum || flags == 0, "V1");
    assert!(flags == 0 || flags == NEEDS_CSUM || flags == DATA_VALID);
    if features.header_len() == 12 {
        assert!(num_buffers == 1 || num_buffers > 1 && features.has(VIRTIO_NET_F_MRG_RXBUF), "V7");
    }
    let end = usize::from(csum_start) + usize::from(csum_offset) + 2;
    assert!(flags != NEEDS_CSUM || end <= bytes.len());
    match gso_type {
        0 => assert_eq!((hdr_len, gso_size), (0, 0), "V10"),
        1 => assert!(accept.tso4),
        4 => assert!(accept.tso6),
        0x81 => assert!(accept.tso4 && accept.ecn),
        other => panic!("type {other}"),
    }
    if gso_type != 0 {
        assert!(flags == NEEDS_CSUM && gso_size > 0 && csum_offset == 16, "V2");
        assert!(hdr_len >= csum_start + 20, "V6");
        assert!(bytes.len() > usize::from(hdr_len) + usize::from(gso_size));
    }
    if flags != NEEDS_CSUM {
        assert_eq!((csum_start, csum_offset), (0, 0), "V10");
    }
}

#[test]
fn every_set_of_features_gets_the_bytes_that_were_sent() {
    let bits = [
        VIRTIO_NET_F_MRG_RXBUF,
        VIRTIO_NET_F_GUEST_CSUM,
        VIRTIO_NET_F_GUEST_TSO4,
        VIRTIO_NET_F_GUEST_TSO6,
        VIRTIO_NET_F_GUEST_ECN,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_F_VERSION_1,
    ];
    for subset in 0..1u32 << bits.len() {
        let chosen = bits.iter().enumerate().filter(|(at, _)| subset & 1 << at != 0);
        let features = chosen.fold(Features::default(), |set, (_, bit)| set.with(*bit));
        every_kind_of_frame(features);
    }
}

fn every_kind_of_frame(features: Features) {
    let mut bench = Bench::new(features, 256, 65500);
    let mergeable = features.has(VIRTIO_NET_F_MRG_RXBUF);
    for at in 0..60u32 {
        match mergeable {
            true => bench.driver.post(&[300 + 97 * (at % 7)], WRITE),
            false => bench.driver.post(&[12, 2000 + at, 600], WRITE),
        };
    }
    let (v4, v6) = (Stream::tcp_v4(500), Stream::tcp_v6(500));
    let cwr = Stream { cwr: true, ..v4 };
    let pool = &mut bench.pool;
    let mut short = v4.frame(0, 1, pool);
    short.meta.vlan = Some(VlanTag { tpid: 0x8100, tci: 0x6123 });
    let mut tagged = v6.merged(0, 3, pool);
    tagged.meta.vlan = Some(VlanTag { tpid: 0x88a8, tci: 5 });
    let frames = vec![
        v4.frame(0, 1, pool),
        verified(v6.frame(0, 1, pool)),
        v4.partial(0, pool),
        v6.partial(0, pool),
        v4.merged(0, 4, pool),
        v6.merged(0, 4, pool),
        cwr.merged(0, 3, pool),
        short,
        tagged,
    ];
    let mut expected = vec![v4.segment(0, 1), v6.segment(0, 1), v4.segment(0, 1), v6.segment(0, 1)];
    expected.extend((0..4).map(|at| v4.segment(at, 4)));
    expected.extend((0..4).map(|at| v6.segment(at, 4)));
    expected.extend((0..3).map(|at| cwr.segment(at, 3)));
    expected.push(with_tag(&v4.segment(0, 1), [0x81, 0x00, 0x61, 0x23]));
    expected.extend((0..3).map(|at| with_tag(&v6.segment(at, 3), [0x88, 0xa8, 0, 5])));

    let delivered = bench.deliver(frames);
    assert_eq!(delivered.dropped, 0, "{features}");
    let received = bench.received();
    assert_eq!(received.len() as u64, delivered.packets);
    for (header, bytes) in &received {
        assert_legal(*header, bytes, features);
    }
    let wire: Vec<_> =
        received.iter().flat_map(|(header, bytes)| normalise(*header, bytes)).collect();
    assert_eq!(wire, expected, "{features}");

    let (accept, counters) = (features.accept(), bench.fill.counters().clone());
    let supers =
        u64::from(accept.tso4) + 2 * u64::from(accept.tso6) + u64::from(accept.tso4 && accept.ecn);
    assert_eq!((counters.supers, counters.cut), (supers, 4 - supers), "{features}");
    assert_eq!(counters.completed, if accept.csum { 0 } else { 2 });
    assert_eq!((counters.segments, counters.publishes), (expected.len() as u64, 1));
}

fn with_tag(bytes: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&bytes[..12], &tag, &bytes[12..]].concat()
}

#[test]
fn headers_say_what_is_known() {
    let mut bench = Bench::new(ALL, 16, 0);
    bench.driver.post_many(16, 2048);
    let v4 = Stream::tcp_v4(100);
    let pool = &mut bench.pool;
    let frames = vec![
        verified(v4.frame(0, 1, pool)),
        v4.frame(0, 1, pool),
        v4.partial(0, pool),
        v4.merged(0, 2, pool),
    ];
    bench.deliver(frames);
    let headers: Vec<_> = bench.received().into_iter().map(|(header, _)| header).collect();
    let nothing = NetHeader { num_buffers: 1, ..NetHeader::default() };
    let partial = NetHeader { flags: NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..nothing };
    assert_eq!(
        headers,
        [
            NetHeader { flags: DATA_VALID, ..nothing },
            nothing,
            partial,
            NetHeader { gso_type: 1, hdr_len: 66, gso_size: 100, ..partial },
        ]
    );
}

#[test]
fn all_buffers_but_the_last_are_full() {
    let mut bench = Bench::new(ALL, 64, 65530);
    for len in [100, 50, 12, 400, 2000] {
        bench.driver.post(&[len], WRITE);
    }
    let frame = Stream::tcp_v4(600).frame(0, 1, &mut bench.pool);
    let bytes = frame.to_vec();
    bench.deliver(vec![frame]);
    let lengths: Vec<_> = bench.driver.used().iter().map(|(_, len)| *len).collect();
    let total = u32::try_from(12 + bytes.len()).unwrap();
    assert_eq!(lengths, [100, 50, 12, 400, total - 562]);
    assert_eq!(bench.fill.counters().buffers, 5);
    assert_eq!(bench.fill.room().buffers, 0);
}

#[test]
fn a_frame_may_fill_its_buffers_to_the_last_byte() {
    let mut bench = Bench::new(ALL, 8, 0);
    bench.driver.post_many(2, 72);
    let frame = bench.plain(&[7; 60]);
    bench.deliver(vec![frame]);
    assert_eq!(bench.driver.used(), [(0, 72)]);
    let frame = bench.plain(&[8; 61]);
    assert_eq!(bench.deliver(vec![frame]).dropped, 1, "one byte too many for what is left");
}

#[test]
fn a_burst_is_published_once_and_called_once() {
    let mut bench = Bench::new(ALL, 64, 65520);
    bench.driver.post_many(64, 256);
    for count in [1, 8, 20] {
        let frames = (0..count).map(|_| bench.plain(&[1; 300])).collect();
        assert_eq!(bench.deliver(frames).packets, count);
    }
    let counters = bench.fill.counters();
    assert_eq!((counters.deliveries, counters.publishes), (3, 3));
    assert_eq!(bench.driver.packets(12).len(), 29);
    let nothing = bench.deliver(Vec::new());
    assert_eq!(nothing, Delivered::default());
    assert_eq!(bench.fill.counters().publishes, 3, "nothing to publish");
}

#[test]
fn a_polling_guest_never_sees_a_part_of_a_packet() {
    let mut bench = Bench::new(ALL, 256, 65000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let memory = std::sync::Arc::clone(&bench.driver.memory);
    std::thread::scope(|scope| {
        // The observer walks the used ring by the packets' num_buffers: it must arrive exactly at each
        // index that was published.
        let observer = scope.spawn(|| {
            let (mut at, mut packets) = (65000u16, 0u64);
            let load = || -> u16 {
                let used = GuestAddress(crate::driver::USED + 2);
                memory.load(used, std::sync::atomic::Ordering::Acquire).unwrap()
            };
            loop {
                let last = stop.load(std::sync::atomic::Ordering::Acquire);
                let index = load();
                while at != index {
                    let slot = u64::from(at & 255);
                    let element = GuestAddress(crate::driver::USED + 4 + 8 * slot);
                    let head: u32 = memory.read_obj(element).unwrap();
                    let head = u16::try_from(head).unwrap();
                    let header = GuestAddress(BUFFERS + u64::from(head) * STRIDE + 10);
                    let count: u16 = memory.read_obj(header).unwrap();
                    assert!(count >= 1 && index.wrapping_sub(at) >= count, "whole packets only");
                    at = at.wrapping_add(count);
                    packets += 1;
                }
                // The driver posts again only what was walked, so nothing is overwritten meanwhile.
                let seen = GuestAddress(crate::driver::TABLES);
                memory.store(at, seen, std::sync::atomic::Ordering::Release).unwrap();
                if last {
                    return packets;
                }
            }
        });
        let mut sent = 0;
        for round in 0..400 {
            let wait = bench.driver.used_index();
            while {
                let seen = GuestAddress(crate::driver::TABLES);
                let at: u16 =
                    bench.driver.memory.load(seen, std::sync::atomic::Ordering::Acquire).unwrap();
                round > 0 && at != wait
            } {
                std::hint::spin_loop();
            }
            bench.driver.used();
            let posted = bench.fill.ring.available().unwrap();
            bench.driver.post_many(256 - posted, 200);
            let frames: Vec<_> = (0..10).map(|_| bench.plain(&[3; 1500])).collect();
            sent += bench.deliver(frames).packets;
        }
        stop.store(true, std::sync::atomic::Ordering::Release);
        assert_eq!(observer.join().unwrap(), sent);
        assert_eq!(sent, 4000);
    });
}

#[test]
fn without_room_frames_are_dropped_and_counted() {
    for features in [ALL, ALL.without(VIRTIO_NET_F_MRG_RXBUF)] {
        let mut bench = Bench::new(features, 8, 0);
        bench.driver.post_many(2, 2048);
        let frames = (0..5).map(|_| bench.plain(&[1; 100])).collect();
        let delivered = bench.deliver(frames);
        assert_eq!((delivered.packets, delivered.dropped), (2, 3));
        assert_eq!(bench.fill.counters().drops(RxDrop::NoRoom), 3);
        bench.driver.used();
        bench.driver.post_many(8, 2048);
        let frame = bench.plain(&[2; 100]);
        assert_eq!(bench.deliver(vec![frame]).packets, 1, "it goes on when there is room");
    }
}

#[test]
fn buffers_that_come_in_the_middle_of_a_burst_are_used() {
    let mut bench = Bench::new(ALL, 8, 0);
    bench.driver.post_many(1, 64);
    bench.fill.ring.available().unwrap();
    bench.driver.post_many(2, 64);
    let frame = bench.plain(&[1; 150]);
    assert_eq!(bench.fill.put(&frame, NetHeader::default()), Ok(()));
    bench.pool.recycle(frame);
}

#[test]
fn a_super_packet_that_does_not_fit_is_delivered_in_part() {
    let mut bench = Bench::new(ALL, 8, 0);
    bench.driver.post_many(3, 700);
    let v4 = Stream::tcp_v4(500);
    let merged = v4.merged(0, 6, &mut bench.pool);
    let delivered = bench.deliver(vec![merged]);
    assert_eq!((delivered.packets, delivered.dropped), (3, 3));
    assert_eq!(bench.wire(), [v4.segment(0, 6), v4.segment(1, 6), v4.segment(2, 6)]);
    let counters = bench.fill.counters();
    assert_eq!((counters.cut, counters.drops(RxDrop::NoRoom)), (1, 3));

    let merged = v4.merged(0, 6, &mut bench.pool);
    assert_eq!(bench.deliver(vec![merged]).dropped, 6, "nothing posted: it is not even cut");
    assert_eq!(bench.fill.counters().cut, 1);
}

#[test]
fn a_super_packet_takes_no_more_than_64_buffers() {
    let mut bench = Bench::new(ALL, 256, 0);
    bench.driver.post_many(200, 100);
    let v4 = Stream::tcp_v4(400);
    // 66 bytes of headers, 12 of packet header, and 6000: 61 buffers. With one more segment it is 65.
    let (small, large) = (v4.merged(0, 15, &mut bench.pool), v4.merged(0, 16, &mut bench.pool));
    bench.deliver(vec![small, large]);
    let counters = bench.fill.counters();
    assert_eq!((counters.supers, counters.cut, counters.segments), (1, 1, 31));
    assert_eq!(bench.wire().len(), 31);
}

#[test]
fn a_chain_that_is_too_small_gets_segments() {
    let mut bench = Bench::new(ALL.without(VIRTIO_NET_F_MRG_RXBUF), 16, 0);
    bench.driver.post_many(4, 1526);
    let v4 = Stream::tcp_v4(1400);
    let merged = v4.merged(0, 3, &mut bench.pool);
    let large = bench.plain(&[1; 1515]);
    let delivered = bench.deliver(vec![merged, large]);
    assert_eq!((delivered.packets, delivered.dropped), (3, 1));
    assert_eq!(bench.fill.counters().drops(RxDrop::TooLong), 1);
    assert_eq!(bench.wire(), [v4.segment(0, 3), v4.segment(1, 3), v4.segment(2, 3)]);
    assert_eq!(bench.fill.room().buffers, 1, "the chain it did not fit stays for another");
}

#[test]
fn no_buffers_for_segments_is_a_counted_drop() {
    let mut bench = Bench::new(ALL.without(VIRTIO_NET_F_GUEST_TSO4), 16, 0);
    bench.driver.post_many(16, 2048);
    bench.pool = Pool::new(5, 2048);
    let merged = Stream::tcp_v4(100).merged(0, 4, &mut bench.pool);
    assert_eq!(bench.deliver(vec![merged]).dropped, 4);
    assert_eq!(bench.fill.counters().drops(RxDrop::NoBuffers), 4);
}

#[test]
fn a_foreign_super_packet_is_checked() {
    let mut bench = Bench::new(ALL, 64, 0);
    bench.driver.post_many(64, 2048);
    let v4 = Stream::tcp_v4(100);
    let foreign = |change: &dyn Fn(&mut Frame), bench: &mut Bench| {
        let mut frame = v4.merged(0, 2, &mut bench.pool);
        frame.meta.gso.as_mut().unwrap().trusted = false;
        change(&mut frame);
        bench.deliver(vec![frame]);
        bench.received().iter().map(|(header, _)| header.gso_type).collect::<Vec<_>>()
    };
    assert_eq!(foreign(&|_| (), &mut bench), [1], "honest ones are handed on");
    let gso = |frame: &mut Frame, change: &dyn Fn(&mut Gso)| {
        change(frame.meta.gso.as_mut().unwrap());
    };
    // Wrong in what is said beside the bytes: cut by the bytes.
    let cut = [0, 0];
    let layout = |layout: Layout| move |frame: &mut Frame| frame.meta.layout = layout;
    let right = Layout { network: 14, transport: 34, payload: 66 };
    assert_eq!(foreign(&layout(Layout { payload: 65, ..right }), &mut bench), cut);
    assert_eq!(foreign(&layout(Layout { network: 15, ..right }), &mut bench), cut);
    assert_eq!(foreign(&layout(Layout { transport: 35, ..right }), &mut bench), cut);
    assert_eq!(foreign(&layout(Layout { payload: u16::MAX, ..right }), &mut bench), cut);
    assert_eq!(foreign(&|frame| gso(frame, &|gso| gso.segments = 3), &mut bench), cut);
    // The kind is a lie: there is no way to cut it by that kind.
    let before = bench.fill.counters().drops(RxDrop::Malformed);
    assert!(foreign(&|frame| gso(frame, &|gso| gso.kind = GsoKind::TcpV6), &mut bench).is_empty());
    assert!(foreign(&|frame| gso(frame, &|gso| gso.size = 0), &mut bench).is_empty());
    assert!(bench.fill.counters().drops(RxDrop::Malformed) > before);
    // One segment only: no super-packet at all.
    assert_eq!(foreign(&|frame| gso(frame, &|gso| gso.size = 200), &mut bench), [0]);
}

#[test]
fn a_partial_checksum_outside_the_frame_is_not_handed_on() {
    for features in [ALL, Features::new(1 << VIRTIO_F_VERSION_1)] {
        let mut bench = Bench::new(features, 8, 0);
        bench.driver.post_many(8, 2048);
        for (start, offset) in [(59, 0), (40, 20), (60, 16), (u16::MAX, u16::MAX), (u16::MAX, 0)] {
            let mut frame = bench.plain(&[1; 60]);
            frame.meta.checksum = Checksum::Partial { start, offset };
            assert_eq!(bench.deliver(vec![frame]).dropped, 1, "{start}+{offset}");
        }
        assert_eq!(bench.fill.counters().drops(RxDrop::Malformed), 5);
    }
}

#[test]
fn a_runt_is_dropped() {
    let mut bench = Bench::new(ALL, 8, 0);
    bench.driver.post_many(8, 2048);
    let frames = vec![bench.plain(&[1; 13]), bench.plain(&[]), bench.plain(&[2; 14])];
    let delivered = bench.deliver(frames);
    assert_eq!((delivered.packets, delivered.dropped), (1, 2));
    assert_eq!(bench.fill.counters().drops(RxDrop::TooShort), 2);
}

#[test]
fn room_follows_what_is_posted() {
    let mut bench = Bench::new(ALL, 64, 0);
    assert_eq!(bench.fill.room(), Room::default());
    bench.driver.post_many(10, 1000);
    assert_eq!(bench.fill.room(), Room { buffers: 10, super_limit: 5 * 1000 - 12 - 18 });
    bench.driver.post_many(54, 1000);
    assert_eq!(bench.fill.room(), Room { buffers: 64, super_limit: 17 * 1000 - 12 - 18 });
    let mut bench = Bench::new(ALL, 64, 0);
    bench.driver.post_many(64, 4096);
    assert_eq!(bench.fill.room().super_limit, 65535);
    let mut bench = Bench::new(ALL.without(VIRTIO_NET_F_MRG_RXBUF), 64, 0);
    bench.driver.post(&[12, 60_000], WRITE);
    assert_eq!(bench.fill.room(), Room { buffers: 1, super_limit: 60_000 - 18 });
}

#[test]
fn a_super_packet_of_the_limit_fits_in_half_of_what_is_posted() {
    for posted in [4, 8, 20] {
        let mut bench = Bench::new(ALL, 32, 0);
        bench.driver.post_many(posted, 1000);
        let limit = usize::try_from(bench.fill.room().super_limit).unwrap();
        let v4 = Stream::tcp_v4((limit - 52) / 8);
        let mut merged = v4.merged(0, 8, &mut bench.pool);
        merged.meta.vlan = Some(VlanTag { tpid: 0x8100, tci: 1 });
        bench.deliver(vec![merged]);
        assert_eq!(bench.fill.counters().supers, 1);
        assert!(bench.fill.counters().buffers <= u64::from(posted) / 2);
    }
}

#[test]
fn a_bad_chain_comes_back_empty_and_the_packet_is_whole() {
    let mut bench = Bench::new(ALL, 16, 65534);
    bench.driver.post(&[50], WRITE);
    let bad = bench.driver.post(&[50], WRITE);
    bench.driver.describe(bad, 0, 50, WRITE, 0);
    bench.driver.post_many(4, 50);
    let frame = bench.plain(&[5; 100]);
    assert_eq!(bench.deliver(vec![frame]).packets, 1);
    let lengths: Vec<_> = bench.driver.used().iter().map(|(_, len)| *len).collect();
    assert_eq!(lengths, [0, 0, 50, 50, 12], "in order, and the packet's buffers side by side");
    assert_eq!(bench.fill.counters().bad_chains[ChainError::Outside as usize], 1);
    assert_eq!(bench.fill.broken(), None);
}

#[test]
fn each_bad_chain_costs_itself() {
    let mut bench = Bench::new(ALL, 16, 0);
    let bads: [(u64, u32, u16, u16, ChainError); 6] = [
        (0, 100, WRITE, 0, ChainError::Outside),
        (BUFFERS, 0, WRITE, 0, ChainError::ZeroLength),
        (BUFFERS, 100, 0, 0, ChainError::Direction),
        (BUFFERS, 11, WRITE, 0, ChainError::TooShort),
        (BUFFERS, 100, WRITE | NEXT, 99, ChainError::NextOutOfRange),
        (BUFFERS, 100, WRITE | NEXT, 4, ChainError::Loop),
    ];
    for (at, (address, len, flags, next, _)) in (0u16..).zip(bads) {
        let next = if next == 4 { at } else { next };
        bench.driver.describe(at, address, len, flags, next);
        bench.driver.enter(at);
    }
    bench.driver.describe(8, BUFFERS, 100, WRITE, 0);
    bench.driver.enter(8);
    bench.driver.expose();
    let frame = bench.plain(&[5; 60]);
    assert_eq!(bench.deliver(vec![frame]).packets, 1);
    for (.., reason) in bads {
        assert_eq!(bench.fill.counters().bad_chains[reason as usize], 1, "{reason}");
    }
    assert_eq!(bench.fill.counters().bad_chains(), 6);
}

#[test]
fn a_broken_ring_drops_everything_and_stays_broken() {
    let mut bench = Bench::new(ALL, 16, 0);
    bench.driver.post_many(2, 100);
    let head = GuestAddress(AVAIL + 4 + 2);
    bench.driver.memory.write_obj(0xffffu16, head).unwrap();
    let frames = (0..3).map(|_| bench.plain(&[5; 60])).collect();
    let delivered = bench.deliver(frames);
    assert_eq!((delivered.packets, delivered.dropped), (1, 2), "what was good is delivered");
    assert_eq!(bench.driver.used(), [(0, 72)]);
    let error = RingError::HeadOutOfRange { head: 0xffff, size: 16 };
    assert_eq!(bench.fill.broken(), Some(&error));
    let merged = Stream::tcp_v4(100).merged(0, 4, &mut bench.pool);
    assert_eq!(bench.deliver(vec![merged]).dropped, 4);
    assert_eq!(bench.fill.counters().drops(RxDrop::Broken), 6);
    assert_eq!(bench.fill.room(), Room::default());
    assert_eq!((bench.fill.next_avail(), bench.fill.next_used()), (1, 1));
}

#[test]
fn an_index_jump_breaks_the_ring() {
    let mut bench = Bench::new(ALL, 16, 0);
    bench.driver.set_avail_index(17);
    let frame = bench.plain(&[5; 60]);
    assert_eq!(bench.deliver(vec![frame]).dropped, 1);
    let error = RingError::AvailJump { index: 17, next: 0, size: 16 };
    assert_eq!(bench.fill.into_ring().broken(), Some(&error));
}

#[test]
fn the_ring_asks_for_no_kicks() {
    let bench = Bench::new(ALL, 16, 0);
    assert_eq!(bench.driver.kicks().0, 1);
}
