//! Receive filters: which packets the function gets (`spec/ef10.md` 4.7). What no filter matches is
//! dropped by the card.

/// What a filter matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// One destination address: the function's own, a multicast group, broadcast.
    Address([u8; 6]),
    /// Multicast that no other filter takes.
    OtherMulticast,
    /// Unicast that no other filter takes: promiscuous.
    OtherUnicast,
}

impl Filter {
    /// Frames to everybody.
    pub const BROADCAST: Self = Self::Address([0xff; 6]);

    /// Whether it takes its packets away from other filters: a unicast address does. All others are
    /// shared with whoever subscribes too.
    pub fn is_exclusive(self) -> bool {
        matches!(self, Self::Address([first, ..]) if first & 1 == 0)
    }

    /// The fields that are matched, as the card names them.
    pub fn match_fields(self) -> u32 {
        match self {
            Self::Address(_) => 1 << 4,
            Self::OtherMulticast => 1 << 30,
            Self::OtherUnicast => 1 << 31,
        }
    }

    /// The destination address that is matched.
    pub fn destination(self) -> Option<[u8; 6]> {
        match self {
            Self::Address(address) => Some(address),
            Self::OtherMulticast | Self::OtherUnicast => None,
        }
    }
}

/// Where matching packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The receive queue, or the first one of the context's.
    pub queue: u32,
    /// The RSS context, when there are several queues.
    pub rss_context: Option<u32>,
}

/// Which packets are wanted beside those to the function's own address and to everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// All unicast.
    pub promiscuous: bool,
    /// All multicast.
    pub all_multicast: bool,
}

/// The filters for a function with this address, in the order they are inserted.
pub fn filters(address: [u8; 6], wanted: Wanted) -> impl Iterator<Item = Filter> {
    let multicast = (wanted.all_multicast || wanted.promiscuous).then_some(Filter::OtherMulticast);
    let unicast = wanted.promiscuous.then_some(Filter::OtherUnicast);
    [Filter::Address(address), Filter::BROADCAST].into_iter().chain(multicast).chain(unicast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unicast_addresses_are_exclusive() {
        assert!(Filter::Address([0, 0xf, 0x53, 0, 0, 1]).is_exclusive());
        for shared in [
            Filter::Address([1, 0, 0x5e, 0, 0, 1]),
            Filter::BROADCAST,
            Filter::OtherMulticast,
            Filter::OtherUnicast,
        ] {
            assert!(!shared.is_exclusive(), "{shared:?}");
        }
    }

    #[test]
    fn wanted_packets() {
        let own = Filter::Address([2; 6]);
        let list = |promiscuous, all_multicast| -> Vec<_> {
            filters([2; 6], Wanted { promiscuous, all_multicast }).collect()
        };
        assert_eq!(list(false, false), [own, Filter::BROADCAST]);
        assert_eq!(list(false, true), [own, Filter::BROADCAST, Filter::OtherMulticast]);
        assert_eq!(
            list(true, false),
            [own, Filter::BROADCAST, Filter::OtherMulticast, Filter::OtherUnicast]
        );
    }
}
