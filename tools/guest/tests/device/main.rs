//! The guest against a small device: features, layouts, lawful traffic, and each way of breaking the
//! rules noticed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backend;
mod program;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use backend::{Delivery, Device, Fault};
use guest::features::*;
use guest::header::{DATA_VALID, GSO_TCPV4, NEEDS_CSUM};
use guest::{Call, Config, Connect, Guest, MessageOrder, NetHeader, Poll, Stopped, Violation};

/// All that the device understands.
const OFFERED: u64 = DEFAULT & !(GUEST_USO4 | GUEST_USO6 | HOST_USO);

/// An Ethernet frame of a protocol that nobody parses.
fn plain(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    bytes.extend((0..len - 14).map(|i| seed.wrapping_add(u8::try_from(i % 255).unwrap())));
    bytes
}

/// A merged TCP packet of IPv4 with its header.
fn merged(payload: usize) -> (NetHeader, Vec<u8>) {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0];
    let len = u16::try_from(40 + payload).unwrap();
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 1, 0]);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0]);
    let sum = packet::checksum::pseudo_header_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, len - 20);
    bytes.extend(sum.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|i| u8::try_from(i % 253).unwrap()));
    let header = NetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        ..Default::default()
    };
    (header, bytes)
}

/// A device that answers each frame with itself.
fn echo(features: u64, connections: usize) -> Device {
    Device::new(features, connections, |header, frame| vec![Delivery::lawful(header, &frame)])
}

fn to(device: &Device) -> Config {
    let mut config = Config::new(Connect::Path(device.path.clone()));
    config.features = OFFERED;
    config
}

/// Polls until so many packets have come. They are few, so a device that stays silent is seen soon.
fn take(guest: &mut Guest, count: usize) -> Vec<(NetHeader, Vec<u8>)> {
    let mut packets = Vec::new();
    for _ in 0..5000 {
        guest.poll_rx(|received| packets.push((received.header, received.bytes.to_vec())));
        if packets.len() >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    packets
}

fn lawful(guest: &Guest) {
    assert_eq!(guest.violations().first(), &[] as &[String]);
    assert_eq!(guest.violations().total(), 0);
}

/// Sends frames of many sizes and wants each back, whatever the guest is like.
fn round_trips(config: Config) -> Guest {
    let mut guest = Guest::connect(config).unwrap();
    round_trips_of(&mut guest);
    guest
}

fn round_trips_of(guest: &mut Guest) {
    for (seed, len) in (0u8..).zip([14, 60, 61, 1000, 1514]) {
        let frame = plain(len, seed);
        assert!(guest.send(NetHeader::default(), &frame));
        let packets = take(guest, 1);
        assert_eq!(packets.len(), 1, "of {len} bytes");
        assert_eq!(packets[0].1, frame);
    }
    let frames: Vec<_> = (0..20).map(|seed| plain(200, seed)).collect();
    let batch = frames.iter().map(|frame| (NetHeader::default(), frame.as_slice()));
    assert_eq!(guest.send_all(0, batch), 20);
    let packets: Vec<_> = take(guest, 20).into_iter().map(|packet| packet.1).collect();
    assert_eq!(packets, frames);
    lawful(guest);
}

#[test]
fn frames_come_back_under_every_front_end_the_crate_understands() {
    for order in [MessageOrder::Plain, MessageOrder::CloudHypervisor, MessageOrder::Uml] {
        let device = echo(OFFERED, 1);
        let guest = round_trips(to(&device).under(order));
        assert_eq!(guest.acked(), OFFERED, "{order:?}");
        let net = guest.net_config().unwrap();
        assert_eq!((net.mac, net.status, net.mtu), ([2, 0, 0, 0, 0, 7], 1, 1500));
    }
}

#[test]
fn frames_come_back_with_any_layout() {
    let features = [
        OFFERED,
        OFFERED & !MRG_RXBUF,
        OFFERED & !EVENT_IDX,
        OFFERED & !INDIRECT_DESC,
        OFFERED & !(CSUM | GUEST_CSUM),
        VERSION_1,
    ];
    for (number, features) in features.into_iter().enumerate() {
        for regions in [1, 3] {
            let device = echo(OFFERED, 1);
            let mut config = to(&device);
            config.features = features;
            config.regions = regions;
            config.rx_chain = if number % 2 == 0 { 1 } else { 4 };
            config.tx_chain = [1, 2, 5][number % 3];
            config.tx_indirect = number % 2 == 0;
            config.queue_size = [32, 256][number % 2];
            round_trips(config);
        }
    }
}

#[test]
fn a_legacy_guest_has_a_shorter_header() {
    let device = echo(OFFERED, 1);
    let mut config = to(&device);
    config.features = PROTOCOL_FEATURES;
    config.exact_features = true;
    let guest = round_trips(config);
    assert_eq!(guest.acked(), PROTOCOL_FEATURES);
}

#[test]
fn a_merged_packet_over_many_buffers_is_one() {
    let device = echo(OFFERED, 1);
    let mut config = to(&device);
    config.queue_size = 64;
    let mut guest = Guest::connect(config).unwrap();
    let (header, frame) = merged(60_000);
    for _ in 0..10 {
        assert!(guest.send(header, &frame));
        let packets = take(&mut guest, 1);
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].0.num_buffers, 30);
        assert!(packets[0].1 == frame);
    }
    let stats = guest.stats();
    assert_eq!((stats.rx.packets, stats.rx.buffers), (10, 300));
    assert_eq!((stats.rx.segments, stats.tx.segments), (420, 420));
    assert_eq!(stats.rx.bytes, 10 * frame.len() as u64);
    lawful(&guest);
}

