//! Frames to send, queues to drain, and waiting without trusting a clock for the result.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use packet::build::{TcpFrame, UdpFrame};
use packet::{Burst, Checksum, Frame, Gso, GsoKind, Layout, Piece, Pool, checksum};
use port::QueuePair;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A frame of these bytes, in as many buffers as it takes.
pub(crate) fn frame(bytes: &[u8], pool: &mut Pool) -> Frame {
    let mut parts = bytes.chunks(pool.buffer_size());
    let mut frame = Frame::copied_from(parts.next().unwrap(), pool).unwrap();
    for part in parts {
        let mut buffer = pool.take().unwrap();
        buffer.bytes_mut()[..part.len()].copy_from_slice(part);
        frame.push_piece(Piece::new(buffer, 0, u16::try_from(part.len()).unwrap()), pool);
    }
    frame
}

/// A TCP frame whose payload tells its number.
pub(crate) fn tcp(number: usize, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> =
        (0..payload).map(|i| u8::try_from((i + number) % 251).unwrap()).collect();
    let mut frame = TcpFrame::v4();
    frame.seq = u32::try_from(number).unwrap();
    frame.payload = &payload;
    frame.to_vec()
}

/// Takes the checksum out of a complete TCP or UDP frame: what is left is partial.
pub(crate) fn unfinish(bytes: &mut [u8]) -> (Checksum, Layout) {
    let parsed = packet::header::parse(bytes).unwrap();
    let (network, start) = (usize::from(parsed.layout.network), parsed.layout.transport);
    let (protocol, offset) = if parsed.tcp { (6, 16) } else { (17, 6) };
    let behind = network + parsed.ip_len - usize::from(start);
    let ip = &bytes[network..];
    let sum = if parsed.v6 {
        let (source, destination) = (ip[8..24].try_into().unwrap(), ip[24..40].try_into().unwrap());
        checksum::pseudo_header_v6(source, destination, protocol, u32::try_from(behind).unwrap())
    } else {
        let (source, destination) =
            (ip[12..16].try_into().unwrap(), ip[16..20].try_into().unwrap());
        checksum::pseudo_header_v4(source, destination, protocol, u16::try_from(behind).unwrap())
    };
    let at = usize::from(start + offset);
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    (Checksum::Partial { start, offset }, parsed.layout)
}

/// A super-packet of a kind, cut at `size`.
pub(crate) fn super_packet(kind: GsoKind, size: u16, payload: usize, pool: &mut Pool) -> Frame {
    let payload: Vec<u8> = (0..payload).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let mut bytes = match kind {
        GsoKind::TcpV4 => TcpFrame { payload: &payload, ..TcpFrame::v4() }.to_vec(),
        GsoKind::TcpV6 => TcpFrame { payload: &payload, ..TcpFrame::v6() }.to_vec(),
        GsoKind::UdpV4 => UdpFrame { payload: &payload, ..UdpFrame::v4() }.to_vec(),
        GsoKind::UdpV6 => UdpFrame { payload: &payload, ..UdpFrame::v6() }.to_vec(),
    };
    let (checksum, layout) = unfinish(&mut bytes);
    let mut frame = frame(&bytes, pool);
    frame.meta.checksum = checksum;
    frame.meta.layout = layout;
    frame.meta.gso = Some(Gso {
        kind,
        size,
        segments: u16::try_from(payload.len().div_ceil(size.into())).unwrap(),
        fixed_id: false,
        ecn: false,
        trusted: true,
    });
    frame
}

/// Sends one frame; it has to leave.
pub(crate) fn send(pair: &mut QueuePair, frame: Frame, pool: &mut Pool) {
    let mut burst = Burst::new(1);
    burst.push(frame);
    assert_eq!(pair.tx.tx_burst(&mut burst, pool), 1);
}

/// Receives until `count` frames are there, or nothing has come for a while.
pub(crate) fn receive(pair: &mut QueuePair, count: usize, pool: &mut Pool) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut burst = Burst::new(64);
    while frames.len() < count {
        if pair.rx.rx_burst(&mut burst, pool) > 0 {
            frames.extend(burst.drain());
        } else if !wait(pair.rx.wait_fd().unwrap()) {
            break;
        }
    }
    frames
}

/// Sleeps until the descriptor has something; false when nothing came in seconds.
pub(crate) fn wait(fd: BorrowedFd<'_>) -> bool {
    let mut entries = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut entries, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap() > 0
}

/// Tries until it is so; false after seconds.
pub(crate) fn until(mut so: impl FnMut() -> bool) -> bool {
    for _ in 0..500 {
        if so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
