//! Taps: made, found, refused, and deleted under way.

use std::net::UdpSocket;

use packet::build::UdpFrame;
use packet::{Burst, Checksum, Pool, VlanTag};
use port::{Armed, End, Port, QueuePair, Tap};

use crate::frames::{frame, receive, send, unfinish, until, wait};
use crate::netns::NetNs;

/// A namespace with a tap of ours in it that the stack has an address on.
fn tap() -> Option<(NetNs, QueuePair)> {
    let ns = NetNs::new()?;
    let pair = ns.enter(|| Tap::open("vm0").unwrap().open(1).unwrap().remove(0));
    ns.ip("link set vm0 address 02:00:00:00:00:0b up");
    ns.ip("addr add 10.0.0.2/24 dev vm0");
    ns.ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev vm0");
    Some((ns, pair))
}

#[test]
fn a_tap_is_made_and_goes_with_the_port() {
    let Some(ns) = NetNs::new() else { return };
    ns.enter(|| {
        let port = Tap::open("vm0").unwrap();
        assert_eq!((port.name(), port.mac(), port.mtu()), ("tap:vm0", None, Some(1500)));
        assert!(!port.link().up);
        ns.ip("link set vm0 up");
        assert!(port.link().up);
        let can = port.capabilities();
        assert!(can.rx_gso && can.tx_checksum && can.tx_tso4 && can.tx_tso6);
        let error = Tap::open("vm0").unwrap_err().to_string();
        assert!(error.contains("in use by another process"), "{error}");
        drop(port);
        assert!(Tap::open("vm0").is_ok());
    });
}

#[test]
fn an_existing_tap_is_used() {
    let Some(ns) = NetNs::new() else { return };
    ns.ip("tuntap add t0 mode tap");
    ns.ip("tuntap add t1 mode tap multi_queue");
    ns.enter(|| {
        for name in ["t0", "t1"] {
            drop(Tap::open(name).unwrap());
        }
        let error = Tap::open("lo").unwrap_err().to_string();
        assert!(error.contains("'lo' is no tap interface"), "{error}");
    });
    // They outlive the port.
    ns.ip("link show t0");
    ns.ip("link show t1");
}

#[test]
fn datagrams_pass_both_ways() {
    let Some((ns, mut pair)) = tap() else { return };
    let mut pool = Pool::new(64, 2048);
    let socket = ns.enter(|| UdpSocket::bind("10.0.0.2:2000").unwrap());
    for number in 0..200u8 {
        let mut datagram = UdpFrame::v4();
        datagram.link.destination = [2, 0, 0, 0, 0, 0x0b];
        datagram.ports = (1000, 2000);
        let payload = [number; 700];
        datagram.payload = &payload;
        let mut bytes = datagram.to_vec();
        let (checksum, layout) = unfinish(&mut bytes);
        let mut sent = frame(&bytes, &mut pool);
        (sent.meta.checksum, sent.meta.layout) = (checksum, layout);
        send(&mut pair, sent, &mut pool);
        let mut got = [0; 1000];
        let (count, from) = socket.recv_from(&mut got).unwrap();
        assert_eq!(&got[..count], payload);
        socket.send_to(&got[..count], from).unwrap();
        let mut back = receive(&mut pair, 1, &mut pool).remove(0);
        assert_eq!(back.meta.checksum, Checksum::Partial { start: 34, offset: 6 });
        packet::complete_checksum(&mut back).unwrap();
        let parsed = packet::header::parse(back.head()).unwrap();
        assert!(packet::transport_is_valid(&back, &parsed));
        assert_eq!(&back.to_vec()[42..], payload);
        pool.recycle(back);
    }
    assert_eq!((pair.tx.counters().frames, pair.rx.counters().frames), (200, 200));
    assert_eq!(pool.available(), 64);
}

#[test]
fn a_tag_beside_the_bytes_is_put_into_them() {
    let Some((ns, mut pair)) = tap() else { return };
    ns.ip("link set vm0 promisc on");
    let mut pool = Pool::new(64, 2048);
    let listener = ns.enter(|| port::PacketSocket::open("vm0").unwrap().open(1).unwrap().remove(0));
    let mut listener = listener;
    let plain = UdpFrame { payload: &[1; 100], ..UdpFrame::v4() }.to_vec();
    let mut tagged = frame(&plain, &mut pool);
    tagged.meta.vlan = Some(VlanTag { tpid: 0x8100, tci: 77 });
    send(&mut pair, tagged, &mut pool);
    let got = receive(&mut listener, 1, &mut pool).remove(0);
    assert_eq!((got.meta.vlan, got.to_vec()), (Some(VlanTag { tpid: 0x8100, tci: 77 }), plain));
}

#[test]
fn a_sleeper_is_woken_and_a_frame_that_is_none_is_refused() {
    let Some((ns, mut pair)) = tap() else { return };
    let mut pool = Pool::new(64, 2048);
    let socket = ns.enter(|| UdpSocket::bind("10.0.0.2:2000").unwrap());
    assert_eq!(pair.rx.arm(), Armed::Sleep);
    socket.send_to(&[1; 10], "10.0.0.1:1000").unwrap();
    assert!(wait(pair.rx.wait_fd().unwrap()));
    assert_eq!(pair.rx.arm(), Armed::Pending);
    assert_eq!(receive(&mut pair, 1, &mut pool).len(), 1);
    assert_eq!(pair.rx.arm(), Armed::Sleep);
    send(&mut pair, frame(&[1; 13], &mut pool), &mut pool);
    assert_eq!((pair.tx.counters().frames, pair.tx.counters().refused), (0, 1));
}

#[test]
fn a_tap_that_is_deleted_ends_the_port() {
    let Some((ns, mut pair)) = tap() else { return };
    let (mut pool, mut burst) = (Pool::new(64, 2048), Burst::new(8));
    ns.ip("link del vm0");
    assert!(wait(pair.rx.wait_fd().unwrap()));
    assert!(until(|| {
        pair.rx.rx_burst(&mut burst, &mut pool);
        pair.rx.end().is_some()
    }));
    let reason = "tap interface 'vm0' is gone".to_owned();
    assert_eq!(pair.rx.end(), Some(&End::Failed(reason)));
    assert_eq!(pair.rx.arm(), Armed::Unsupported);
    send(&mut pair, frame(&[1; 60], &mut pool), &mut pool);
    assert_eq!((pair.tx.counters().refused, pair.tx.counters().full), (1, 0));
}
