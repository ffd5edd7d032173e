//! What kind of card this is.

/// The generations of the family (1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// SFN7xxx: the timers behind workaround 35388, receive padding of 64 bytes, no tunnels.
    Huntington,
    /// SFN8xxx: the timers behind workaround 61265.
    Medford,
    /// X2: windows of 16 KiB.
    Medford2,
}

/// Physical or virtual function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// A port's own function.
    Physical,
    /// A virtual function, with few privileges (8.2).
    Virtual,
}

/// Capability bits of the first flag word (4.3).
pub mod flags1 {
    /// Several receive completions in one event.
    pub const RX_BATCHING: u32 = 1 << 25;
    pub(crate) const VADAPTOR_QUERY: u32 = 1 << 5;
    pub(crate) const SET_MAC_ENHANCED: u32 = 1 << 9;
    /// RSS modes per protocol.
    pub const ADDITIONAL_RSS_MODES: u32 = 1 << 13;
    pub(crate) const TX_VLAN_INSERTION: u32 = 1 << 19;
    pub(crate) const RX_PREFIX_LEN_14: u32 = 1 << 23;
    pub(crate) const MCAST_FILTER_CHAINING: u32 = 1 << 26;
    pub(crate) const RX_DISABLE_SCATTER: u32 = 1 << 28;
    pub(crate) const EVB: u32 = 1 << 30;
    /// Tunnels: inner classes and checksums, encapsulated filters.
    pub const VXLAN_NVGRE: u32 = 1 << 31;
}

/// Capability bits of the second flag word (4.3).
pub mod flags2 {
    /// Segmentation by two option descriptors.
    pub const TX_TSO_V2: u32 = 1;
    /// Segmentation inside tunnels.
    pub const TX_TSO_V2_ENCAP: u32 = 1 << 1;
    /// Event queues by type, with a longer reply.
    pub const INIT_EVQ_V2: u32 = 1 << 7;
}

/// A card.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its generation.
    pub generation: Generation,
    /// Its function.
    pub function: Function,
    /// The permanent MAC address.
    pub mac: [u8; 6],
    /// Capabilities, first word.
    pub flags1: u32,
    /// Capabilities, second word.
    pub flags2: u32,
    /// How many VIs the function can have.
    pub vis: u32,
    /// Contexts for segmentation.
    pub tso_contexts: u32,
    /// Exclusive RSS contexts.
    pub rss_contexts: usize,
    /// What writes into receive buffers are padded to, in bytes.
    pub padding: u64,
    /// Statistics per upload.
    pub statistics: u32,
}

impl Config {
    /// A card of a generation with all that the model knows.
    pub fn new(generation: Generation, function: Function) -> Self {
        let mut flags1 = flags1::RX_PREFIX_LEN_14
            | flags1::SET_MAC_ENHANCED
            | flags1::RX_BATCHING
            | flags1::RX_DISABLE_SCATTER
            | flags1::VADAPTOR_QUERY
            | flags1::TX_VLAN_INSERTION
            | flags1::MCAST_FILTER_CHAINING
            | flags1::EVB;
        let mut flags2 = flags2::TX_TSO_V2;
        if generation != Generation::Huntington {
            flags1 |= flags1::VXLAN_NVGRE | flags1::ADDITIONAL_RSS_MODES;
            flags2 |= flags2::TX_TSO_V2_ENCAP | flags2::INIT_EVQ_V2;
        }
        let (padding, statistics) = match generation {
            Generation::Huntington => (64, 97),
            Generation::Medford => (128, 104),
            Generation::Medford2 => (256, 125),
        };
        Self {
            generation,
            function,
            mac: [0x00, 0x0f, 0x53, 0x00, 0x00, 0x01],
            flags1,
            flags2,
            vis: 32,
            tso_contexts: 10,
            rss_contexts: 4,
            padding,
            statistics,
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.function == Function::Virtual
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags1 & flag != 0
    }

    pub(crate) fn has2(&self, flag: u32) -> bool {
        self.flags2 & flag != 0
    }

    /// The PCI device identifier (1.1).
    pub(crate) fn device_id(&self) -> u16 {
        let physical = match self.generation {
            Generation::Huntington => 0x0903,
            Generation::Medford => 0x0a03,
            Generation::Medford2 => 0x0b03,
        };
        if self.is_virtual() { physical | 0x1000 } else { physical }
    }

    /// The BAR with the windows (1.2).
    pub(crate) fn bar(&self) -> u32 {
        if self.is_virtual() || self.generation == Generation::Medford2 { 0 } else { 2 }
    }

    /// Bytes from one window to the next (2.1).
    pub(crate) fn stride(&self) -> u64 {
        if self.generation == Generation::Medford2 { 0x4000 } else { 0x2000 }
    }

    /// Bytes of the BAR.
    pub(crate) fn bar_len(&self) -> u64 {
        (self.stride() * u64::from(self.vis)).next_power_of_two()
    }

    /// MSI-X vectors.
    pub(crate) fn vectors(&self) -> u32 {
        self.vis
    }

    /// Entries that transmit rings may have; see 4.5.
    pub(crate) fn max_tx_ring(&self, indirect: bool) -> u32 {
        if self.generation == Generation::Huntington && !indirect { 4096 } else { 2048 }
    }

    /// Bytes of the statistics buffer.
    pub(crate) fn statistics_len(&self) -> u64 {
        8 * u64::from(self.statistics)
    }
}

/// The windows: which VI and which register an offset in the BAR names.
pub(crate) fn window(config: &Config, offset: u64) -> Option<(usize, u64)> {
    let vi = offset / config.stride();
    (vi < u64::from(config.vis)).then(|| {
        let vi = usize::try_from(vi).expect("as many as there are VIs");
        (vi, offset % config.stride())
    })
}
