//! Many frames to a socket in one system call (`sendmmsg`), straight from their buffers.
//!
//! ```text
//!  message n ──▶ [virtio header] [addresses] [VLAN tag] [rest of the head] [piece] [piece] …
//! ```
//!
//! Three arrays are set aside once and filled anew for each call; the pointers in them are good from
//! [`Batch::build`] to the end of the call inside [`Batch::send`], which is one `&mut` borrow of the
//! batch and one borrow of the frames.

#![expect(unsafe_code, reason = "sendmmsg takes arrays of pointers")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use packet::Frame;

use crate::pieces::SHORTEST;
use crate::vnet::Header;

/// The arrays of one call.
pub(super) struct Batch {
    fronts: Vec<Front>,
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Where the parts of each message begin, and how many they are.
    spans: Vec<(usize, usize)>,
}

// SAFETY: the pointers in the arrays are used only inside `send`, where they were made.
unsafe impl Send for Batch {}

/// What stands in front of a frame or is put between its bytes.
#[derive(Clone, Copy)]
struct Front {
    header: [u8; Header::LEN],
    tag: [u8; 4],
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            fronts: Vec::with_capacity(MOST_FRAMES),
            parts: Vec::with_capacity(MOST_PARTS),
            messages: Vec::with_capacity(MOST_FRAMES),
            spans: Vec::with_capacity(MOST_FRAMES),
        }
    }

    /// Sends frames from the front of the slice; answers how many were taken, at least 1.
    ///
    /// # Errors
    ///
    /// What the system says of the first frame; `InvalidInput` when it can't even be handed over.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        frames: &[Frame],
        vnet: bool,
    ) -> io::Result<usize> {
        self.build(frames, vnet);
        let count = u32::try_from(self.messages.len()).expect("a batch is small");
        if count == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            let messages = self.messages.as_mut_ptr();
            // SAFETY: `count` messages, each pointing at parts in `self.parts` (not grown since), and
            // those at bytes in `self.fronts` and in `frames`, which are borrowed for this call.
            let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages, count, 0) };
            match usize::try_from(sent) {
                Ok(sent) => return Ok(sent),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Fills the arrays with as many frames as fit, up to the first that can't be handed over.
    fn build(&mut self, frames: &[Frame], vnet: bool) {
        self.fronts.clear();
        self.parts.clear();
        self.messages.clear();
        self.spans.clear();
        for frame in frames.iter().take(MOST_FRAMES) {
            let most = 4 + frame.tail().len();
            if frame.head().len() < SHORTEST || self.parts.len() + most > MOST_PARTS {
                break;
            }
            let Ok(header) = Header::of(frame) else { break };
            self.add(frame, header, vnet);
        }
        // Only now: the parts have their place.
        for (first, count) in &self.spans {
            self.messages.push(message(&mut self.parts[*first..*first + *count]));
        }
    }

    fn add(&mut self, frame: &Frame, header: Header, vnet: bool) {
        let first = self.parts.len();
        let tag = frame.meta.vlan.map_or([0; 4], |vlan| {
            let ([t0, t1], [c0, c1]) = (vlan.tpid.to_be_bytes(), vlan.tci.to_be_bytes());
            [t0, t1, c0, c1]
        });
        // The array never grows beyond its capacity, so this place stays.
        self.fronts.push(Front { header: header.to_bytes(), tag });
        let front = self.fronts.last().expect("just pushed");
        if vnet {
            self.parts.push(part(&front.header));
        }
        let head = frame.head();
        if frame.meta.vlan.is_some() {
            let (addresses, rest) = head.split_at(ADDRESSES);
            self.parts.extend([part(addresses), part(&front.tag), part(rest)]);
        } else {
            self.parts.push(part(head));
        }
        self.parts.extend(frame.tail().iter().map(|piece| part(piece.bytes())));
        self.spans.push((first, self.parts.len() - first));
    }
}

/// Bytes that the kernel reads; the type has no pointer for reading only.
fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn message(parts: &mut [libc::iovec]) -> libc::mmsghdr {
    let header = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: parts.as_mut_ptr(),
        msg_iovlen: parts.len(),
        msg_control: std::ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    libc::mmsghdr { msg_hdr: header, msg_len: 0 }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

const MOST_FRAMES: usize = 64;
/// UIO_MAXIOV, what the kernel takes for one message; here for all of a call.
const MOST_PARTS: usize = 1024;
const ADDRESSES: usize = 12;
