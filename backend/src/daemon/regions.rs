//! Checks on guest memory before the protocol library maps it.
//!
//! A region has to be whole and must not meet another, its file has to reach to the region's end (the
//! library maps without looking, and touching a page behind the end of a file is a SIGBUS), and the
//! regions of a table have to be sorted by guest address.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FileType;

use super::message::Message;
use super::shim::take_fds;

/// What is wrong with a memory region.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The table does not have the shape it says.
    #[error("memory table with {regions} region(s) in {bytes} bytes and {fds} descriptor(s)")]
    Table {
        /// How many regions the message says it has.
        regions: u32,
        /// Length of its body.
        bytes: usize,
        /// How many descriptors came along.
        fds: usize,
    },
    /// No bytes, or an end beyond the address space.
    #[error("region at {guest:#x} of {size:#x} bytes wraps around or is empty")]
    Range {
        /// Guest physical address.
        guest: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Two regions share addresses.
    #[error("region at {guest:#x} overlaps the one at {other:#x}")]
    Overlap {
        /// Guest physical address.
        guest: u64,
        /// Guest physical address of the other.
        other: u64,
    },
    /// More regions than a device has slots for, or more bytes than can be mapped beside the rest.
    #[error(
        "memory of {regions} region(s) and {bytes:#x} bytes: at most {MOST_REGIONS} and {MOST_BYTES:#x}"
    )]
    TooMuch {
        /// How many regions there would be.
        regions: usize,
        /// How many bytes they would have.
        bytes: u64,
    },
    /// The region reaches beyond the end of its file.
    #[error(
        "region at {guest:#x} needs {needed:#x} bytes of its file, which has {have:#x}: \
         the front end has to share all of the guest's memory"
    )]
    BeyondFile {
        /// Guest physical address.
        guest: u64,
        /// Offset plus size.
        needed: u64,
        /// Size of the file.
        have: u64,
    },
    /// The descriptor can't be examined.
    #[error("region at {guest:#x}: its descriptor is no file")]
    File {
        /// Guest physical address.
        guest: u64,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// The regions that the library knows of.
#[derive(Debug, Default)]
pub(super) struct Table {
    regions: Vec<Region>,
}

type Refused = (Message, Error);

impl Table {
    /// Checks SET_MEM_TABLE and sorts its regions; the message for the library.
    pub(super) fn replace(&mut self, mut message: Message) -> Result<Message, Refused> {
        match sorted(&mut message) {
            Ok(regions) => {
                self.regions = regions;
                Ok(message)
            }
            Err(error) => Err((message, error)),
        }
    }

    /// Checks ADD_MEM_REG; the message for the library.
    pub(super) fn add(&mut self, message: Message) -> Result<Message, Refused> {
        let shape =
            || Error::Table { regions: 1, bytes: message.body.len(), fds: message.fds.len() };
        // Eight bytes of padding come first.
        let region = match (message.body.get(8..).and_then(Region::parse), &message.fds[..]) {
            (Some(region), [fd]) => region.check(fd).map(|()| region),
            _ => Err(shape()),
        };
        let checked = region.and_then(|region| {
            self.regions.iter().try_for_each(|other| region.is_apart_from(other))?;
            within_limits(self.regions.iter().chain([&region]))?;
            Ok(region)
        });
        match checked {
            Ok(region) => {
                self.regions.push(region);
                Ok(message)
            }
            Err(error) => Err((message, error)),
        }
    }

    /// Forgets the region that REM_MEM_REG names; the library finds fault with it if it must.
    pub(super) fn remove(&mut self, message: &Message) {
        if let Some(region) = message.body.get(8..).and_then(Region::parse) {
            self.regions.retain(|known| known.guest != region.guest);
        }
    }
}

/// One region as it stands in a message: guest address, size, front end's address, offset in the file.
#[derive(Debug, Clone, Copy)]
struct Region {
    guest: u64,
    size: u64,
    user: u64,
    offset: u64,
}

impl Region {
    const LEN: usize = 32;

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..Self::LEN)?.as_chunks::<8>();
        let [guest, size, user, offset] = [0, 1, 2, 3].map(|at| u64::from_le_bytes(words[at]));
        Some(Self { guest, size, user, offset })
    }

    fn write(&self, body: &mut Vec<u8>) {
        for word in [self.guest, self.size, self.user, self.offset] {
            body.extend(word.to_le_bytes());
        }
    }

    fn check(&self, fd: &OwnedFd) -> Result<(), Error> {
        let range = Error::Range { guest: self.guest, size: self.size };
        let ends = [self.guest, self.user, self.offset].map(|start| start.checked_add(self.size));
        let (false, [Some(_), Some(_), Some(needed)]) = (self.size == 0, ends) else {
            return Err(range);
        };
        let stat = rustix::fs::fstat(fd.as_fd())
            .map_err(|error| Error::File { guest: self.guest, source: error.into() })?;
        let have = u64::try_from(stat.st_size).unwrap_or(0);
        // Persistent memory behind a character device has no size of its own.
        let sized = FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice;
        if sized && needed > have {
            return Err(Error::BeyondFile { guest: self.guest, needed, have });
        }
        Ok(())
    }

    /// Both ends were checked not to wrap.
    fn is_apart_from(&self, other: &Self) -> Result<(), Error> {
        let apart = |a: u64, b: u64| a + self.size <= b || b + other.size <= a;
        if apart(self.guest, other.guest) && apart(self.user, other.user) {
            return Ok(());
        }
        Err(Error::Overlap { guest: self.guest, other: other.guest })
    }
}

