//! The rules that a driver of the card must keep. A breach is counted, and the first ones are told in
//! words; the card goes on as the real one would, or as well as it can.

use std::fmt;

use serde_json::{Map, Value, json};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A rule of the data sheet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// All of them, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of its counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }

        impl fmt::Display for Rule {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text),* })
            }
        }
    };
}

rules! {
    /// DMA while the command register forbids it (1.2).
    BusMaster: "DMA without bus mastering",
    /// A DMA address that nothing is mapped at.
    Unmapped: "DMA to memory that is not mapped",
    /// Memory taken away that a ring, a buffer or a command still refers to.
    UnmapInUse: "memory was unmapped while the card uses it",
    /// A write to a register that does not exist or is read-only (2.2).
    Reserved: "a write to a reserved register",
    /// A register access of a width or at an offset that it does not have.
    Access: "a register access of the wrong width or alignment",
    /// A doorbell of a queue that does not exist.
    NoQueue: "a doorbell of a queue that does not exist",
    /// An address, a size or a pointer that is not aligned as it must be.
    Alignment: "an alignment is wrong",
    /// A receive doorbell that is not a multiple of 8 (2.6).
    DoorbellMultiple: "a receive write pointer is not a multiple of 8",
    /// A write pointer outside of the ring, or one that passes what is outstanding (7.5).
    PastRing: "a pointer is past the ring",
    /// A descriptor with reserved bits, or no bytes.
    Descriptor: "a descriptor is malformed",
    /// An event entry released without being all ones (5.1).
    EventNotCleared: "an event was released without being cleared",
    /// A read pointer beyond what the card wrote.
    EventNotWritten: "an event was released that was never written",
    /// An event ring too small for what it was asked to report (5.1).
    EventOverflow: "an event queue overflowed",
    /// An event ring not all ones when the queue was made (5.1).
    EventRing: "an event ring is not all ones at INIT_EVQ",
    /// A timer or pointer register that a workaround moves elsewhere (2.5, 2.7).
    Workaround: "a register that a workaround forbids",
    /// A request while another one is outstanding (3).
    RequestBusy: "an MCDI request while another is outstanding",
    /// A malformed MCDI header (3.2).
    RequestHeader: "a malformed MCDI header",
    /// The first request after a start does not open an epoch (3.7).
    Epoch: "the first MCDI request does not open an epoch",
    /// A request too short for its command.
    RequestShort: "an MCDI request is too short",
    /// A request with a value that its command does not have.
    RequestValue: "an MCDI request with an impossible value",
    /// A command before another one that it needs (8.1).
    Order: "an MCDI command out of order",
    /// The same object made twice.
    Twice: "an object was made twice",
    /// An object destroyed that others still refer to (4.5).
    InUse: "an object was destroyed while in use",
    /// A transmit queue's first doorbell is not a push of an option descriptor (7.5).
    FirstPush: "a transmit queue does not begin with a pushed option descriptor",
    /// A pushed descriptor that is not the one at the old write pointer (2.6).
    PushMismatch: "a pushed descriptor is not in the ring",
    /// A packet that ends outside of what was handed over, or is too long (7.1).
    PacketEnd: "a packet without an end",
    /// An option descriptor inside a packet, or one that the queue can't honour (7.2).
    Option: "an option descriptor in the wrong place",
    /// A frame that TSO can't cut (7.4).
    Segmentation: "a frame that TSO can't segment",
    /// A statistics buffer of the wrong length or contents (4.10).
    Statistics: "a statistics buffer is not as it must be",
    /// A filter of the wrong kind or with a match that is not supported (4.7).
    Filter: "a filter is not as it must be",
}

/// How many breaches are told in words.
const EXAMPLES: usize = 32;

/// Breaches so far.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    counts: [u64; Rule::ALL.len()],
    examples: Vec<String>,
}

impl Violations {
    /// Counts a breach.
    pub(crate) fn add(&mut self, rule: Rule, detail: impl fmt::Display) {
        let index = Rule::ALL.iter().position(|&other| other == rule).expect("a rule of the list");
        self.counts[index] += 1;
        if self.examples.len() < EXAMPLES {
            log::warn!("violation: {rule}: {detail}");
            self.examples.push(format!("{rule}: {detail}"));
        }
    }

    /// How many.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many of one rule.
    pub fn of(&self, rule: Rule) -> u64 {
        Rule::ALL.iter().zip(self.counts).filter(|&(&other, _)| other == rule).map(|(_, n)| n).sum()
    }

    /// The first ones in words.
    pub fn examples(&self) -> &[String] {
        &self.examples
    }

    /// `{"total": n, "rules": {name: n, …}, "examples": […]}`; rules without a breach are left out.
    pub fn to_json(&self) -> Value {
        let broken = Rule::ALL.iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let rules: Map<_, _> =
            broken.map(|(rule, count)| (rule.name().into(), count.into())).collect();
        json!({ "total": self.total(), "rules": rules, "examples": self.examples })
    }
}
