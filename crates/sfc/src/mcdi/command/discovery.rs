//! What the function is and what its firmware can do (4.3).

use super::{Command, PORT_ASSIGNED, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `GET_VERSION`.
#[derive(Debug, Clone, Copy)]
pub struct GetVersion;

/// The firmware's version: four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(pub [u16; 4]);

impl Command for GetVersion {
    const CODE: u16 = 0x8;
    const NAME: &'static str = "GET_VERSION";
    type Reply = Version;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Version, Malformed> {
        let part = |at: usize| reply.u16(24 + 2 * at);
        Ok(Version([part(0)?, part(1)?, part(2)?, part(3)?]))
    }
}

/// `GET_CAPABILITIES`.
#[derive(Debug, Clone, Copy)]
pub struct GetCapabilities;

/// What the running firmware can do. Older firmware tells less: what it does not tell has the value
/// that the drivers of its time assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The first flag word.
    pub flags1: Flags1,
    /// The second flag word.
    pub flags2: Flags2,
    /// The receive datapath's firmware.
    pub rx_firmware: u16,
    /// The transmit datapath's firmware.
    pub tx_firmware: u16,
    /// How large a virtual interface's window is, when told: see
    /// [`window_bytes`](crate::device::window_bytes).
    pub window_mode: Option<u8>,
    /// How many 64-bit statistics the card writes.
    pub statistics: u16,
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub u32);

        impl $name {
            $(
                $(#[$flag_doc])*
                pub fn $flag(self) -> bool {
                    self.0 >> $bit & 1 != 0
                }
            )*
        }
    };
}

flags! {
    /// Capability flags, first word.
    Flags1 {
        /// `SET_MAC` applies only the parts that it is told to.
        set_mac_enhanced = 9,
        /// The vAdaptor's address may change with filters present.
        permit_set_mac = 11,
        /// Hash fields can be chosen per protocol.
        additional_rss_modes = 13,
        /// RSS only in a restricted form: as good as none.
        rx_rss_limited = 16,
        /// The 14-byte receive prefix.
        rx_prefix_14 = 23,
        /// Receive completions are merged.
        rx_batching = 25,
        /// A receive queue can refuse to scatter.
        rx_disable_scatter = 28,
        /// Tunnels are parsed.
        vxlan_nvgre = 31,
    }
}

flags! {
    /// Capability flags, second word.
    Flags2 {
        /// TSO version 2.
        tx_tso_v2 = 0,
        /// Event queues have a type, and `INIT_EVQ` tells the flags in effect.
        init_evq_v2 = 7,
    }
}

impl Command for GetCapabilities {
    const CODE: u16 = 0xbe;
    const NAME: &'static str = "GET_CAPABILITIES";
    type Reply = Capabilities;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Capabilities, Malformed> {
        if reply.len() < 20 {
            return Err(Malformed);
        }
        Ok(Capabilities {
            flags1: Flags1(reply.u32(0)?),
            rx_firmware: reply.u16(4)?,
            tx_firmware: reply.u16(6)?,
            flags2: Flags2(reply.u32(20).unwrap_or(0)),
            window_mode: reply.u8(72).ok(),
            statistics: reply.u16(76).unwrap_or(97),
        })
    }
}

/// `GET_FUNCTION_INFO`.
#[derive(Debug, Clone, Copy)]
pub struct GetFunctionInfo;

/// The function's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Physical function.
    pub physical: u32,
    /// Virtual function, when it is one.
    pub virtual_function: Option<u32>,
}

impl Command for GetFunctionInfo {
    const CODE: u16 = 0xec;
    const NAME: &'static str = "GET_FUNCTION_INFO";
    type Reply = FunctionInfo;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<FunctionInfo, Malformed> {
        let number = reply.u32(4)?;
        let virtual_function = (number != 0xffff).then_some(number);
        Ok(FunctionInfo { physical: reply.u32(0)?, virtual_function })
    }
}

/// `GET_PORT_ASSIGNMENT`.
#[derive(Debug, Clone, Copy)]
pub struct GetPortAssignment;

