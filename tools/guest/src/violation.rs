//! Rules that a device must not break, each with a counter.
//!
//! "V1" to "V10" are the header rules of the project's GRO reference (virtio 1.3, 5.1.6.4); the ring
//! rules are those of virtio 1.3, 2.7.8 and 5.1.6.4.1.

use std::fmt;

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A rule that the device broke.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Violation {
            $($(#[$doc])* $name,)*
        }

        impl Violation {
            /// All of them, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of its counter.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }

        impl fmt::Display for Violation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text),* })
            }
        }
    };
}

violations! {
    /// The used index moved by more than was outstanding. The ring is not read any further.
    UsedIndex: "the used index is ahead of the buffers posted",
    /// A used element names no buffer that is outstanding.
    UsedId: "a used element names no outstanding buffer",
    /// A used element has more bytes than its buffer.
    UsedTooLong: "more bytes were used than the buffer has",
    /// A used element has too few bytes for a header and a packet.
    UsedTooShort: "fewer bytes were used than the header and a frame need",
    /// A packet's buffers were not published together (virtio 5.1.6.4.1).
    Straddles: "a packet was published before all of its buffers",
    /// `num_buffers` is zero, or not 1 without MRG_RXBUF (V7).
    NumBuffers: "num_buffers is wrong",
    /// A buffer before the last of a packet has room left (V7).
    BufferNotFull: "a buffer before the packet's last is not full",
    /// A buffer sent came back with bytes written.
    SentWritten: "bytes were written to a buffer that was sent",
    /// A flag whose feature was not acked (V1, V5, V8).
    FlagNotAcked: "a flag is set whose feature was not acked",
    /// NEEDS_CSUM and DATA_VALID at once.
    BothFlags: "NEEDS_CSUM and DATA_VALID are both set",
    /// A `gso_type` whose feature was not acked, or that does not exist.
    TypeNotAcked: "gso_type was not acked",
    /// Segmentation without a partial checksum (V2).
    NoChecksum: "gso_type without NEEDS_CSUM",
    /// Segmentation without a segment size (V2), or one too small to segment by.
    SegmentSize: "gso_size does not fit gso_type",
    /// Segmentation of a packet that is one segment, or more than 64 of UDP.
    SegmentCount: "the number of segments is not one that a guest takes",
    /// The packet is not what `gso_type` says.
    TypeMismatch: "gso_type does not fit the packet",
    /// `csum_start` or `csum_offset` is not where the checksum is.
    ChecksumPosition: "csum_start and csum_offset are not the transport checksum's",
    /// The checksum field does not hold the pseudo-header's sum (V3).
    ChecksumNotPartial: "NEEDS_CSUM without the pseudo-header's sum in the packet",
    /// DATA_VALID on a packet whose checksum is wrong (V4).
    ChecksumNotValid: "DATA_VALID on a packet with a wrong checksum",
    /// `hdr_len` is less than the headers or more than the frame (V6).
    HeaderLength: "hdr_len does not cover the headers",
    /// A field that no feature or flag gives a meaning to is not zero (V10).
    StrayField: "a header field without a meaning is not zero",
    /// An unsegmented frame is longer than the MTU allows.
    LongerThanMtu: "a frame is longer than the MTU",
    /// A merged packet's IP length is not the frame's.
    IpLength: "the IP length of a merged packet is not the frame's",
    /// RSC_INFO is missing or its counts are wrong (V5).
    RscInfo: "RSC_INFO does not say what was merged",
}

/// How often each rule was broken, and the first time in words.
#[derive(Clone, Debug)]
pub struct Violations {
    counts: Vec<u64>,
    first: Vec<String>,
}

impl Violations {
    /// None so far.
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; Violation::ALL.len()], first: Vec::new() }
    }

    /// Counts one, and keeps `about` if it is among the first few.
    #[cold]
    pub(crate) fn add(&mut self, violation: Violation, about: impl fmt::Display) {
        self.counts[violation as usize] += 1;
        if self.first.len() < KEPT {
            self.first.push(format!("{violation}: {about}"));
        }
    }

    /// How often this rule was broken.
    pub fn count(&self, violation: Violation) -> u64 {
        self.counts[violation as usize]
    }

    /// How often any rule was broken.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The rules that were broken, and how often.
    pub fn broken(&self) -> impl Iterator<Item = (Violation, u64)> {
        Violation::ALL.iter().map(|rule| (*rule, self.count(*rule))).filter(|(_, count)| *count > 0)
    }

    /// The first few, in words.
    pub fn first(&self) -> &[String] {
        &self.first
    }
}

/// How many violations are kept in words.
const KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_counter() {
        let mut violations = Violations::new();
        for (number, rule) in Violation::ALL.iter().enumerate() {
            for _ in 0..=number {
                violations.add(*rule, number);
            }
        }
        let broken: Vec<_> = violations.broken().collect();
        assert_eq!(broken.len(), Violation::ALL.len());
        for (number, (rule, count)) in broken.into_iter().enumerate() {
            assert_eq!((rule, count), (Violation::ALL[number], number as u64 + 1));
        }
        assert_eq!(violations.first().len(), KEPT);
        assert_eq!(violations.first()[0], format!("{}: 0", Violation::UsedIndex));
    }
}