#[test]
fn counting_only_counts_the_same() {
    let device = echo(OFFERED, 1);
    let mut guest = Guest::connect(to(&device)).unwrap();
    let (header, large) = merged(20_000);
    let small = plain(100, 1);
    let (mut sent, mut taken) = (0, 0);
    // Often enough for the index of the receive ring to wrap.
    for _ in 0..7000 {
        let batch = [(header, large.as_slice()), (NetHeader::default(), small.as_slice())];
        sent += guest.send_all(0, batch);
        for _ in 0..5000 {
            taken += guest.poll_rx_fast();
            if taken == sent {
                break;
            }
            std::thread::yield_now();
        }
    }
    assert_eq!((sent, taken), (14_000, 14_000));
    let sent = 14_000;
    let stats = guest.stats();
    assert_eq!(stats.rx.packets, sent);
    assert_eq!(stats.rx.segments, sent / 2 * 15);
    assert_eq!(stats.rx.bytes, sent / 2 * (large.len() + small.len()) as u64);
    assert_eq!(stats.rx.buffers, sent / 2 * 11);
    assert_eq!(stats.tx.packets, sent);
    lawful(&guest);
}

#[test]
fn a_guest_that_polls_is_not_called_and_one_that_sleeps_is() {
    for event_idx in [0, EVENT_IDX] {
        for call in [Call::Event, Call::Pipe] {
            let device = echo(OFFERED, 1);
            let mut config = to(&device);
            config.features = OFFERED & !EVENT_IDX | event_idx;
            config.call = call;
            config.poll = Poll::Wait;
            let mut guest = Guest::connect(config).unwrap();
            assert!(!guest.wait(Duration::from_millis(1)).unwrap());
            for seed in 0..5 {
                assert!(guest.send(NetHeader::default(), &plain(100, seed)));
                assert!(guest.wait(Duration::from_secs(20)).unwrap(), "called, or there already");
                assert_eq!(take(&mut guest, 1)[0].1, plain(100, seed));
            }
            // Nothing comes while the device may not look.
            let calls = device.seen.calls.load(Ordering::Relaxed);
            guest.stop_queue(1).unwrap();
            assert!(guest.send(NetHeader::default(), &plain(100, 9)));
            assert!(!guest.wait(Duration::from_millis(20)).unwrap());
            guest.start_queue(1).unwrap();
            assert!(guest.wait(Duration::from_secs(20)).unwrap());
            assert_eq!(take(&mut guest, 1).len(), 1);
            assert!(device.seen.calls.load(Ordering::Relaxed) <= calls + 1);
            // And never called while it polls. The message is answered when the device is done.
            guest.read_net_config().unwrap();
            let calls = device.seen.calls.load(Ordering::Relaxed);
            for seed in 0..5 {
                assert!(guest.send(NetHeader::default(), &plain(100, seed)));
                assert_eq!(take(&mut guest, 1).len(), 1);
            }
            guest.read_net_config().unwrap();
            assert_eq!(device.seen.calls.load(Ordering::Relaxed), calls);
            assert_eq!(guest.stats().rx.interrupts, calls);
            lawful(&guest);
        }
    }
}