impl Command for GetPortAssignment {
    const CODE: u16 = 0xb8;
    const NAME: &'static str = "GET_PORT_ASSIGNMENT";
    /// The network port's number, when the function has one.
    type Reply = Option<u32>;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Option<u32>, Malformed> {
        reply.u32(0).map(|port| (port != u32::MAX).then_some(port))
    }
}

/// `GET_MAC_ADDRESSES`: a physical function's own address.
#[derive(Debug, Clone, Copy)]
pub struct GetMacAddresses;

impl Command for GetMacAddresses {
    const CODE: u16 = 0x55;
    const NAME: &'static str = "GET_MAC_ADDRESSES";
    type Reply = [u8; 6];

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<[u8; 6], Malformed> {
        if reply.u32(8)? == 0 {
            return Err(Malformed);
        }
        reply.array(0)
    }
}

/// `VPORT_GET_MAC_ADDRESSES`: a virtual function's own address.
#[derive(Debug, Clone, Copy)]
pub struct VportGetMacAddresses;

impl Command for VportGetMacAddresses {
    const CODE: u16 = 0xaa;
    const NAME: &'static str = "VPORT_GET_MAC_ADDRESSES";
    type Reply = [u8; 6];

    fn request(&self) -> Request {
        words([PORT_ASSIGNED])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<[u8; 6], Malformed> {
        if reply.u32(0)? == 0 {
            return Err(Malformed);
        }
        reply.array(4)
    }
}

/// `GET_WORKAROUNDS`.
#[derive(Debug, Clone, Copy)]
pub struct GetWorkarounds;

/// Which workarounds the firmware knows, and which are in effect; bit masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Workarounds {
    /// Known.
    pub implemented: u32,
    /// In effect.
    pub enabled: u32,
}

impl Command for GetWorkarounds {
    const CODE: u16 = 0x59;
    const NAME: &'static str = "GET_WORKAROUNDS";
    type Reply = Workarounds;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Workarounds, Malformed> {
        Ok(Workarounds { implemented: reply.u32(0)?, enabled: reply.u32(4)? })
    }
}

/// `WORKAROUND`: puts one into effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workaround {
    /// Bug 35388: the event queue's registers are reached through the transmit doorbell's address.
    IndirectEvq,
    /// Bug 26807: a multicast packet reaches every filter that matches.
    ChainedMulticast,
    /// Bug 61265: event timers are set by command only.
    TimerByCommand,
}

impl Workaround {
    /// Its bit in [`Workarounds`].
    pub fn bit(self) -> u32 {
        match self {
            Self::IndirectEvq => 0x4,
            Self::ChainedMulticast => 0x40,
            Self::TimerByCommand => 0x80,
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::IndirectEvq => 2,
            Self::ChainedMulticast => 6,
            Self::TimerByCommand => 7,
        }
    }
}

silent!(Workaround, 0x4a, "WORKAROUND", |self| words([self.number(), 1]));

/// `GET_CLOCK`.
#[derive(Debug, Clone, Copy)]
pub struct GetClock;

/// The chip's clocks in MHz, neither 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// The system clock.
    pub system_mhz: u32,
    /// The datapath processors' clock.
    pub datapath_mhz: u32,
}

impl Command for GetClock {
    const CODE: u16 = 0xac;
    const NAME: &'static str = "GET_CLOCK";
    type Reply = Clocks;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Clocks, Malformed> {
        let clock =
            |at| reply.u32(at).and_then(|mhz| if mhz == 0 { Err(Malformed) } else { Ok(mhz) });
        Ok(Clocks { system_mhz: clock(0)?, datapath_mhz: clock(4)? })
    }
}

/// `GET_RXDP_CONFIG`.
#[derive(Debug, Clone, Copy)]
pub struct GetRxdpConfig;

