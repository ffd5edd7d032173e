//! Two real TCP stacks, joined by a packet socket and a tap with nothing but a relay between them.
//!
//! ```text
//!   stack ── vb ═ veth ═ va ── packet socket ── relay ── tap ── stack
//! ```
//!
//! Both stacks leave checksums and segmentation to their interface, so what passes is super-packets
//! and partial checksums, both ways.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use packet::{Burst, Pool};
use port::{PacketSocket, Port, QueuePair, RxQueue, Tap, TxQueue};

use crate::netns::NetNs;

/// Moves what has arrived, one burst; what the other side does not take is kept for the next turn.
fn pass(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, burst: &mut Burst, pool: &mut Pool) -> usize {
    let received = rx.rx_burst(burst, pool);
    tx.tx_burst(burst, pool);
    received
}

fn relay(left: &mut QueuePair, right: &mut QueuePair, stop: &AtomicBool) {
    let mut pool = Pool::new(4096, 2048);
    let (mut there, mut back) = (Burst::new(32), Burst::new(32));
    while !stop.load(Ordering::Relaxed) {
        let moved = pass(&mut *left.rx, &mut *right.tx, &mut there, &mut pool)
            + pass(&mut *right.rx, &mut *left.tx, &mut back, &mut pool);
        if moved == 0 {
            thread::yield_now();
        }
    }
    for frame in there.drain().chain(back.drain()) {
        pool.recycle(frame);
    }
    assert_eq!(pool.available(), 4096);
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LENGTH).map(|i| u8::try_from((i / 3 + i * seed) % 251).unwrap()).collect()
}

/// One connection, `LENGTH` bytes each way at once.
fn transfer(near: &NetNs, far: &NetNs, address: &str) {
    let listener = far.enter(|| TcpListener::bind(address).unwrap());
    let stream = near.enter(|| TcpStream::connect(address).unwrap());
    let (accepted, _) = listener.accept().unwrap();
    let exchange = |mut stream: TcpStream, mine: Vec<u8>, expected: Vec<u8>| {
        let mut writer = stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&mine).unwrap());
            let mut got = vec![0; LENGTH];
            stream.read_exact(&mut got).unwrap();
            assert!(got == expected, "other bytes arrived");
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| exchange(stream, pattern(5), pattern(7)));
        exchange(accepted, pattern(7), pattern(5));
    });
}

#[test]
fn tcp_passes_in_super_packets_both_ways() {
    let Some((middle, right)) = NetNs::pair() else { return };
    let Some(left) = NetNs::new() else { return };
    let mut tap = left.enter(|| Tap::open("vm0").unwrap().open(1).unwrap().remove(0));
    let mut packet = middle.enter(|| PacketSocket::open("va").unwrap().open(1).unwrap().remove(0));
    for (ns, interface, host) in [(&left, "vm0", 1), (&right, "vb", 2)] {
        ns.enter(|| {
            let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
            std::fs::write(path, "0").unwrap();
        });
        ns.ip(&format!("link set {interface} up"));
        ns.ip(&format!("addr add 10.9.0.{host}/24 dev {interface}"));
        ns.ip(&format!("addr add fd09::{host}/64 dev {interface} nodad"));
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let relaying = scope.spawn(|| relay(&mut packet, &mut tap, &stop));
        // Stop the relay also when a transfer fails, or the test would never end.
        let result = std::panic::catch_unwind(|| {
            for address in ["10.9.0.2:5000", "[fd09::2]:5000"] {
                transfer(&left, &right, address);
            }
        });
        stop.store(true, Ordering::Relaxed);
        relaying.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for pair in [&packet, &tap] {
        let (rx, tx) = (pair.rx.counters(), pair.tx.counters());
        println!("{rx:?} {tx:?}");
        assert_eq!((rx.malformed, tx.refused), (0, 0));
        assert!(rx.bytes > 2 * LENGTH as u64 && tx.bytes > 2 * LENGTH as u64);
    }
    // All data in one direction, acknowledgements in between, and still above the MTU on average.
    assert!(packet.rx.counters().bytes / packet.rx.counters().frames > 1500);
    assert!(tap.rx.counters().bytes / tap.rx.counters().frames > 1500);
}

const LENGTH: usize = 8 << 20;
