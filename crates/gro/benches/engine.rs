//! What the engine costs per packet, by flows, order of arrival, size and checksum hint.
//!
//! A case is a list of packets that is played again and again: take a buffer, write the packet's
//! headers into it, receive; the sink gives every buffer back. Payloads are zeros and are never written.
//! `replay` does all that without an engine, so that its time can be subtracted; `off` is the engine
//! with GRO switched off. Criterion's throughput counts packets: 1 s / throughput is the time of one.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gro::{Accept, Config, Engine, Instant, NormalBatch, Sink};
use packet::build::{TcpFrame, UdpFrame};
use packet::{Burst, Checksum, Frame, Pool};

/// Gives all buffers back, as a sink does that has copied the frames.
struct Recycle;

impl Sink for Recycle {
    fn deliver(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) {
        for frame in frames.drain(..) {
            pool.recycle(black_box(frame));
        }
    }
}

/// The headers of a packet, and its length with the payload.
struct Template {
    headers: Vec<u8>,
    len: u16,
}

struct Case {
    name: &'static str,
    packets: Vec<Template>,
    /// Packets between two ends of poll.
    poll: usize,
}

impl Case {
    fn new(name: &'static str, packets: Vec<Template>, poll: usize) -> Self {
        Self { name, packets, poll }
    }

    /// Plays all packets once: bursts to `each`, ends of poll to `end`.
    fn replay(
        &self,
        hint: bool,
        burst: &mut Burst,
        pool: &mut Pool,
        mut each: impl FnMut(&mut Burst, &mut Pool, bool),
    ) {
        for poll in self.packets.chunks(self.poll) {
            let mut bursts = poll.chunks(BURST).peekable();
            while let Some(templates) = bursts.next() {
                for template in templates {
                    let mut buffer = pool.take().expect("there are buffers enough");
                    buffer.bytes_mut()[..template.headers.len()].copy_from_slice(&template.headers);
                    let mut frame = Frame::new(buffer, 0, template.len);
                    if hint {
                        frame.meta.checksum = Checksum::Verified { levels: 1 };
                    }
                    burst.push(frame);
                }
                each(burst, pool, bursts.peek().is_none());
            }
        }
    }
}

/// `run` packets of each flow in a row (`run` = `per_flow`), or less until all flows have had theirs.
fn tcp(flows: u16, per_flow: u32, run: u32, v6: bool) -> Vec<Template> {
    let payload = [0; MSS];
    let mut packets = Vec::new();
    for start in (0..per_flow).step_by(run as usize) {
        for flow in 0..flows {
            for index in start..start + run {
                let mut frame = if v6 { TcpFrame::v6() } else { TcpFrame::v4() };
                let id = u16::try_from(index).expect("a few packets of each flow");
                frame.ip.set_id(id);
                frame.ports = (10_000 + flow, 5001);
                frame.seq = 1 + index * u32::try_from(MSS).expect("an MTU");
                frame.options = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
                frame.payload = &payload;
                packets.push(template(&frame.to_vec(), MSS));
            }
        }
    }
    packets
}

fn udp(flows: u16) -> Vec<Template> {
    (0..256)
        .map(|index| {
            let mut frame = UdpFrame::v4();
            frame.ports = (10_000 + index % flows, 5001);
            frame.payload = &[0; 22];
            template(&frame.to_vec(), 22)
        })
        .collect()
}

fn template(bytes: &[u8], payload: usize) -> Template {
    let len = u16::try_from(bytes.len()).expect("an MTU");
    Template { headers: bytes[..bytes.len() - payload].to_vec(), len }
}

fn engine(criterion: &mut Criterion) {
    let cases = [
        Case::new("tcp4_64_flows_runs_of_4", tcp(64, 4, 4, false), 256),
        Case::new("tcp4_64_flows_interleaved", tcp(64, 4, 1, false), 256),
        Case::new("tcp4_4_flows_runs_of_8", tcp(4, 8, 8, false), 32),
        Case::new("tcp4_4_flows_interleaved", tcp(4, 8, 1, false), 32),
        Case::new("tcp4_1000_flows_runs_of_4", tcp(1000, 4, 4, false), 256),
        Case::new("tcp4_1000_flows_interleaved", tcp(1000, 4, 1, false), 4000),
        Case::new("tcp6_64_flows_runs_of_4", tcp(64, 4, 4, true), 256),
        Case::new("udp4_64_flows_64_bytes", udp(64), 256),
    ];
    for case in &cases {
        let mut group = criterion.benchmark_group(case.name);
        group.throughput(Throughput::Elements(case.packets.len() as u64));
        let mut pool = Pool::new(8192, 2048);
        let mut burst = Burst::new(BURST);

        group.bench_function(BenchmarkId::from_parameter("replay"), |bencher| {
            bencher.iter(|| {
                case.replay(true, &mut burst, &mut pool, |burst, pool, _| {
                    for frame in burst.drain() {
                        pool.recycle(black_box(frame));
                    }
                });
            });
        });
        for (name, enabled, hint) in
            [("off", false, true), ("on", true, true), ("on_without_hint", true, false)]
        {
            let mut engine = Engine::new(Config { enabled, ..Config::default() });
            engine.set_accept(Accept { tcp4: true, tcp6: true, ..Accept::default() });
            let mut batch = NormalBatch::new(8);
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| {
                    case.replay(hint, &mut burst, &mut pool, |burst, pool, end| {
                        let now = Instant::from_nanos(0);
                        engine.receive(now, burst, &mut batch, &mut Recycle, pool);
                        if end {
                            engine.end_of_poll(now, &mut batch, &mut Recycle, pool);
                        }
                    });
                });
            });
        }
        group.finish();
    }
}

const BURST: usize = 64;
const MSS: usize = 1448;

criterion_group!(benches, engine);
criterion_main!(benches);