impl Command for GetRxdpConfig {
    const CODE: u16 = 0xc2;
    const NAME: &'static str = "GET_RXDP_CONFIG";
    /// To what multiple of bytes the card pads its writes; 1 when it does not.
    type Reply = u16;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<u16, Malformed> {
        let word = reply.u32(0)?;
        if word & 1 == 0 {
            return Ok(1);
        }
        match word >> 1 & 3 {
            0 => Ok(64),
            1 => Ok(128),
            2 => Ok(256),
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_by_age_of_the_firmware() {
        let mut bytes = [0; 78];
        bytes[..4].copy_from_slice(&(1u32 << 23 | 1 << 25).to_le_bytes());
        bytes[20] = 0x81;
        bytes[72] = 1;
        bytes[76] = 104;
        let full = GetCapabilities.reply(Reply(&bytes)).unwrap();
        assert!(full.flags1.rx_prefix_14() && full.flags1.rx_batching());
        assert!(full.flags2.tx_tso_v2() && full.flags2.init_evq_v2());
        assert_eq!((full.window_mode, full.statistics), (Some(1), 104));
        let old = GetCapabilities.reply(Reply(&bytes[..20])).unwrap();
        assert!(old.flags1.rx_prefix_14() && !old.flags2.tx_tso_v2());
        assert_eq!((old.window_mode, old.statistics), (None, 97));
        assert_eq!(GetCapabilities.reply(Reply(&bytes[..16])), Err(Malformed));
    }

    #[test]
    fn functions() {
        let info = |vf: [u8; 4]| {
            GetFunctionInfo.reply(Reply(&[2, 0, 0, 0, vf[0], vf[1], vf[2], vf[3]])).unwrap()
        };
        assert_eq!(info([0xff, 0xff, 0, 0]), FunctionInfo { physical: 2, virtual_function: None });
        assert_eq!(info([3, 0, 0, 0]).virtual_function, Some(3));
        assert_eq!(GetPortAssignment.reply(Reply(&[0xff; 4])), Ok(None));
        assert_eq!(GetPortAssignment.reply(Reply(&[1, 0, 0, 0])), Ok(Some(1)));
    }

    #[test]
    fn addresses() {
        let mut pf = [0, 0xf, 0x53, 1, 2, 3, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(GetMacAddresses.reply(Reply(&pf)), Ok([0, 0xf, 0x53, 1, 2, 3]));
        pf[8] = 0;
        assert_eq!(GetMacAddresses.reply(Reply(&pf)), Err(Malformed));
        let vf = [1, 0, 0, 0, 0, 0xf, 0x53, 1, 2, 3];
        assert_eq!(VportGetMacAddresses.reply(Reply(&vf)), Ok([0, 0xf, 0x53, 1, 2, 3]));
        assert_eq!(VportGetMacAddresses.reply(Reply(&vf[..4])), Err(Malformed));
    }

    #[test]
    fn clocks_and_padding() {
        let clocks = GetClock.reply(Reply(&[100, 0, 0, 0, 200, 0, 0, 0]));
        assert_eq!(clocks, Ok(Clocks { system_mhz: 100, datapath_mhz: 200 }));
        assert_eq!(GetClock.reply(Reply(&[0; 8])), Err(Malformed));
        let padding = |word: u8| GetRxdpConfig.reply(Reply(&[word, 0, 0, 0]));
        assert_eq!([0, 1, 3, 5, 7].map(padding), [Ok(1), Ok(64), Ok(128), Ok(256), Err(Malformed)]);
    }

    #[test]
    fn versions_and_workarounds() {
        let mut version = [0; 32];
        version[24..].copy_from_slice(&[6, 0, 2, 0, 7, 0, 0, 4]);
        assert_eq!(GetVersion.reply(Reply(&version)), Ok(Version([6, 2, 7, 0x400])));
        let known = GetWorkarounds.reply(Reply(&[0xc4, 0, 0, 0, 0x80, 0, 0, 0])).unwrap();
        assert_eq!(known.enabled & Workaround::TimerByCommand.bit(), 0x80);
        assert_ne!(known.implemented & Workaround::IndirectEvq.bit(), 0);
        assert_eq!(Workaround::ChainedMulticast.request().bytes(), [6, 0, 0, 0, 1, 0, 0, 0]);
    }
}
