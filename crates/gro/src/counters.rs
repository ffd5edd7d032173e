//! What became of each packet, and why each flow was completed (`spec/gro.md` 8).
//!
//! Each packet that comes in is counted once: merged, held, or passed for one reason. Each flow that was
//! held is counted once more when it leaves, with the one reason why.

use std::borrow::Cow;

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in statistics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Why a packet passed without being held or merged.
    Passed {
        /// GRO is off.
        GroOff => "gro_off",
        /// The guest can't take this kind of super-packet.
        NoGuestFeature => "no_guest_feature",
        /// Neither TCP nor anything else that merges.
        NoHandler => "no_handler",
        /// A header is cut off.
        Truncated => "truncated",
        /// IPv4 options, or a version that is none.
        IpOptions => "ip_options",
        /// An IP fragment.
        Fragment => "fragment",
        /// The IPv4 header checksum is wrong.
        IpChecksum => "ip_csum",
        /// The IP length is not that of the frame: truncated, or padded.
        IpLength => "ip_len",
        /// The reserved IPv4 flag is set.
        ReservedBit => "reserved_bit",
        /// IPv6 extension headers that are cut off, or too many.
        ExtensionHeader => "ext_header",
        /// A TCP header that can't be.
        L4Header => "l4_header",
        /// The transport checksum is wrong, or nobody has verified it.
        L4Checksum => "l4_csum",
        /// No payload.
        ZeroPayload => "zero_payload",
        /// Payload too small to be the size of segments.
        SmallPayload => "small_payload",
        /// SYN, FIN, RST, PSH or URG on a packet that fits no held one.
        ControlFlag => "control_flag",
        /// A super-packet from a source that is not trusted, or one that can't be continued.
        UntrustedSuper => "untrusted_super",
        /// More VLAN tags than are looked through.
        Recursion => "recursion",
    }
}

reasons! {
    /// Why a held flow was completed.
    Completed {
        /// FIN, PSH or another flag on its last packet.
        PshFin => "psh_fin",
        /// Its last segment is shorter than the first.
        ShortSegment => "short_segment",
        /// The next segment is longer than the first.
        LongerSegment => "longer_segment",
        /// The next packet has no payload.
        PureAck => "pure_ack",
        /// A gap, a repetition or another order.
        Sequence => "seq",
        /// Another acknowledgement number.
        Ack => "ack",
        /// Another window.
        Window => "window",
        /// Other flags or header length.
        Flags => "flags",
        /// Other options.
        Options => "options",
        /// Another TTL.
        Ttl => "ttl",
        /// Another type of service.
        Tos => "tos",
        /// Another don't-fragment flag.
        Df => "df",
        /// An IPv4 id that neither counts up nor stands still.
        Id => "id",
        /// Another hop limit.
        HopLimit => "hop_limit",
        /// Another traffic class.
        TrafficClass => "traffic_class",
        /// The super-packet would be too large.
        SizeLimit => "size_limit",
        /// The super-packet would stand for too many segments or lie in too many pieces.
        SegmentLimit => "segment_limit",
        /// The next packet is a SYN, RST or FIN without payload, or urgent.
        ControlPacket => "control_packet",
        /// Another packet, which can't be merged and may belong to the flow, came behind it.
        OrderRule => "order_rule",
        /// A super-packet as input whose segments are of another kind.
        Refused => "refused",
        /// Its place was needed.
        Evicted => "evicted",
        /// The poll ended.
        PollEnd => "poll_end",
        /// It was held long enough.
        Aged => "aged",
        /// What the guest can take has changed.
        FeatureChange => "feature_change",
        /// The guest's ring was reset.
        Reset => "reset",
        /// The program ends.
        Shutdown => "shutdown",
    }
}

/// Counters of an engine. Packets, unless they say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came in: the sum of merged, held and passed.
    pub received: u64,
    /// Appended to a held one.
    pub merged: u64,
    /// Held as the first of a flow: the sum of completed flows, and of those held now.
    pub held: u64,
    /// Super-packets made: completed flows of two packets or more.
    pub supers: u64,
    /// Packets that the super-packets made stand for.
    pub segments: u64,
    /// Bytes of the super-packets made.
    pub bytes: u64,
    passed: [u64; Passed::ALL.len()],
    completed: [u64; Completed::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            received: 0,
            merged: 0,
            held: 0,
            supers: 0,
            segments: 0,
            bytes: 0,
            passed: [0; Passed::ALL.len()],
            completed: [0; Completed::ALL.len()],
        }
    }
}

impl Counters {
    #[inline]
    pub(crate) fn pass(&mut self, reason: Passed) {
        self.passed[reason as usize] += 1;
    }

    #[inline]
    pub(crate) fn pass_many(&mut self, reason: Passed, count: u64) {
        self.passed[reason as usize] += count;
    }

    #[inline]
    pub(crate) fn complete(&mut self, reason: Completed) {
        self.completed[reason as usize] += 1;
    }

    /// How many passed for this reason.
    pub fn passed_for(&self, reason: Passed) -> u64 {
        self.passed[reason as usize]
    }

    /// How many flows were completed for this reason.
    pub fn completed_for(&self, reason: Completed) -> u64 {
        self.completed[reason as usize]
    }

    /// Everything, by name, for statistics: reasons are `passed_…` and `completed_…`.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let totals = [
            ("received", self.received),
            ("merged", self.merged),
            ("held_as_head", self.held),
            ("supers", self.supers),
            ("segments", self.segments),
            ("bytes", self.bytes),
        ];
        totals
            .into_iter()
            .map(|(name, count)| (Cow::Borrowed(name), count))
            .chain(self.passed().map(|(name, count)| (Cow::Owned(format!("passed_{name}")), count)))
            .chain(
                self.completed()
                    .map(|(name, count)| (Cow::Owned(format!("completed_{name}")), count)),
            )
    }

    /// Passed packets by reason.
    pub fn passed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Passed::ALL.iter().map(|reason| (reason.name(), self.passed_for(*reason)))
    }

    /// Completed flows by reason.
    pub fn completed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Completed::ALL.iter().map(|reason| (reason.name(), self.completed_for(*reason)))
    }
}
