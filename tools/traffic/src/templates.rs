//! Frames for benchmarks: whatever is measured is not the generator.
//!
//! All packets have the same payload, which is written into every buffer of the pool once, before the
//! benchmark starts; a frame then costs its header, with checksums that are updated, not computed. The
//! frames are valid, and the streams advance as real ones do.

use packet::header::{IPV4_LEN, IPV6_LEN};
use packet::{Burst, Frame, Pool, checksum};

use crate::flow::{self, FIRST_SEQ, FIRST_SEQ_SUM};
use crate::streams::{Turn, check, mark, put, word};
use crate::{StreamConfig, pattern};

/// A source of cheap frames.
#[derive(Debug)]
pub struct Templates {
    config: StreamConfig,
    flows: Vec<Flow>,
    transport: usize,
    header_len: usize,
    len: u16,
    turn: Turn,
}

#[derive(Debug)]
struct Flow {
    header: Box<[u8]>,
    seq: u32,
    id: u16,
    /// Checksum field for an id of zero.
    ip_sum: u16,
    /// Checksum field for a sequence number of zero; unused for UDP.
    tcp_sum: u16,
}

impl Templates {
    /// Streams from their start.
    ///
    /// # Panics
    ///
    /// When the configuration has no flows, more than 65536, or too small a payload.
    pub fn new(config: StreamConfig) -> Self {
        check(&config);
        let payload = pattern::bytes(0, 0, usize::from(config.payload));
        let transport = 14 + if config.ipv6 { IPV6_LEN } else { IPV4_LEN };
        let first = flow::first_frame(&config, 0, payload);
        let header_len = first.len() - payload.len();
        let flows = (0..config.flows)
            .map(|number| {
                let frame = flow::first_frame(&config, number, payload);
                Flow {
                    header: frame[..header_len].into(),
                    seq: FIRST_SEQ,
                    id: 0,
                    ip_sum: word(&frame, 24),
                    tcp_sum: if config.udp {
                        0
                    } else {
                        checksum::update(word(&frame, transport + 16), FIRST_SEQ_SUM, 0)
                    },
                }
            })
            .collect();
        let len = u16::try_from(first.len()).expect("a frame of at most 65535 bytes");
        Self { config, flows, transport, header_len, len, turn: Turn::default() }
    }

    /// Writes the payload into every buffer that the pool has; the frames of [`fill`](Self::fill) must
    /// come from this pool, and nobody else may write to its buffers behind the headers.
    ///
    /// # Panics
    ///
    /// When a frame does not fit a buffer of the pool.
    pub fn prepare(&self, pool: &mut Pool) {
        let payload = pattern::bytes(0, 0, usize::from(self.config.payload));
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        for mut buffer in buffers.drain(..).rev() {
            buffer.bytes_mut()[self.header_len..usize::from(self.len)].copy_from_slice(payload);
            pool.give(buffer);
        }
    }

    /// Fills the burst's room as far as the pool has buffers; how many frames it made.
    #[inline]
    pub fn fill(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let mut made = 0;
        while burst.room() > 0 && pool.available() > 0 {
            let Some(number) = self.turn.next(&self.config) else { break };
            let flow = &mut self.flows[number as usize];
            let mut buffer = pool.take().expect("checked: a buffer is available");
            let header = &mut buffer.bytes_mut()[..self.header_len];
            header.copy_from_slice(&flow.header);
            if !self.config.ipv6 {
                put(header, 18, flow.id);
                put(header, 24, checksum::update(flow.ip_sum, 0, flow.id));
                flow.id = flow.id.wrapping_add(1);
            }
            if !self.config.udp {
                let seq = flow.seq.to_be_bytes();
                header[self.transport + 4..self.transport + 8].copy_from_slice(&seq);
                let sum = checksum::update(flow.tcp_sum, 0, checksum::sum(&seq));
                put(header, self.transport + 16, sum);
                flow.seq = flow.seq.wrapping_add(u32::from(self.config.payload));
            }
            let mut frame = Frame::new(buffer, 0, self.len);
            mark(&mut frame, number, self.config.checksum_hint);
            burst.push(frame);
            made += 1;
        }
        made
    }

    /// Frames made so far.
    pub fn frames(&self) -> u64 {
        self.turn.frames()
    }

    /// Bytes of each frame.
    pub fn frame_len(&self) -> usize {
        usize::from(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_frames_are_valid() {
        for (ipv6, udp, payload) in [(false, false, 1), (false, true, 8), (true, true, 8)] {
            let config = StreamConfig { ipv6, udp, payload, ..StreamConfig::default() };
            let mut templates = Templates::new(config);
            let (mut burst, mut pool) = (Burst::new(300), Pool::new(300, 128));
            templates.prepare(&mut pool);
            assert_eq!(templates.fill(&mut burst, &mut pool), 300);
            for frame in burst.frames() {
                assert_eq!(frame.len(), templates.frame_len());
                let parsed = packet::header::parse(frame.head()).unwrap();
                assert!(packet::transport_is_valid(frame, &parsed));
            }
        }
    }

    #[test]
    fn template_frames_are_valid_and_advance() {
        for (ipv6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let config = StreamConfig {
                flows: 2,
                run: 3,
                payload: 100,
                ipv6,
                udp,
                timestamps: false,
                ..StreamConfig::default()
            };
            let mut templates = Templates::new(config);
            let (mut burst, mut pool) = (Burst::new(9), Pool::new(16, 256));
            templates.prepare(&mut pool);
            templates.fill(&mut burst, &mut pool);
            let mut seqs = Vec::new();
            for frame in burst.drain() {
                let parsed = packet::header::parse(frame.head()).unwrap();
                assert!(packet::transport_is_valid(&frame, &parsed));
                assert!(ipv6 || checksum::sum(&frame.head()[14..34]) == 0xffff);
                let at = templates.transport;
                seqs.push((flow::number(frame.head(), 14, ipv6), word(frame.head(), at + 6)));
                pool.recycle(frame);
            }
            let tcp = [(0, 1), (0, 101), (0, 201), (1, 1), (1, 101), (1, 201), (0, 301)];
            assert!(udp || seqs[..7] == tcp, "{seqs:?}");
            assert_eq!((templates.frames(), pool.available()), (9, 16));
        }
    }
}
