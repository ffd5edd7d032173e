//! Packet sockets on the two ends of a veth pair.

use std::net::UdpSocket;

use packet::build::UdpFrame;
use packet::{Burst, Checksum, GsoKind, Pool, VlanTag};
use port::{Armed, End, PacketSocket, PacketSocketOptions, Port, QueuePair};

use crate::frames::{frame, receive, send, super_packet, tcp, unfinish, until, wait};
use crate::netns::NetNs;

fn open(ns: &NetNs, interface: &str, options: &PacketSocketOptions) -> QueuePair {
    ns.enter(|| PacketSocket::with_options(interface, options).unwrap().open(1).unwrap().remove(0))
}

fn both(left: &NetNs, right: &NetNs) -> (QueuePair, QueuePair) {
    let options = PacketSocketOptions::default();
    (open(left, "va", &options), open(right, "vb", &options))
}

#[test]
fn the_interface_is_described() {
    let Some((left, _right)) = NetNs::pair() else { return };
    left.ip("link set va address 02:00:00:00:00:0a mtu 9000");
    left.enter(|| {
        let mut port = PacketSocket::open("va").unwrap();
        assert_eq!(port.name(), "packet:va");
        assert_eq!((port.mac(), port.mtu()), (Some([2, 0, 0, 0, 0, 10]), Some(9000)));
        assert!(port.link().up);
        let can = port.capabilities();
        assert!(can.rx_checksum && can.rx_gso && can.tx_checksum && can.tx_tso4 && can.tx_tso6);
        assert!(port.open(2).is_err());
        assert_eq!(port.open(1).unwrap().len(), 1);
        left.ip("link set va down");
        assert!(!port.link().up);
    });
}

#[test]
fn thousands_of_frames_arrive_in_order_and_whole() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(256, 2048);
    let sizes = [0, 6, 100, 1000, 1446];
    for _ in ["there", "and back"] {
        let (from, to) = (&mut a, &mut b);
        for first in (0..5000).step_by(50) {
            let mut burst = Burst::new(50);
            for number in first..first + 50 {
                burst.push(frame(&tcp(number, sizes[number % sizes.len()]), &mut pool));
            }
            assert_eq!(from.tx.tx_burst(&mut burst, &mut pool), 50);
            let frames = receive(to, 50, &mut pool);
            assert_eq!(frames.len(), 50, "from {first}");
            for (number, frame) in (first..).zip(frames) {
                assert_eq!(frame.to_vec(), tcp(number, sizes[number % sizes.len()]));
                assert_eq!(frame.meta.gso, None);
                pool.recycle(frame);
            }
        }
        let (sent, received) = (from.tx.counters(), to.rx.counters());
        assert_eq!((sent.frames, sent.refused, received.frames), (5000, 0, 5000));
        assert_eq!(sent.bytes, received.bytes);
        assert_eq!((received.missed, received.malformed, received.too_long), (0, 0, 0));
        std::mem::swap(&mut a, &mut b);
    }
    assert_eq!(pool.available(), 256);
}

#[test]
fn super_packets_pass_whole() {
    let Some((left, right)) = NetNs::pair() else { return };
    let uso = left.enter(|| PacketSocket::open("va").unwrap().capabilities().tx_uso);
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(256, 2048);
    let kinds = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::UdpV4, GsoKind::UdpV6];
    for kind in kinds.into_iter().filter(|kind| kind.is_tcp() || uso) {
        // A short one that fits a slot of the ring, the longest, and one in between.
        for payload in [1800, 30_000, 65_000] {
            for tag in [None, Some(VlanTag { tpid: 0x8100, tci: 0x2005 })] {
                let mut sent = super_packet(kind, 1000, payload, &mut pool);
                sent.meta.vlan = tag;
                let (bytes, meta) = (sent.to_vec(), sent.meta);
                send(&mut a, sent, &mut pool);
                let mut frames = receive(&mut b, 1, &mut pool);
                let got = frames.remove(0);
                assert_eq!(got.meta, meta, "{kind:?} {payload}");
                assert!(got.to_vec() == bytes, "{kind:?} {payload} {tag:?}: other bytes");
                pool.recycle(got);
            }
        }
    }
    assert_eq!((b.rx.counters().malformed, b.rx.counters().too_long), (0, 0));
    assert_eq!(pool.available(), 256);
}

#[test]
fn tags_come_beside_the_bytes() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(64, 2048);
    // A tag in the metadata, and one that is in the bytes already: both arrive beside them.
    let tag = VlanTag { tpid: 0x8100, tci: 0x6123 };
    let plain = tcp(1, 100);
    let mut beside = frame(&plain, &mut pool);
    beside.meta.vlan = Some(tag);
    send(&mut a, beside, &mut pool);
    let inside = [&plain[..12], &[0x81, 0, 0x61, 0x23], &plain[12..]].concat();
    send(&mut a, frame(&inside, &mut pool), &mut pool);
    // The largest frame with a tag: the MTU does not count it. And one with a tag of another kind.
    let tags = [VlanTag { tpid: 0x8100, tci: 1 }, VlanTag { tpid: 0x88a8, tci: 2 }];
    let others = [tcp(2, 1460), tcp(3, 100)];
    for (tag, bytes) in tags.into_iter().zip(&others) {
        let mut sent = frame(bytes, &mut pool);
        sent.meta.vlan = Some(tag);
        send(&mut a, sent, &mut pool);
    }
    let frames = receive(&mut b, 4, &mut pool);
    for frame in &frames[..2] {
        assert_eq!((frame.meta.vlan, frame.to_vec()), (Some(tag), plain.clone()));
    }
    for (number, frame) in frames[2..].iter().enumerate() {
        assert_eq!((frame.meta.vlan, &frame.to_vec()), (Some(tags[number]), &others[number]));
    }
}