#[test]
fn a_header_that_was_not_acked_is_not_sent() {
    let device = echo(OFFERED, 1);
    let mut config = to(&device);
    config.features = OFFERED & !HOST_TSO4;
    let mut guest = Guest::connect(config).unwrap();
    let (header, frame) = merged(4000);
    assert!(!guest.send(header, &frame));
    assert_eq!(guest.stats().tx.refused, 1);
    assert!(guest.send_unchecked(0, header, &frame));
    assert_eq!(take(&mut guest, 1).len(), 1);
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    let device = echo(OFFERED, 1);
    let mut config = to(&device);
    config.queue_size = 8;
    let mut guest = Guest::connect(config).unwrap();
    guest.stop_queue(1).unwrap();
    let frame = plain(60, 1);
    let batch = vec![(NetHeader::default(), frame.as_slice()); 9];
    assert_eq!(guest.send_all(0, batch), 8);
    assert_eq!(guest.stats().tx.full, 1);
    assert_eq!(guest.reap_tx(), 8);
    guest.start_queue(1).unwrap();
    assert_eq!(take(&mut guest, 8).len(), 8);
    assert!(guest.send(NetHeader::default(), &frame));
    lawful(&guest);
}

/// What the guest says of one delivery with a fault.
fn fault(features: u64, fault: Fault, expected: Violation) {
    let (header, frame) = merged(3000);
    let header = if features & GUEST_TSO4 == 0 { NetHeader::default() } else { header };
    let answer = Mutex::new(vec![Delivery { header, frame, fault }]);
    let device = Device::new(OFFERED, 1, move |header, frame| {
        // The first frame is answered by the fault, the others by themselves.
        answer
            .lock()
            .unwrap()
            .pop()
            .map_or_else(|| vec![Delivery::lawful(header, &frame)], |delivery| vec![delivery])
    });
    let mut config = to(&device);
    config.features = features;
    config.mtu = Some(9000);
    let mut guest = Guest::connect(config).unwrap();
    assert!(guest.send(NetHeader::default(), &plain(60, 0)));
    for _ in 0..5000 {
        guest.poll_rx(|_| ());
        if guest.violations().total() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = &guest.violations().first()[0];
    assert!(first.starts_with(&expected.to_string()), "{first} instead of {expected}");
    assert_eq!(guest.stats().rx.violations, guest.violations().total());
}

#[test]
fn every_ring_fault_is_noticed() {
    fault(OFFERED, Fault::NumBuffers(0), Violation::NumBuffers);
    fault(OFFERED, Fault::NumBuffers(9), Violation::Straddles);
    fault(OFFERED & !MRG_RXBUF, Fault::NumBuffers(2), Violation::NumBuffers);
    fault(OFFERED & !MRG_RXBUF, Fault::NumBuffers(0), Violation::NumBuffers);
    fault(OFFERED, Fault::Id(9999), Violation::UsedId);
    fault(OFFERED, Fault::Id(70_000), Violation::UsedId);
    fault(OFFERED & !MRG_RXBUF, Fault::Len(70_000), Violation::UsedTooLong);
    fault(OFFERED & !MRG_RXBUF, Fault::Len(11), Violation::UsedTooShort);
    fault(OFFERED & !MRG_RXBUF, Fault::Len(0), Violation::UsedTooShort);
    fault(OFFERED, Fault::Gap(1), Violation::BufferNotFull);
    fault(OFFERED, Fault::Ahead(300), Violation::UsedIndex);
}

#[test]
fn a_used_element_twice_is_noticed() {
    let (header, frame) = merged(3000);
    let twice = Delivery { header, frame, fault: Fault::Id(0) };
    let device = Device::new(OFFERED, 1, move |_, _| vec![twice.clone()]);
    let mut guest = Guest::connect(to(&device)).unwrap();
    assert!(guest.send(NetHeader::default(), &plain(60, 0)));
    assert_eq!(take(&mut guest, 1).len(), 1);
    assert_eq!(guest.violations().count(Violation::UsedId), 1);
}

#[test]
fn a_packet_published_in_parts_is_noticed_once_and_then_taken() {
    let barrier = Arc::new(Barrier::new(2));
    let (header, frame) = merged(5000);
    let delivery = Delivery { header, frame, fault: Fault::Straddle(Arc::clone(&barrier)) };
    let device = Device::new(OFFERED, 1, move |_, _| vec![delivery.clone()]);
    let mut guest = Guest::connect(to(&device)).unwrap();
    assert!(guest.send(NetHeader::default(), &plain(60, 0)));
    barrier.wait();
    assert_eq!(guest.poll_rx(|_| ()), 0);
    assert_eq!(guest.poll_rx(|_| ()), 0);
    barrier.wait();
    assert_eq!(take(&mut guest, 1)[0].1, merged(5000).1);
    assert_eq!(guest.violations().count(Violation::Straddles), 1);
    assert_eq!(guest.violations().total(), 1);
}

#[test]
fn a_header_fault_is_noticed_and_the_packet_handed_out() {
    let stray = NetHeader { flags: DATA_VALID, csum_start: 34, ..Default::default() };
    let device = Device::new(OFFERED, 1, move |_, frame| vec![Delivery::lawful(stray, &frame)]);
    let mut guest = Guest::connect(to(&device)).unwrap();
    assert!(guest.send(NetHeader::default(), &plain(60, 0)));
    let mut verdict = None;
    for _ in 0..5000 {
        if guest.poll_rx(|received| verdict = received.violation) > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(verdict, Some(Violation::StrayField));
}

#[test]
fn a_back_end_that_comes_back_finds_the_rings_as_they_were() {
    let device = echo(OFFERED, 3);
    let mut guest = round_trips(to(&device));
    for _ in 0..2 {
        device.crash();
        for _ in 0..5000 {
            if !guest.is_connected() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!guest.is_connected());
        // Sent while nobody is there, and delivered to the next.
        assert!(guest.send(NetHeader::default(), &plain(300, 9)));
        guest.reconnect().unwrap();
        assert!(guest.is_connected());
        assert_eq!(take(&mut guest, 1)[0].1, plain(300, 9));
        round_trips_of(&mut guest);
    }
}

#[test]
fn a_driver_loaded_anew_may_choose_other_features() {
    for order in [MessageOrder::Plain, MessageOrder::CloudHypervisor] {
        let device = echo(OFFERED, 1);
        let mut guest = round_trips(to(&device).under(order));
        for features in [VERSION_1, OFFERED & !MRG_RXBUF, OFFERED] {
            let stopped = guest.reload(Some(features)).unwrap();
            assert_eq!(stopped.len(), 2);
            assert!(stopped.iter().all(Stopped::is_clean), "{stopped:?}");
            assert_eq!(guest.acked(), consistent(features | PROTOCOL_FEATURES));
            round_trips_of(&mut guest);
        }
    }
}

#[test]
fn a_back_end_may_come_to_the_guest() {
    let device = Device::client(OFFERED, |header, frame| vec![Delivery::lawful(header, &frame)]);
    let mut config = to(&device);
    config.connect = Connect::Listen(device.path.clone());
    let guest = round_trips(config);
    drop(guest);
    assert!(!device.path.exists());
}

#[test]
fn what_can_not_be_is_said() {
    let nowhere = tempfile::tempdir().unwrap();
    let mut config = Config::new(Connect::Path(nowhere.path().join("net.sock")));
    config.attempts = 2;
    assert!(matches!(Guest::connect(config), Err(guest::Error::Connect { .. })));

    let device = echo(OFFERED, 1);
    let mut config = to(&device).under(MessageOrder::CloudHypervisor);
    config.queue_pairs = 2;
    let error = Guest::connect(config).unwrap_err();
    assert!(error.to_string().contains("answers 2 rings"), "{error}");

    let mut config = Config::new(Connect::Path(nowhere.path().join("net.sock")));
    config.queue_size = 100;
    assert!(matches!(Guest::connect(config), Err(guest::Error::Config(_))));
}
