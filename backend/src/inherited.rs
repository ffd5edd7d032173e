//! Descriptors that were opened before this program started.
//!
//! The one place in this crate that turns a number into an owned descriptor; it needs `unsafe` because
//! only the command line knows that nobody else in the process owns it.
#![expect(
    unsafe_code,
    reason = "a descriptor from the command line has no owner in the type system yet"
)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// A duplicate of descriptor `number`. The original stays open until the program ends.
///
/// # Errors
///
/// When `number` is not open.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: the borrow ends before this function does, and whether the descriptor is open is for the
    // system call to say; -1, the only forbidden value, was refused above.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn open_descriptors_are_duplicated_and_others_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(duplicate(file.as_raw_fd()).is_ok());
        assert!(duplicate(19_999).is_err());
        assert!(duplicate(-1).is_err());
    }
}