fn sorted(message: &mut Message) -> Result<Vec<Region>, Error> {
    let count = message.u32_at(0).unwrap_or(0);
    let shape = Error::Table { regions: count, bytes: message.body.len(), fds: message.fds.len() };
    let regions: Vec<_> = message
        .body
        .get(8..)
        .map(|bytes| bytes.as_chunks::<{ Region::LEN }>().0.iter().filter_map(|r| Region::parse(r)))
        .into_iter()
        .flatten()
        .take(count as usize)
        .collect();
    if regions.is_empty() || regions.len() != count as usize || message.fds.len() != regions.len() {
        return Err(shape);
    }
    for (region, fd) in regions.iter().zip(&message.fds) {
        region.check(fd)?;
    }
    let mut pairs: Vec<_> = regions.into_iter().zip(take_fds(message)).collect();
    pairs.sort_by_key(|(region, _)| region.guest);
    for (at, (region, _)) in pairs.iter().enumerate() {
        pairs[..at].iter().try_for_each(|(other, _)| region.is_apart_from(other))?;
    }
    within_limits(pairs.iter().map(|(region, _)| region))?;
    message.body.truncate(8);
    pairs.iter().for_each(|(region, _)| region.write(&mut message.body));
    let (regions, fds) = pairs.into_iter().unzip();
    message.fds = fds;
    Ok(regions)
}

/// Whether so much memory can be kept: each region costs a descriptor, each byte an address.
fn within_limits<'a>(all: impl Iterator<Item = &'a Region>) -> Result<(), Error> {
    let (regions, bytes) =
        all.fold((0, 0_u64), |(count, bytes), one| (count + 1, bytes.saturating_add(one.size)));
    if regions > MOST_REGIONS || bytes > MOST_BYTES {
        return Err(Error::TooMuch { regions, bytes });
    }
    Ok(())
}

/// As many as the library says that there are (GET_MAX_MEM_SLOTS).
const MOST_REGIONS: usize = 509;
/// A quarter of the addresses of a process; a table and the one that replaces it are mapped together.
const MOST_BYTES: u64 = 32 << 40;

#[cfg(test)]
mod tests {
    use super::super::request::{ADD_MEM_REG, SET_MEM_TABLE};
    use super::*;

