//! vhost-user messages written by hand, for what a well-behaved front end library does not send: a
//! message at the wrong time, of the wrong size, with too many descriptors, or of a newer protocol.
//!
//! A message is a header of twelve bytes (request, flags, size, in native byte order), a body of `size`
//! bytes, and descriptors beside the first byte.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The number of a request. Any number can be sent; those with a name are constants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Request(pub u32);

macro_rules! requests {
    ($($name:ident = $number:literal,)*) => {
        #[expect(missing_docs, reason = "the names are the protocol's")]
        impl Request {
            $(pub const $name: Self = Self($number);)*
            const NAMES: &[(u32, &str)] = &[$(($number, stringify!($name))),*];
        }
    };
}

requests! {
    GET_FEATURES = 1,
    SET_FEATURES = 2,
    SET_OWNER = 3,
    RESET_OWNER = 4,
    SET_MEM_TABLE = 5,
    SET_LOG_BASE = 6,
    SET_LOG_FD = 7,
    SET_VRING_NUM = 8,
    SET_VRING_ADDR = 9,
    SET_VRING_BASE = 10,
    GET_VRING_BASE = 11,
    SET_VRING_KICK = 12,
    SET_VRING_CALL = 13,
    SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15,
    SET_PROTOCOL_FEATURES = 16,
    GET_QUEUE_NUM = 17,
    SET_VRING_ENABLE = 18,
    SEND_RARP = 19,
    NET_SET_MTU = 20,
    SET_BACKEND_REQ_FD = 21,
    IOTLB_MSG = 22,
    SET_VRING_ENDIAN = 23,
    GET_CONFIG = 24,
    SET_CONFIG = 25,
    RESET_DEVICE = 34,
    GET_MAX_MEM_SLOTS = 36,
    ADD_MEM_REG = 37,
    REM_MEM_REG = 38,
    SET_STATUS = 39,
    GET_STATUS = 40,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Self::NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "request {}", self.0),
        }
    }
}

/// A message received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is, or what it answers.
    pub request: Request,
    /// Version in the lowest two bits, [`REPLY`], [`NEED_REPLY`].
    pub flags: u32,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Message {
    /// The body as one number, if it is one.
    pub fn value(&self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.body.as_slice().try_into().ok()?))
    }
}

/// The version of the protocol, in the flags of every message.
pub const VERSION: u32 = 1;
/// The message is an answer.
pub const REPLY: u32 = 1 << 2;
/// The message wants an answer (REPLY_ACK).
pub const NEED_REPLY: u32 = 1 << 3;

/// One end of a connection, for messages written by hand.
#[derive(Debug)]
pub struct Raw {
    stream: UnixStream,
}

impl Raw {
    /// Over this socket.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// How long an answer may take; `None`: as long as it likes.
    ///
    /// # Errors
    ///
    /// As of `setsockopt`.
    pub fn patience(&self, time: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(time)
    }

    /// Sends a message with a well-formed header. `flags` come on top of [`VERSION`].
    ///
    /// # Errors
    ///
    /// As of `sendmsg`; a back end that closed the connection gives EPIPE.
    pub fn send(
        &self,
        request: Request,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let size = u32::try_from(body.len()).expect("a body is shorter than 4 GiB");
        self.send_sized(request, VERSION | flags, size, body, fds)
    }

    /// Sends a message whose header says whatever it is told to.
    ///
    /// # Errors
    ///
    /// As of `sendmsg`.
    pub fn send_sized(
        &self,
        request: Request,
        flags: u32,
        size: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        for word in [request.0, flags, size] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(body);
        self.write(&bytes, fds)
    }

    /// Sends bytes as they are, with descriptors beside them: at most 64.
    ///
    /// # Errors
    ///
    /// As of `sendmsg`.
    pub fn write(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let part = [IoSlice::new(&bytes[sent..])];
            sent += sendmsg(&self.stream, &part, &mut control, SendFlags::NOSIGNAL)?;
            control.clear();
        }
        Ok(())
    }

    /// The next message.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` when the back end closed the connection, `WouldBlock` when patience ran out,
    /// `InvalidData` when the message is longer than any can be.
    pub fn receive(&self) -> io::Result<Message> {
        let mut header = [[0; 4]; 3];
        (&self.stream).read_exact(header.as_flattened_mut())?;
        let [request, flags, size] = header.map(u32::from_ne_bytes);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > LONGEST {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut body = vec![0; size];
        (&self.stream).read_exact(&mut body)?;
        Ok(Message { request: Request(request), flags, body })
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    ///
    /// As [`Self::send`] and [`Self::receive`]; `InvalidData` when the answer answers something else.
    pub fn ask(&self, request: Request, flags: u32, body: &[u8]) -> io::Result<Message> {
        self.send(request, flags, body, &[])?;
        self.answer(request)
    }

    /// Reads the answer to a request.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`]; `InvalidData` when the message answers something else.
    pub fn answer(&self, request: Request) -> io::Result<Message> {
        let answer = self.receive()?;
        if answer.request != request || answer.flags & REPLY == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(answer)
    }
}

const HEADER: usize = 12;
/// No message of the protocol is longer than this.
const LONGEST: usize = 0x1000;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_sent_arrives() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Raw::new(ours), Raw::new(theirs));
        let body = 7u64.to_ne_bytes();
        let fds = [theirs.stream().as_fd(), theirs.stream().as_fd()];
        ours.send(Request::SET_FEATURES, NEED_REPLY, &body, &fds).unwrap();
        let message = theirs.receive().unwrap();
        assert_eq!(message.request, Request::SET_FEATURES);
        assert_eq!(message.flags, VERSION | NEED_REPLY);
        assert_eq!(message.value(), Some(7));

        theirs.send(Request::GET_STATUS, REPLY, &body, &[]).unwrap();
        let answer = ours.ask(Request::GET_CONFIG, 0, &[]);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(theirs.receive().unwrap().body, []);

        theirs.send_sized(Request(77), 0, 0x1001, &[], &[]).unwrap();
        assert_eq!(ours.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(theirs);
        assert_eq!(ours.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn requests_are_shown_by_name() {
        assert_eq!(
            format!("{:?} {:?}", Request::ADD_MEM_REG, Request(99)),
            "ADD_MEM_REG request 99"
        );
    }
}
