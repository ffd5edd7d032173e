//! The few system calls that the standard library has no safe form of.
//!
//! Each function takes and returns plain values; what the kernel is given to write to is owned here
//! for the time of the call.

#![expect(unsafe_code, reason = "ioctl, socket options and poll are foreign functions")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_ulong};

/// A socket, closed on exec, that never blocks.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes and returns numbers only.
    let fd = check(unsafe { libc::socket(domain, kind, protocol) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to an interface; protocol 0 receives nothing.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, index: i32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).expect("it is 17"),
        sll_protocol: protocol.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = socklen::<libc::sockaddr_ll>();
    let pointer = (&raw const address).cast();
    // SAFETY: the address is a whole sockaddr_ll of that length, and only read.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) }).map(drop)
}

/// Sets a socket option. `T` is the option's C type: integers, or structures of them without padding.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let pointer = std::ptr::from_ref(value).cast();
    // SAFETY: the value is readable for the length of its type, and only read.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, socklen::<T>()) };
    check(result).map(drop)
}

/// Reads a socket option of up to `N` words; words that the kernel does not write stay 0.
pub(crate) fn option<const N: usize>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    let mut length = socklen::<[u32; N]>();
    let pointer = words.as_mut_ptr().cast();
    // SAFETY: the words are writable for that length, and any bits are a value of them.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut length) };
    check(result)?;
    Ok(words)
}

/// The argument of interface ioctls: `struct ifreq` as bytes.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InterfaceRequest {
    /// The name, filled up with zeros.
    pub(crate) name: [u8; 16],
    /// The union behind it.
    pub(crate) data: [u8; 24],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

impl InterfaceRequest {
    /// A request about the interface of that name; a longer name is cut to 15 bytes.
    pub(crate) fn new(interface: &str) -> Self {
        let mut name = [0; 16];
        let bytes = interface.as_bytes();
        let length = bytes.len().min(15);
        name[..length].copy_from_slice(&bytes[..length]);
        Self { name, data: [0; 24] }
    }

    /// The first two bytes of the union.
    pub(crate) fn short(&self) -> u16 {
        u16::from_ne_bytes([self.data[0], self.data[1]])
    }

    /// The first four bytes of the union.
    pub(crate) fn int(&self) -> i32 {
        i32::from_ne_bytes([self.data[0], self.data[1], self.data[2], self.data[3]])
    }

    /// Asks the kernel. The ioctl must be one whose argument is a `struct ifreq` without pointers.
    pub(crate) fn ask(&mut self, fd: BorrowedFd<'_>, code: c_ulong) -> io::Result<()> {
        let pointer: *mut Self = self;
        // SAFETY: the request is a whole ifreq that the kernel may read and write; any bits are a value.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), code, pointer) }).map(drop)
    }
}

/// An ioctl whose argument is a number.
pub(crate) fn ioctl_value(fd: BorrowedFd<'_>, code: c_ulong, value: c_ulong) -> io::Result<()> {
    // SAFETY: the codes used with it take their argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, value) }).map(drop)
}

/// An ioctl that reads a C int.
pub(crate) fn ioctl_int(fd: BorrowedFd<'_>, code: c_ulong, value: c_int) -> io::Result<()> {
    let pointer = &raw const value;
    // SAFETY: the int is readable for the time of the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), code, pointer) }).map(drop)
}

/// The descriptor of an event, for as long as the event is borrowed.
pub(crate) fn borrow(event: &pci::EventFd) -> BorrowedFd<'_> {
    // SAFETY: the event owns the descriptor and is borrowed for as long as this is.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// Whether a read would not block now; also when the descriptor has an error to tell.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, owned here, writable; a time limit of 0 never waits.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// The result of a system call, or what the system says of its failure.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[expect(clippy::cast_possible_truncation, reason = "small C structures")]
const fn socklen<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}
