//! vhost-user messages: a header of three words, a payload, descriptors beside it.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::bits::le32;

/// Numbers of requests.
pub(super) mod request {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const SET_BACKEND_REQ_FD: u32 = 21;
}

/// Version 1, and an answer.
const REPLY: u32 = 1 | 1 << 2;
/// Longest payload of the requests above.
const LONGEST: usize = 4096;

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: u32,
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    /// Reads one; `None` when the other side is gone.
    pub(super) fn receive(mut stream: &UnixStream) -> io::Result<Option<Self>> {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let got = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if got == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut header[got..])?;
        let len = le32(&header, 8) as usize;
        if len > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{len} bytes")));
        }
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload)?;
        Ok(Some(Self { request: le32(&header, 0), payload, fds }))
    }

    /// Answers with a number.
    pub(super) fn reply(&self, mut stream: &UnixStream, value: u64) -> io::Result<()> {
        let header = [self.request, REPLY, 8].map(u32::to_ne_bytes).concat();
        stream.write_all(&[header, value.to_ne_bytes().to_vec()].concat())
    }

    /// Its descriptor.
    pub(super) fn fd(self) -> Option<OwnedFd> {
        self.fds.into_iter().next()
    }
}