    fn file(len: u64) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        file.into()
    }

    fn region(guest: u64, size: u64, offset: u64) -> Region {
        Region { guest, size, user: 0x7000_0000 + guest, offset }
    }

    fn table(regions: &[(Region, u64)]) -> Message {
        let count = u32::try_from(regions.len()).unwrap();
        let mut message = Message::request(SET_MEM_TABLE, count.to_le_bytes().to_vec());
        message.body.extend([0; 4]);
        for (region, len) in regions {
            region.write(&mut message.body);
            message.fds.push(file(*len));
        }
        message
    }

    fn add(region: Region, len: u64) -> Message {
        let mut message = Message::request(ADD_MEM_REG, vec![0; 8]);
        region.write(&mut message.body);
        message.fds.push(file(len));
        message
    }

    fn size_of(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).unwrap().st_size
    }

    #[test]
    fn regions_are_sorted_together_with_their_files() {
        let message = table(&[
            (region(0x10000, 0x1000, 0), 0x1000),
            (region(0, 0x2000, 0), 0x2000),
            (region(0x4000, 0x1000, 0x2000), 0x3000),
        ]);
        let message = Table::default().replace(message).unwrap();
        let starts: Vec<_> = (0..3).map(|at| message.u64_at(8 + at * 32)).collect();
        assert_eq!(starts, [Some(0), Some(0x4000), Some(0x10000)]);
        assert_eq!(message.fds.iter().map(size_of).collect::<Vec<_>>(), [0x2000, 0x3000, 0x1000]);
    }

    #[test]
    fn tables_that_lie_are_refused() {
        let refused = |message| Table::default().replace(message).unwrap_err().1;
        assert!(matches!(refused(table(&[])), Error::Table { .. }));
        let mut fewer_fds = table(&[(region(0, 0x1000, 0), 0x1000)]);
        fewer_fds.fds.clear();
        assert!(matches!(refused(fewer_fds), Error::Table { .. }));
        let mut cut = table(&[(region(0, 0x1000, 0), 0x1000)]);
        cut.body.truncate(20);
        assert!(matches!(refused(cut), Error::Table { .. }));
        let mut short = table(&[(region(0, 0x1000, 0), 0x1000)]);
        short.body.truncate(3);
        assert!(matches!(refused(short), Error::Table { .. }));
        let beyond = table(&[(region(0, 0x1000, 0x1000), 0x1fff)]);
        assert!(matches!(refused(beyond), Error::BeyondFile { .. }));
        let empty = table(&[(region(0, 0, 0), 0x1000)]);
        assert!(matches!(refused(empty), Error::Range { .. }));
        let wrapped = table(&[(region(u64::MAX - 10 - 0x7000_0000, 0x7000_1000, 0), 0x1000)]);
        assert!(matches!(refused(wrapped), Error::Range { .. }));
        let overlap = table(&[(region(0x1000, 0x1000, 0), 0x1000), (region(0, 0x1001, 0), 0x2000)]);
        assert!(matches!(refused(overlap), Error::Overlap { .. }));
    }

    #[test]
    fn memory_has_limits() {
        let mut known = Table::default();
        for number in 0..509 {
            known.add(add(region(number << 12, 0x1000, 0), 0x1000)).unwrap();
        }
        let (_, error) = known.add(add(region(509 << 12, 0x1000, 0), 0x1000)).unwrap_err();
        assert!(matches!(error, Error::TooMuch { regions: 510, .. }));
        let bytes = 7 << 40;
        let many: Vec<_> = (0..5).map(|n| (region(n << 44, bytes, 0), bytes)).collect();
        let refused = Table::default().replace(table(&many));
        assert!(matches!(refused.unwrap_err().1, Error::TooMuch { regions: 5, .. }));
    }

    #[test]
    fn added_regions_are_checked_against_the_others_until_removed() {
        let mut known = Table::default();
        known.add(add(region(0, 0x1000, 0), 0x1000)).unwrap();
        let (message, error) = known.add(add(region(0x800, 0x1000, 0), 0x1000)).unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }));
        assert_eq!(message.request, ADD_MEM_REG);
        known.remove(&add(region(0, 0x1000, 0), 0x1000));
        known.add(add(region(0x800, 0x1000, 0), 0x1000)).unwrap();
    }
}
