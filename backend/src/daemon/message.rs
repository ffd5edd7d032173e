//! vhost-user messages as bytes on a socket: a 12-byte header, a body, and descriptors beside them.
//!
//! Every descriptor that arrives is owned from the first moment, so whatever becomes of the message,
//! none leaks (CVE-2019-14818 and its kin).

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Why a message could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The socket failed, or the peer left in the middle of a message.
    #[error("vhost-user socket")]
    Socket(#[from] std::io::Error),
    /// A header that no vhost-user peer sends.
    #[error("vhost-user message {request}: flags {flags:#x}, {size} bytes: not a valid header")]
    Header {
        /// Request code.
        request: u32,
        /// Flags word.
        flags: u32,
        /// Size of the body in bytes.
        size: u32,
    },
    /// More descriptors than a message may carry.
    #[error("vhost-user message with more than {MAX_FDS} descriptors")]
    TooManyDescriptors,
}

/// One message, either way.
#[derive(Debug)]
pub(super) struct Message {
    /// Request code.
    pub request: u32,
    /// Version, reply and need-reply bits.
    pub flags: u32,
    /// What follows the header.
    pub body: Vec<u8>,
    /// Descriptors that came along.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// A request that wants no answer.
    pub(super) fn request(request: u32, body: Vec<u8>) -> Self {
        Self { request, flags: VERSION, body, fds: Vec::new() }
    }

    /// The answer to a request.
    pub(super) fn answer(request: u32, value: u64) -> Self {
        let body = value.to_le_bytes().to_vec();
        Self { request, flags: VERSION | REPLY, body, fds: Vec::new() }
    }

    /// Whether the sender wants an acknowledgement, provided that REPLY_ACK was negotiated.
    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// The little-endian 64-bit value at byte `at` of the body.
    pub(super) fn u64_at(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.body.get(at..at + 8)?.try_into().ok()?))
    }

    /// The little-endian 32-bit value at byte `at` of the body.
    pub(super) fn u32_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.body.get(at..at + 4)?.try_into().ok()?))
    }
}

/// Reads one message; `None` when the peer closed the connection between messages.
///
/// # Errors
///
/// See [`Error`]; the connection is of no use after any of them.
pub(super) fn receive(stream: &UnixStream) -> Result<Option<Message>, Error> {
    let mut header = [0; HEADER_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(std::io::Error::from)?;
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Error::TooManyDescriptors);
    }
    let mut reader = stream;
    reader.read_exact(&mut header[received.bytes..])?;
    let [request, flags, size] = words(&header);
    // The version is the two lowest bits of the flags.
    if flags & 3 != VERSION || size as usize > MAX_BODY {
        return Err(Error::Header { request, flags, size });
    }
    let mut body = vec![0; size as usize];
    reader.read_exact(&mut body)?;
    Ok(Some(Message { request, flags, body, fds }))
}

/// Writes one message with its descriptors.
///
/// # Errors
///
/// When the socket fails; the connection is of no use afterwards.
pub(super) fn send(stream: &UnixStream, message: &Message) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + message.body.len());
    bytes.extend(message.request.to_le_bytes());
    bytes.extend(message.flags.to_le_bytes());
    let size = u32::try_from(message.body.len()).expect("a body is at most 4 KiB");
    bytes.extend(size.to_le_bytes());
    bytes.extend(&message.body);

    let fds: Vec<_> = message.fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Error::TooManyDescriptors);
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let count = rustix::io::retry_on_intr(|| {
            sendmsg(stream, &[IoSlice::new(&bytes[sent..])], &mut control, SendFlags::NOSIGNAL)
        })
        .map_err(std::io::Error::from)?;
        sent += count;
        // The descriptors went with the first byte.
        control.clear();
    }
    Ok(())
}

fn words(header: &[u8; HEADER_LEN]) -> [u32; 3] {
    let (words, _) = header.as_chunks::<4>();
    [0, 1, 2].map(|at| u32::from_le_bytes(words[at]))
}

/// The protocol version in a header's flags.
pub(super) const VERSION: u32 = 1;
/// Flag of an answer.
pub(super) const REPLY: u32 = 1 << 2;
/// Flag of a request that wants an acknowledgement.
pub(super) const NEED_REPLY: u32 = 1 << 3;

const HEADER_LEN: usize = 12;
/// What the protocol library takes; no message of the protocol comes near it.
const MAX_BODY: usize = 4096;
/// As many as SET_MEM_TABLE may have regions.
const MAX_FDS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let message =
            Message { request: 5, flags: VERSION, body: vec![7; 40], fds: vec![file.into()] };
        send(&a, &message).unwrap();
        send(&a, &Message::answer(1, 99)).unwrap();
        let first = receive(&b).unwrap().unwrap();
        assert_eq!((first.request, first.body, first.fds.len()), (5, vec![7; 40], 1));
        let second = receive(&b).unwrap().unwrap();
        assert_eq!((second.u64_at(0), second.u64_at(1), second.fds.len()), (Some(99), None, 0));
        drop(a);
        assert!(receive(&b).unwrap().is_none());
    }

    #[test]
    fn headers_that_lie_end_the_connection() {
        for header in [[1u32, 0, 0], [1, 2, 0], [1, 1, 4097], [1, 1, u32::MAX]] {
            let (mut a, b) = UnixStream::pair().unwrap();
            a.write_all(&header.map(u32::to_le_bytes).concat()).unwrap();
            assert!(matches!(receive(&b), Err(Error::Header { .. })), "{header:?}");
        }
    }

    #[test]
    fn a_message_cut_short_is_an_error() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(&[1, 0, 0, 0, 1, 0]).unwrap();
        drop(a);
        assert!(matches!(receive(&b), Err(Error::Socket(_))));
    }
}
