//! A front end that says whatever it is told to, with a guest memory that is written by hand.
//!
//! ```text
//!   ring n at n * 0x4000:  descriptors | +0x1000 available | +0x2000 used       256 entries each
//!   buffers from 0x80000 on
//! ```

use std::fs::File;
use std::io::{ErrorKind, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use guest::features;
use guest::raw::{NEED_REPLY, Raw, Request};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::lab::Lab;

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It was answered: 0 for an acknowledgement.
    Answer(Vec<u8>),
    /// The connection has ended.
    Closed,
}

impl Said {
    /// Done as it was asked for.
    pub(crate) fn done(&self) -> bool {
        *self == Self::Answer(vec![0; 8])
    }
}

/// A connection, memory, and descriptors to kick and be called by.
pub(crate) struct Front {
    pub(crate) raw: Raw,
    pub(crate) memory: File,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
}

impl Front {
    /// Connects and says nothing.
    pub(crate) fn connect(lab: &Lab) -> Self {
        let stream = UnixStream::connect(lab.socket()).expect("a backend that listens");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        let raw = Raw::new(stream);
        raw.patience(Some(PATIENCE)).expect("a socket");
        let event = || event(EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Self { raw, memory: memory(SIZE), kick: event(), call: event() }
    }

    /// Connects and negotiates everything that is on offer.
    pub(crate) fn greeted(lab: &Lab) -> Self {
        Self::greeted_with(lab, !0)
    }

    /// Connects and negotiates of these features what is on offer.
    pub(crate) fn greeted_with(lab: &Lab, features: u64) -> Self {
        let front = Self::connect(lab);
        front.raw.send(Request::SET_OWNER, 0, &[], &[]).expect("a connection");
        let value =
            |request| front.raw.ask(request, 0, &[]).expect("an answer").value().expect("a number");
        let offered = value(Request::GET_FEATURES);
        let protocol = value(Request::GET_PROTOCOL_FEATURES);
        let set = |request, value: u64| {
            front.raw.send(request, 0, &value.to_ne_bytes(), &[]).expect("a connection");
        };
        set(Request::SET_PROTOCOL_FEATURES, protocol);
        let acked = offered & features | offered & features::PROTOCOL_FEATURES;
        assert!(front.say(Request::SET_FEATURES, &acked.to_ne_bytes()).done());
        front
    }

    /// A front end with its memory handed over and the first pair of rings running, which are empty.
    pub(crate) fn running(lab: &Lab) -> Self {
        let front = Self::greeted(lab);
        front.share_memory();
        (0..2).for_each(|ring| front.start(ring));
        front
    }

    /// Sends a request that asks for an answer; what came of it.
    pub(crate) fn say(&self, request: Request, body: &[u8]) -> Said {
        self.say_with(request, body, &[])
    }

    /// As [`Self::say`], with descriptors.
    pub(crate) fn say_with(&self, request: Request, body: &[u8], fds: &[BorrowedFd<'_>]) -> Said {
        let answer = self
            .raw
            .send(request, NEED_REPLY, body, fds)
            .and_then(|()| self.raw.receive())
            .map(|message| (message.request, message.body));
        match answer {
            Ok((answered, body)) => {
                assert_eq!(answered, request, "the answer to something else");
                Said::Answer(body)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                Said::Closed
            }
            Err(error) => panic!("{request:?} is neither answered nor refused: {error}"),
        }
    }

    /// Hands over all of the memory, in one table.
    pub(crate) fn share_memory(&self) {
        let table = table(&[[GUEST, SIZE, USER + GUEST, 0]]);
        let said = self.say_with(Request::SET_MEM_TABLE, &table, &[self.memory.as_fd()]);
        assert!(said.done(), "{said:?}");
    }

    /// Sets a ring up where it belongs, and enables it.
    pub(crate) fn start(&self, ring: u32) {
        self.start_with(ring, self.kick.as_fd(), self.call.as_fd());
    }

    /// Sets a ring up with these descriptors, and enables it.
    pub(crate) fn start_with(&self, ring: u32, kick: BorrowedFd<'_>, call: BorrowedFd<'_>) {
        let at = USER + GUEST + u64::from(ring) * RING;
        let addresses = [at, at + USED, at + AVAIL];
        for said in [
            self.say(Request::SET_VRING_NUM, &words(&[ring, ENTRIES])),
            self.say(Request::SET_VRING_BASE, &words(&[ring, 0])),
            self.say(Request::SET_VRING_ADDR, &vring_addresses(ring, addresses)),
            self.say_with(Request::SET_VRING_KICK, &u64::from(ring).to_ne_bytes(), &[kick]),
            self.say_with(Request::SET_VRING_CALL, &u64::from(ring).to_ne_bytes(), &[call]),
            self.say(Request::SET_VRING_ENABLE, &words(&[ring, 1])),
        ] {
            assert!(said.done(), "{said:?}");
        }
    }

    /// Writes a descriptor of a ring.
    pub(crate) fn descriptor(&self, ring: u32, slot: u16, descriptor: Descriptor) {
        self.put(u64::from(ring) * RING + 16 * u64::from(slot), &descriptor.bytes());
    }

    /// Writes an entry of a ring's available ring.
    pub(crate) fn entry(&self, ring: u32, position: u16, head: u16) {
        let slot = u64::from(position % 256);
        self.put(u64::from(ring) * RING + AVAIL + 4 + 2 * slot, &head.to_le_bytes());
    }

    /// Moves a ring's available index, and kicks.
    pub(crate) fn publish(&self, ring: u32, index: u16) {
        self.put(u64::from(ring) * RING + AVAIL + 2, &index.to_le_bytes());
        bell(&self.kick, 1);
    }

    /// How far the device has used a ring.
    pub(crate) fn used(&self, ring: u32) -> u16 {
        let mut index = [0; 2];
        let at = u64::from(ring) * RING + USED + 2;
        self.memory.read_exact_at(&mut index, at).expect("inside the file");
        u16::from_le_bytes(index)
    }

    /// Writes to guest memory.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, offset).expect("inside the file");
    }

    /// Makes a short packet available on a transmit ring, `count` times from `index` on.
    pub(crate) fn send_packets(&self, ring: u32, index: u16, count: u16) {
        let plain = Descriptor { address: GUEST + BUFFERS, len: 72, flags: 0, next: 0 };
        self.descriptor(ring, 0, plain);
        (0..count).for_each(|nth| self.entry(ring, index.wrapping_add(nth), 0));
        self.publish(ring, index.wrapping_add(count));
    }
}

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Descriptor {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let Self { address, len, flags, next } = self;
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
            .concat()
    }
}

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// An anonymous file, all zero.
pub(crate) fn memory(size: u64) -> File {
    let file = File::from(memfd_create("hostile", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(size).expect("a file of zeros");
    file
}

/// The body of SET_MEM_TABLE: guest address, size, user address, offset of each region.
pub(crate) fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let count = u64::try_from(regions.len()).expect("few");
    [count].iter().chain(regions.as_flattened()).flat_map(|word| word.to_ne_bytes()).collect()
}

/// The body of SET_VRING_ADDR: descriptors, used ring, available ring.
pub(crate) fn vring_addresses(ring: u32, addresses: [u64; 3]) -> Vec<u8> {
    let mut body = words(&[ring, 0]);
    addresses.iter().chain(&[0]).for_each(|word| body.extend(word.to_ne_bytes()));
    body
}

/// A body of 32-bit words.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Descriptors of all kinds, none of them what anybody asks for, with their names.
pub(crate) fn descriptors_of_all_kinds() -> Vec<(&'static str, OwnedFd)> {
    let (reader, writer) = pipe().expect("a pipe");
    let (_, without_reader) = pipe().expect("a pipe");
    let (without_writer, _) = pipe().expect("a pipe");
    let (socket, peer) = UnixStream::pair().expect("sockets");
    let (lonely, _) = UnixStream::pair().expect("sockets");
    let open = |path| OwnedFd::from(File::open(path).expect("it can be read"));
    vec![
        ("a pipe's reading end", reader.into()),
        ("a pipe's writing end", writer.into()),
        ("a pipe without a reader", without_reader.into()),
        ("a pipe without a writer", without_writer.into()),
        ("a socket", socket.into()),
        ("its peer", peer.into()),
        ("a socket without a peer", lonely.into()),
        ("a regular file", tempfile::tempfile().expect("a file").into()),
        ("a directory", open("/")),
        ("a device without end", open("/dev/zero")),
        ("a device that takes nothing", open("/dev/null")),
        ("a file of the system", open("/proc/self/maps")),
        ("an eventfd that blocks", event(EventfdFlags::CLOEXEC)),
        ("a file of memory", memory(4096).into()),
    ]
}

/// An eventfd.
pub(crate) fn event(flags: EventfdFlags) -> OwnedFd {
    eventfd(0, flags).expect("an eventfd")
}

/// Adds to an eventfd.
pub(crate) fn bell(event: &OwnedFd, count: u64) {
    rustix::io::write(event, &count.to_ne_bytes()).expect("an eventfd that has room");
}

/// The guest-physical address of the memory.
pub(crate) const GUEST: u64 = 0x10_0000;
/// From guest-physical addresses to the front end's.
pub(crate) const USER: u64 = 0x7f00_0000_0000;
pub(crate) const SIZE: u64 = 2 << 20;
/// From one ring to the next.
pub(crate) const RING: u64 = 0x4000;
pub(crate) const AVAIL: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;
pub(crate) const ENTRIES: u32 = 256;
/// Where buffers lie in the memory.
pub(crate) const BUFFERS: u64 = 0x8_0000;
/// How long any answer may take: longer than a backend waits for itself.
const PATIENCE: Duration = Duration::from_secs(20);