#[test]
fn partial_checksums_pass_both_ways() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(64, 2048);
    for _ in ["there", "and back"] {
        let (from, to) = (&mut a, &mut b);
        let complete = tcp(7, 700);
        let mut bytes = complete.clone();
        let (checksum, layout) = unfinish(&mut bytes);
        let mut sent = frame(&bytes, &mut pool);
        (sent.meta.checksum, sent.meta.layout) = (checksum, layout);
        send(from, sent, &mut pool);
        let mut got = receive(to, 1, &mut pool).remove(0);
        assert_eq!((got.meta.checksum, got.meta.layout, got.to_vec()), (checksum, layout, bytes));
        packet::complete_checksum(&mut got).unwrap();
        assert_eq!(got.to_vec(), complete);
        std::mem::swap(&mut a, &mut b);
    }
}

#[test]
fn the_kernel_takes_what_is_left_to_it() {
    let Some((left, right)) = NetNs::pair() else { return };
    right.ip("link set vb address 02:00:00:00:00:0b");
    right.ip("addr add 10.0.0.2/24 dev vb");
    let socket = right.enter(|| UdpSocket::bind("10.0.0.2:2000").unwrap());
    let mut a = open(&left, "va", &PacketSocketOptions::default());
    let mut pool = Pool::new(64, 2048);
    let mut datagram = UdpFrame::v4();
    datagram.link.destination = [2, 0, 0, 0, 0, 0x0b];
    datagram.ports = (1000, 2000);
    datagram.payload = &[7; 999];
    // A wrong checksum is dropped by the stack, a partial one is finished by it.
    let mut bytes = datagram.to_vec();
    bytes[41] ^= 1;
    send(&mut a, frame(&bytes, &mut pool), &mut pool);
    let mut bytes = datagram.to_vec();
    bytes[42] = 8;
    let (checksum, layout) = unfinish(&mut bytes);
    let mut sent = frame(&bytes, &mut pool);
    (sent.meta.checksum, sent.meta.layout) = (checksum, layout);
    send(&mut a, sent, &mut pool);
    let mut got = [0; 2000];
    assert_eq!(socket.recv(&mut got).unwrap(), 999);
    assert_eq!((got[0], got[1]), (8, 7));
}

#[test]
fn without_the_header_the_kernels_checksums_are_found() {
    let Some((left, right)) = NetNs::pair() else { return };
    right.ip("addr add 10.0.0.2/24 dev vb");
    right.ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev vb");
    let options = PacketSocketOptions { vnet_header: false, ..PacketSocketOptions::default() };
    let mut a = open(&left, "va", &options);
    let mut pool = Pool::new(64, 2048);
    right.enter(|| {
        let socket = UdpSocket::bind("10.0.0.2:2000").unwrap();
        socket.send_to(&[5; 300], "10.0.0.1:1000").unwrap();
    });
    let mut got = receive(&mut a, 1, &mut pool).remove(0);
    assert_eq!(got.meta.checksum, Checksum::Partial { start: 34, offset: 6 });
    packet::complete_checksum(&mut got).unwrap();
    let parsed = packet::header::parse(got.head()).unwrap();
    assert!(packet::transport_is_valid(&got, &parsed));
    // And out again, complete.
    send(&mut a, frame(&tcp(0, 10), &mut pool), &mut pool);
    assert_eq!((a.tx.counters().frames, a.tx.counters().refused), (1, 0));
}

#[test]
fn a_sleeper_is_woken_and_nothing_is_missed() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let (mut pool, mut burst) = (Pool::new(64, 2048), Burst::new(8));
    for number in 0..100 {
        assert_eq!(b.rx.arm(), Armed::Sleep);
        send(&mut a, frame(&tcp(number, 60), &mut pool), &mut pool);
        assert!(wait(b.rx.wait_fd().unwrap()));
        assert_eq!(b.rx.arm(), Armed::Pending);
        assert_eq!(b.rx.rx_burst(&mut burst, &mut pool), 1);
        burst.drain().for_each(|frame| pool.recycle(frame));
    }
}

