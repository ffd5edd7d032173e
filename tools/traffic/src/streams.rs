//! Frames of many flows, each byte of their payload a function of its place.

use std::num::NonZeroU32;

use packet::header::{IPV4_LEN, IPV6_LEN};
use packet::{Burst, Checksum, Frame, Pool, checksum};

use crate::flow::{self, FIRST_SEQ, FIRST_SEQ_SUM};
use crate::{StreamConfig, pattern};

/// A source of frames.
#[derive(Debug)]
pub struct Streams {
    config: StreamConfig,
    flows: Vec<Flow>,
    header_len: usize,
    turn: Turn,
}

#[derive(Debug)]
struct Flow {
    header: Box<[u8]>,
    packets: u32,
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    flow: u32,
    done: u32,
    frames: u64,
}

impl Turn {
    /// The flow of the next frame; `None` when all frames are made.
    pub(crate) fn next(&mut self, config: &StreamConfig) -> Option<u32> {
        if config.total_frames.is_some_and(|total| self.frames >= total) {
            return None;
        }
        let flow = self.flow;
        self.frames += 1;
        self.done += 1;
        if self.done >= config.run {
            self.done = 0;
            self.flow = (flow + 1) % config.flows;
        }
        Some(flow)
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }
}

impl Streams {
    /// Streams from their start.
    ///
    /// # Panics
    ///
    /// When the configuration has no flows, more than 65536, or too small a payload.
    pub fn new(config: StreamConfig) -> Self {
        check(&config);
        let payload = usize::from(config.payload);
        let frame = |flow| flow::first_frame(&config, flow, &vec![0; payload]);
        let header_len = frame(0).len() - payload;
        let flows = (0..config.flows)
            .map(|flow| Flow { header: frame(flow)[..header_len].into(), packets: 0 })
            .collect();
        Self { config, flows, header_len, turn: Turn::default() }
    }

    /// Fills the burst's room as far as the pool has buffers; how many frames it made.
    ///
    /// # Panics
    ///
    /// When a frame does not fit a buffer of the pool.
    pub fn fill(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let mut made = 0;
        while burst.room() > 0 && pool.available() > 0 {
            let Some(flow) = self.turn.next(&self.config) else { break };
            let mut buffer = pool.take().expect("checked: a buffer is available");
            let len = self.header_len + usize::from(self.config.payload);
            self.write(flow, &mut buffer.bytes_mut()[..len]);
            let len = u16::try_from(len).expect("a buffer has at most 65535 bytes");
            let mut frame = Frame::new(buffer, 0, len);
            mark(&mut frame, flow, self.config.checksum_hint);
            burst.push(frame);
            made += 1;
        }
        made
    }

    /// Writes the next frame; its length, or `None` when all are made.
    ///
    /// # Panics
    ///
    /// When it does not fit.
    pub fn write_next(&mut self, to: &mut [u8]) -> Option<usize> {
        let flow = self.turn.next(&self.config)?;
        let len = self.header_len + usize::from(self.config.payload);
        self.write(flow, &mut to[..len]);
        Some(len)
    }

    /// Frames made so far.
    pub fn frames(&self) -> u64 {
        self.turn.frames()
    }

    /// Whether all frames are made.
    pub fn finished(&self) -> bool {
        self.config.total_frames.is_some_and(|total| self.frames() >= total)
    }

    fn write(&mut self, number: u32, to: &mut [u8]) {
        let flow = &mut self.flows[number as usize];
        let (header, payload) = to.split_at_mut(self.header_len);
        header.copy_from_slice(&flow.header);
        let position = flow.packets.wrapping_mul(u32::from(self.config.payload));
        payload.copy_from_slice(pattern::bytes(number, position, payload.len()));
        let network = 14;
        let transport = network + if self.config.ipv6 { IPV6_LEN } else { IPV4_LEN };
        if !self.config.ipv6 {
            #[expect(clippy::cast_possible_truncation, reason = "an id wraps")]
            let id = flow.packets as u16;
            put(header, network + 4, id);
            let sum = word(header, network + 10);
            put(header, network + 10, checksum::update(sum, 0, id));
        }
        let sum_at = if self.config.udp {
            payload[..8].copy_from_slice(&u64::from(flow.packets).to_be_bytes());
            transport + 6
        } else {
            let seq = FIRST_SEQ.wrapping_add(position);
            header[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
            transport + 16
        };
        // The first frame was built around zeros and the first sequence number.
        let mut sum = !word(header, sum_at);
        sum = checksum::add(sum, checksum::sum(payload));
        if !self.config.udp {
            let seq = checksum::sum(&header[transport + 4..transport + 8]);
            sum = checksum::add(checksum::sub(sum, FIRST_SEQ_SUM), seq);
        }
        let field = if sum == 0xffff && self.config.udp { 0xffff } else { !sum };
        put(header, sum_at, field);
        flow.packets = flow.packets.wrapping_add(1);
    }
}

pub(crate) fn check(config: &StreamConfig) {
    assert!((1..=65_536).contains(&config.flows), "1 to 65536 flows");
    assert!(
        config.payload >= if config.udp { 8 } else { 1 },
        "payload of at least 1, or 8 for UDP"
    );
    assert!(config.run >= 1, "runs of at least 1");
}

/// What a NIC would say about the frame.
pub(crate) fn mark(frame: &mut Frame, flow: u32, checksum_hint: bool) {
    if checksum_hint {
        frame.meta.checksum = Checksum::Verified { levels: 1 };
    }
    // A multiplicative hash: neighbours in number are no neighbours in hash.
    frame.meta.hash = NonZeroU32::new((flow + 1).wrapping_mul(0x9e37_79b1));
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checker, ChecksumState};

    #[test]
    fn frames_are_valid_and_checked_for_every_kind() {
        for (ipv6, udp, timestamps) in
            [(false, false, true), (true, false, false), (false, true, false), (true, true, false)]
        {
            let config = StreamConfig {
                flows: 3,
                run: 2,
                payload: 1001,
                ipv6,
                udp,
                timestamps,
                checksum_hint: true,
                total_frames: Some(40),
            };
            let mut checker = Checker::new(&config);
            let mut streams = Streams::new(config);
            let (mut burst, mut pool) = (Burst::new(16), Pool::new(64, 2048));
            while !streams.finished() {
                streams.fill(&mut burst, &mut pool);
                for frame in burst.drain() {
                    checker.frame(&frame.to_vec(), ChecksumState::Complete).unwrap();
                    pool.recycle(frame);
                }
            }
            let summary = checker.summary();
            assert_eq!((summary.packets, summary.bytes), (40, 40 * 1001));
            assert_eq!((summary.lost_bytes, summary.flows), (0, 3));
        }
    }
}
