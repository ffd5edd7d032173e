//! A held flow: its frame so far, and the fields that the next packet is compared with.

use packet::{Frame, Layout, Pool};

use crate::key::Key;
use crate::parse::Packet;
use crate::parse::tcp::FIN_PSH;
use crate::time::Instant;

/// One place of the table. Life: [`hold`](Self::hold), any number of [`append`](Self::append), then its
/// frame is taken. The fields are in the order of their use: an IPv4 packet that is merged touches three
/// cache lines.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) options: u64,
    pub(crate) more_options: u32,
    /// The sequence number that continues it.
    pub(crate) next_seq: u32,
    pub(crate) ack: u32,
    /// As in [`Packet`].
    pub(crate) word: u32,
    pub(crate) network: u32,
    /// Bytes behind the Ethernet header, padding left out.
    pub(crate) size: u32,
    /// IPv4 identification of the first packet.
    pub(crate) id: u16,
    /// Payload of the first packet: the segment size.
    pub(crate) mss: u16,
    /// Packets in it.
    pub(crate) count: u16,
    /// Pieces that its frame lies in.
    pub(crate) pieces: u16,
    pub(crate) layout: Layout,
    /// Ethernet padding behind the first packet.
    pub(crate) padding: u16,
    /// The IPv4 id stands still.
    pub(crate) fixed_id: bool,
    /// Something was appended to the first frame.
    pub(crate) merged: bool,
    /// FIN and PSH of the packets behind the first.
    pub(crate) late: u8,
    /// The table's: the hash of its addresses.
    pub(crate) pair: u8,
    /// The table's: neighbours in the order of arrival.
    pub(crate) older: u16,
    pub(crate) newer: u16,
    /// `None` when the place is free.
    pub(crate) frame: Option<Frame>,
    /// When the first packet was held.
    pub(crate) since: Instant,
    /// The table's: older flows have smaller numbers.
    pub(crate) turn: u32,
}

// Key and fields fill two cache lines, the frame the third; the rest is for the beginning and the end.
const _: () = assert!(std::mem::offset_of!(Flow, frame) == 128 && size_of::<Flow>() == 256);

impl Flow {
    /// Takes the first packet.
    #[inline]
    pub(crate) fn hold(&mut self, frame: Frame, packet: &Packet, now: Instant) {
        self.key = packet.key;
        self.next_seq = packet.seq.wrapping_add(u32::from(packet.len));
        self.ack = packet.ack;
        self.word = packet.word;
        self.network = packet.network;
        self.options = packet.options;
        self.more_options = packet.more_options;
        self.size = packet.size();
        self.id = packet.id;
        self.mss = packet.segment;
        self.count = packet.count;
        self.pieces = pieces(&frame);
        self.layout = packet.layout;
        self.padding = packet.padding;
        self.fixed_id = packet.fixed_id;
        self.merged = false;
        self.late = 0;
        self.since = now;
        self.frame = Some(frame);
    }

    /// Appends the payload of a packet that fits; `fixed_id` as the checks found it.
    #[inline]
    pub(crate) fn append(
        &mut self,
        mut frame: Frame,
        packet: &Packet,
        fixed_id: bool,
        pool: &mut Pool,
    ) {
        self.next_seq = self.next_seq.wrapping_add(u32::from(packet.len));
        self.size += u32::from(packet.len);
        self.count += packet.count;
        self.pieces += pieces(&frame);
        self.fixed_id = fixed_id;
        self.merged = true;
        self.late |= ((packet.word & FIN_PSH) >> 16) as u8;
        let held = self.frame.as_mut().expect("a held flow has a frame");
        if self.padding > 0 {
            held.truncate(held.len() - usize::from(self.padding));
            self.padding = 0;
        }
        if packet.padding > 0 {
            frame.truncate(frame.len() - usize::from(packet.padding));
        }
        held.push(frame, usize::from(packet.layout.payload), pool);
    }

    /// The first bytes of the frame: all headers.
    pub(crate) fn head(&self) -> &[u8] {
        self.frame.as_ref().expect("a held flow has a frame").head()
    }
}

/// Pieces of a frame; as many as can be counted is as good as too many.
#[inline]
pub(crate) fn pieces(frame: &Frame) -> u16 {
    u16::try_from(frame.piece_count()).unwrap_or(u16::MAX)
}