#[test]
fn what_does_not_fit_the_ring_is_missed_and_counted() {
    let Some((left, right)) = NetNs::pair() else { return };
    let mut a = open(&left, "va", &PacketSocketOptions::default());
    let small = PacketSocketOptions { ring_bytes: 1, ..PacketSocketOptions::default() };
    let mut b = open(&right, "vb", &small);
    let mut pool = Pool::new(256, 2048);
    for number in 0..100 {
        send(&mut a, frame(&tcp(number, 60), &mut pool), &mut pool);
    }
    let missed = until(|| {
        b.rx.arm();
        b.rx.counters().missed == 68
    });
    assert!(missed, "{:?}", b.rx.counters());
    let frames = receive(&mut b, 32, &mut pool);
    assert_eq!(frames.len(), 32);
    assert_eq!(frames[31].to_vec(), tcp(31, 60));
}

#[test]
fn frames_stay_in_the_ring_while_there_are_no_buffers() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(128, 2048);
    let long = super_packet(GsoKind::TcpV4, 1448, 30_000, &mut pool);
    let bytes = long.to_vec();
    send(&mut a, long, &mut pool);
    send(&mut a, frame(&tcp(1, 100), &mut pool), &mut pool);
    assert!(wait(b.rx.wait_fd().unwrap()));
    let mut few = Pool::new(20, 2048);
    let held = few.take().unwrap();
    let frames = (0..6).map(|_| few.take().unwrap()).collect::<Vec<_>>();
    let mut burst = Burst::new(8);
    assert_eq!(b.rx.rx_burst(&mut burst, &mut few), 0);
    few.give(held);
    frames.into_iter().for_each(|buffer| few.give(buffer));
    let frames = receive(&mut b, 2, &mut few);
    assert!(frames[0].to_vec() == bytes);
    assert_eq!(frames[1].to_vec(), tcp(1, 100));
    assert_eq!(b.rx.counters().no_buffer, 0);
}

#[test]
fn a_frame_too_long_for_the_interface_is_refused_alone() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let (mut pool, mut burst) = (Pool::new(64, 2048), Burst::new(8));
    for payload in [100, 1500, 200] {
        burst.push(frame(&tcp(0, payload), &mut pool));
    }
    assert_eq!(a.tx.tx_burst(&mut burst, &mut pool), 3);
    assert_eq!((a.tx.counters().frames, a.tx.counters().refused), (2, 1));
    let frames = receive(&mut b, 2, &mut pool);
    assert_eq!(frames[1].to_vec(), tcp(0, 200));
}

#[test]
fn an_interface_that_goes_down_comes_back() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(64, 2048);
    right.ip("link set vb down");
    assert!(matches!(b.rx.arm(), Armed::Sleep));
    assert_eq!(b.rx.end(), None);
    // Sending on an interface that is down loses the frame, as a cable does.
    send(&mut b, frame(&tcp(1, 100), &mut pool), &mut pool);
    assert_eq!(b.tx.counters().refused, 1);
    // So does sending to it, and the sender is not held up for ever.
    let mut burst = Burst::new(8);
    (0..8).for_each(|number| burst.push(frame(&tcp(number, 100), &mut pool)));
    for _ in 0..5000 {
        a.tx.tx_burst(&mut burst, &mut pool);
    }
    println!("{:?}", a.tx.counters());
    assert_eq!((burst.len(), pool.available()), (0, 64));
    right.ip("link set vb up");
    assert!(until(|| {
        send(&mut a, frame(&tcp(2, 100), &mut pool), &mut pool);
        let mut burst = Burst::new(64);
        let count = b.rx.rx_burst(&mut burst, &mut pool);
        burst.drain().for_each(|frame| pool.recycle(frame));
        count > 0
    }));
    assert_eq!(b.rx.end(), None);
}

#[test]
fn an_interface_that_is_deleted_ends_the_port() {
    let Some((left, right)) = NetNs::pair() else { return };
    let (mut a, mut b) = both(&left, &right);
    let mut pool = Pool::new(64, 2048);
    assert_eq!(b.rx.arm(), Armed::Sleep);
    left.ip("link del va");
    // The sleeper is woken, and told why.
    assert!(wait(b.rx.wait_fd().unwrap()));
    assert!(until(|| b.rx.arm() == Armed::Unsupported));
    assert_eq!(b.rx.end(), Some(&End::Failed("interface 'vb' is gone".to_owned())));
    // One that polls and never sleeps learns it too.
    let mut burst = Burst::new(8);
    let mut polls = 0;
    while a.rx.end().is_none() && polls < 1_000_000 {
        assert_eq!(a.rx.rx_burst(&mut burst, &mut pool), 0);
        polls += 1;
    }
    assert_eq!(a.rx.end(), Some(&End::Failed("interface 'va' is gone".to_owned())));
    send(&mut a, frame(&tcp(1, 100), &mut pool), &mut pool);
    assert_eq!((a.tx.counters().frames, a.tx.counters().refused), (0, 1));
    assert_eq!(pool.available(), 64);
}

#[test]
fn what_is_wrong_with_the_interface_is_said() {
    let Some(ns) = NetNs::new() else { return };
    ns.enter(|| {
        let error = PacketSocket::open("eth9").unwrap_err().to_string();
        assert!(error.contains("interface 'eth9' does not exist: `ip link` lists"), "{error}");
    });
}
