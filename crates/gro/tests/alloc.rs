//! The receive path allocates nothing per packet once it has warmed up.

#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gro::{Accept, Config, Engine, Instant, NormalBatch, Sink};
use packet::build::{TcpFrame, UdpFrame};
use packet::{Burst, Checksum, Frame, Pool};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator, under the same contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Recycle {
    frames: u64,
}

impl Sink for Recycle {
    fn deliver(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) {
        self.frames += frames.len() as u64;
        for frame in frames.drain(..) {
            pool.recycle(frame);
        }
    }
}

/// All kinds of packets: runs that merge, ACKs, UDP, bad checksums, fragments, odd frames.
fn traffic() -> Vec<(Vec<u8>, Checksum)> {
    let mut packets = Vec::new();
    for run in 0..8 {
        for port in 0..100 {
            let mut frame = if port % 3 == 0 { TcpFrame::v6() } else { TcpFrame::v4() };
            frame.ports.0 = port;
            frame.payload = &[7; 1000];
            for index in 0..4 {
                frame.seq = 1000 * (4 * run + index);
                frame.ip.set_id(u16::try_from(4 * run + index).expect("a small number"));
                packets.push((frame.to_vec(), Checksum::Verified { levels: 1 }));
                frame.ack += u32::from(port % 7 == 0);
            }
            frame.payload = &[];
            packets.push((frame.to_vec(), Checksum::Unknown));
        }
        let mut udp = UdpFrame::v4();
        udp.payload = &[1; 22];
        packets.push((udp.to_vec(), Checksum::Unknown));
        let mut bad = packets[0].0.clone();
        bad[60] ^= 1;
        packets.push((bad, Checksum::Unknown));
        let mut fragment = packets[0].0.clone();
        fragment[20] = 0x20;
        packets.push((fragment, Checksum::Unknown));
        packets.push((vec![0; 60], Checksum::Unknown));
        packets.push((packets[0].0[..30].to_vec(), Checksum::Unknown));
    }
    packets
}

#[test]
fn nothing_is_allocated_per_packet() {
    let packets = traffic();
    for (enabled, timeout) in [(true, 0), (true, 100), (false, 0)] {
        let flush_timeout = Duration::from_micros(timeout);
        let mut engine = Engine::new(Config { enabled, flush_timeout, ..Config::default() });
        engine.set_accept(Accept { tcp4: true, tcp6: true, ..Accept::default() });
        let mut batch = NormalBatch::new(8);
        let mut sink = Recycle { frames: 0 };
        let mut pool = Pool::new(4096, 2048);
        let mut burst = Burst::new(64);
        let mut now = Instant::default();
        let mut play = |times: usize| {
            for _ in 0..times {
                for chunk in packets.chunks(64) {
                    for (bytes, checksum) in chunk {
                        let mut frame = Frame::copied_from(bytes, &mut pool).unwrap();
                        frame.meta.checksum = *checksum;
                        burst.push(frame);
                    }
                    engine.receive(now, &mut burst, &mut batch, &mut sink, &mut pool);
                    now = now.after(Duration::from_micros(20));
                    engine.end_of_poll(now, &mut batch, &mut sink, &mut pool);
                }
            }
            assert_eq!(engine.counters().merged > 0, enabled);
        };
        play(3);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        play(10);
        let after = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(after - before, 0, "allocations, GRO {enabled}, timeout {timeout} µs");
        assert!(sink.frames > 0);
    }
}
