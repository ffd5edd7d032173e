//! The whole backend against the built-in guest, under every kind of front end: what is sent arrives,
//! byte by byte, whatever was negotiated and however often either side comes and goes.

mod lab;

use std::io::Read;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use guest::{Connect, Guest, MessageOrder, features};
use lab::{Lab, guest_frames, settle};
use traffic::StreamConfig;
use vhost_user_gro::daemon::Endpoint;

const FRAMES: u64 = 3000;

/// Held by whoever counts the descriptors of this process; everybody else shares it.
static DESCRIPTORS: RwLock<()> = RwLock::new(());

fn share() -> RwLockReadGuard<'static, ()> {
    DESCRIPTORS.read().unwrap_or_else(PoisonError::into_inner)
}

fn one_flow(ipv6: bool) -> StreamConfig {
    let payload = if ipv6 { 1428 } else { 1448 };
    StreamConfig { flows: 1, payload, ipv6, ..StreamConfig::default() }
}

/// Traffic both ways; how many packets the guest was handed.
fn exchange(lab: &Lab, guest: &mut Guest, streams: &StreamConfig) -> u64 {
    let before = guest.stats().rx.packets;
    lab.receive(guest, &mut lab.checker(), FRAMES);
    let merge =
        if guest.acked() & (features::HOST_TSO4 | features::HOST_TSO6) != 0 { 30 } else { 1 };
    let merge = match (streams.ipv6, guest.acked()) {
        (true, acked) if acked & features::HOST_TSO6 == 0 => 1,
        (false, acked) if acked & features::HOST_TSO4 == 0 => 1,
        _ => merge,
    };
    let frames = guest_frames(streams, 600, merge);
    let summary = lab.send(guest, &frames, 600);
    assert_eq!((summary.packets, summary.lost_bytes), (600, 0));
    assert_eq!(guest.violations().total(), 0, "{:?}", guest.violations());
    guest.stats().rx.packets - before
}

#[test]
fn every_kind_of_front_end_is_served() {
    let _shared = share();
    for order in
        [MessageOrder::Plain, MessageOrder::Qemu, MessageOrder::CloudHypervisor, MessageOrder::Uml]
    {
        for ipv6 in [false, true] {
            let streams = one_flow(ipv6);
            let lab = Lab::new(streams.clone(), &[]);
            let mut guest = Guest::connect(lab.config().under(order)).unwrap();
            let packets = exchange(&lab, &mut guest, &streams);
            assert!(packets < FRAMES / 4, "{order:?}: {packets} packets for {FRAMES}: not merged");
            drop(guest);
            let stats = lab.stop();
            assert_eq!((stats.fill.dropped(), stats.drain.dropped()), (0, 0), "{order:?}");
            assert_eq!(stats.buffers.0, stats.buffers.1, "{order:?}: buffers are missing");
        }
    }
}

#[test]
fn whatever_is_not_offered_the_bytes_arrive() {
    let _shared = share();
    for disabled in [
        "csum",
        "guest_csum",
        "guest_tso4",
        "guest_tso6",
        "guest_ecn",
        "host_tso4",
        "host_tso6",
        "host_ecn",
        "mrg_rxbuf",
        "event_idx",
        "indirect_desc",
        "in_order",
        "mac",
        "mtu",
        "status",
    ] {
        let ipv6 = disabled.ends_with('6');
        let streams = one_flow(ipv6);
        let lab = Lab::new(streams.clone(), &[disabled]);
        let mut guest = Guest::connect(lab.config()).unwrap();
        let packets = exchange(&lab, &mut guest, &streams);
        let merges = !matches!(disabled, "guest_csum" | "guest_tso4" | "guest_tso6");
        assert_eq!(packets < FRAMES / 2, merges, "without {disabled}: {packets} packets");
        assert_eq!(lab.stop().fill.dropped(), 0, "without {disabled}");
    }
}

