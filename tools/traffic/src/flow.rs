//! One flow: the header of its packets, and its place in the frame's addresses.

use packet::build::{Ip, TcpFrame, UdpFrame};

use crate::StreamConfig;

/// TCP timestamps: NOP, NOP, kind 8, length 10, value, echo.
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 10, 0, 0, 0, 20];
/// The sequence number of a stream's first byte.
pub(crate) const FIRST_SEQ: u32 = 1;

/// Its folded sum.
pub(crate) const FIRST_SEQ_SUM: u16 = 1;

/// The frame of a flow's first packet, with right checksums, around this payload.
pub(crate) fn first_frame(config: &StreamConfig, flow: u32, payload: &[u8]) -> Vec<u8> {
    let ip = ip(config.ipv6, flow);
    let ports = (10_000 + u16::try_from(flow % 10_000).expect("below 10000"), 5001);
    if config.udp {
        let mut frame = if config.ipv6 { UdpFrame::v6() } else { UdpFrame::v4() };
        (frame.ip, frame.ports, frame.payload) = (ip, ports, payload);
        frame.to_vec()
    } else {
        let mut frame = if config.ipv6 { TcpFrame::v6() } else { TcpFrame::v4() };
        (frame.ip, frame.ports, frame.payload) = (ip, ports, payload);
        frame.seq = FIRST_SEQ;
        if config.timestamps {
            frame.options = &TIMESTAMPS;
        }
        frame.to_vec()
    }
}

/// The flow's number stands in the last two bytes of its source address.
fn ip(v6: bool, flow: u32) -> Ip<'static> {
    let number = u16::try_from(flow).expect("at most 65536 flows").to_be_bytes();
    let mut ip = if v6 { Ip::v6() } else { Ip::v4() };
    match &mut ip {
        Ip::V4 { source, id, .. } => {
            *source = [10, 1, number[0], number[1]];
            *id = 0;
        }
        Ip::V6 { source, .. } => source[14..].copy_from_slice(&number),
    }
    ip
}

/// The number of the flow that a frame belongs to.
pub(crate) fn number(frame: &[u8], network: usize, v6: bool) -> u32 {
    let at = network + if v6 { 22 } else { 14 };
    u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}