#[test]
fn the_channel_for_requests_stays_open() {
    let _shared = share();
    let lab = Lab::new(one_flow(false), &[]);
    let mut guest = Guest::connect(lab.config().under(MessageOrder::Uml)).unwrap();
    lab.receive(&mut guest, &mut lab.checker(), 10);
    let mut channel = guest.backend_channel().expect("BACKEND_REQ is negotiated");
    channel.set_nonblocking(true).unwrap();
    // UML takes the end of this channel for the end of the device.
    let error = channel.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_guest_that_negotiates_nothing_gets_plain_frames() {
    let _shared = share();
    let streams = one_flow(false);
    let lab = Lab::new(streams.clone(), &[]);
    let mut config = lab.config();
    config.features = features::VERSION_1 | features::PROTOCOL_FEATURES;
    config.exact_features = true;
    let mut guest = Guest::connect(config).unwrap();
    assert_eq!(exchange(&lab, &mut guest, &streams), FRAMES);
}

#[test]
fn memory_in_pieces_and_chains_of_several_descriptors() {
    let _shared = share();
    let streams = one_flow(false);
    for (regions, reversed, order) in [
        (4, true, MessageOrder::Plain),
        (3, false, MessageOrder::CloudHypervisor),
        (4, true, MessageOrder::CloudHypervisor),
    ] {
        let lab = Lab::new(streams.clone(), &[]);
        let mut config = lab.config().under(order);
        (config.regions, config.regions_reversed) = (regions, reversed);
        (config.rx_chain, config.tx_chain, config.tx_indirect) = (2, 2, true);
        let mut guest = Guest::connect(config).unwrap();
        exchange(&lab, &mut guest, &streams);
    }
}

#[test]
fn front_ends_come_and_go_and_nothing_is_left_behind() {
    let _alone = DESCRIPTORS.write().unwrap_or_else(PoisonError::into_inner);
    let streams = one_flow(false);
    let lab = Lab::new(streams, &[]);
    let mut checker = lab.checker();
    let mut guest = Guest::connect(lab.config().under(MessageOrder::Qemu)).unwrap();
    lab.receive(&mut guest, &mut checker, 500);
    let before = descriptors();
    for _ in 0..200 {
        guest.disconnect();
        guest.reconnect().unwrap();
        lab.receive(&mut guest, &mut checker, 20);
    }
    assert!(descriptors() <= before, "{} descriptors, {before} before", descriptors());
    assert_eq!(checker.summary().lost_bytes, 0);
    let stats = lab.stop();
    assert_eq!(stats.fill.dropped() + stats.no_ring, 0);
}

#[test]
fn a_driver_is_loaded_again_with_other_features() {
    let _shared = share();
    let streams = one_flow(false);
    let lab = Lab::new(streams, &[]);
    let mut checker = lab.checker();
    let mut guest = Guest::connect(lab.config()).unwrap();
    lab.receive(&mut guest, &mut checker, 1000);
    for wanted in [features::VERSION_1, features::DEFAULT, features::DEFAULT & !features::MRG_RXBUF]
    {
        let stopped = guest.reload(Some(wanted | features::PROTOCOL_FEATURES)).unwrap();
        for ring in stopped {
            assert!(ring.is_clean(), "{ring:?}: the base is where the ring stopped");
        }
        lab.receive(&mut guest, &mut checker, 1000);
    }
    assert_eq!((checker.summary().lost_bytes, lab.stop().fill.dropped()), (0, 0));
}

#[test]
fn a_backend_that_connects_finds_a_front_end_that_comes_later_and_again() {
    let _shared = share();
    let streams = one_flow(false);
    let lab = Lab::with(streams.clone(), &[], |path| {
        Ok(Endpoint::connect(&path, std::time::Duration::from_millis(2)))
    });
    for _ in 0..3 {
        let mut guest = Guest::connect(guest::Config::new(Connect::Listen(lab.socket()))).unwrap();
        settle(&mut guest);
        lab.allow(8);
        let mut got = 0;
        while got < 8 {
            guest.poll_rx(|packet| got += packet.header.segments(packet.bytes.len()));
        }
    }
}

/// As many descriptors as this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}
