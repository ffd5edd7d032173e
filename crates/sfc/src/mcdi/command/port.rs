//! The network port: PHY, link, MAC, statistics (4.9, 4.10).

use super::{Command, PORT_ASSIGNED, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `GET_PHY_CFG`.
#[derive(Debug, Clone, Copy)]
pub struct GetPhyConfig;

/// The PHY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhyConfig {
    /// What it can do: the bits of [`SetLink::capabilities`].
    pub supported: u32,
    /// The kind of medium: see the table.
    pub medium: u32,
}

impl Command for GetPhyConfig {
    const CODE: u16 = 0x24;
    const NAME: &'static str = "GET_PHY_CFG";
    type Reply = PhyConfig;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<PhyConfig, Malformed> {
        if reply.len() < 72 {
            return Err(Malformed);
        }
        Ok(PhyConfig { supported: reply.u32(8)?, medium: reply.u32(44)? })
    }
}

/// `GET_LINK`.
#[derive(Debug, Clone, Copy)]
pub struct GetLink;

/// The link as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Up or not.
    pub up: bool,
    /// In Mbit/s; 0 when it is down.
    pub speed: u32,
    /// Both ways at once.
    pub full_duplex: bool,
    /// What we advertise.
    pub capabilities: u32,
    /// Flow control as resolved.
    pub flow_control: FlowControl,
}

/// Pause frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowControl {
    /// None.
    Off,
    /// Obeyed.
    Respond,
    /// Obeyed and sent.
    Both,
    /// A code in no table.
    Unknown(u32),
}

impl FlowControl {
    fn of(code: u32) -> Self {
        match code {
            0 => Self::Off,
            1 => Self::Respond,
            2 => Self::Both,
            code => Self::Unknown(code),
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Respond => 1,
            Self::Both => 2,
            Self::Unknown(code) => code,
        }
    }
}

impl Command for GetLink {
    const CODE: u16 = 0x29;
    const NAME: &'static str = "GET_LINK";
    type Reply = Link;

    fn request(&self) -> Request {
        words([])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Link, Malformed> {
        if reply.len() < 28 {
            return Err(Malformed);
        }
        let flags = reply.u32(16)?;
        let up = flags & 1 != 0;
        Ok(Link {
            up,
            speed: if up { reply.u32(8)? } else { 0 },
            full_duplex: flags & 2 != 0,
            capabilities: reply.u32(0)?,
            flow_control: FlowControl::of(reply.u32(20)?),
        })
    }
}

/// `SET_LINK`: no loopback, nothing powered off.
#[derive(Debug, Clone, Copy)]
pub struct SetLink {
    /// What to advertise, or to force without autonegotiation.
    pub capabilities: u32,
}

silent!(SetLink, 0x2a, "SET_LINK", |self| words([self.capabilities, 0, 0, 0]));

/// `SET_MAC`: passes traffic from now on, the frame check sequence left out.
#[derive(Debug, Clone, Copy)]
pub struct SetMac {
    /// The largest frame behind the Ethernet header.
    pub mtu: u16,
    /// The function's own address (the card ignores it: addresses live in filters).
    pub address: [u8; 6],
    /// Pause frames.
    pub flow_control: FlowControl,
}

impl SetMac {
    /// The largest MTU.
    pub const MAX_MTU: u16 = 9202;

    /// The MAC's frame limit for an MTU: Ethernet header, VLAN tag, frame check sequence, and 16 bytes
    /// for a fault of the MAC, rounded up to 8.
    pub fn frame_limit(mtu: u16) -> u32 {
        (u32::from(mtu) + 14 + 4 + 4 + 16).next_multiple_of(8)
    }
}

silent!(SetMac, 0x2c, "SET_MAC", |self| {
    let mut request = Request::zeroed(28);
    request
        .u32(0, Self::frame_limit(self.mtu))
        .put(8, &self.address)
        .u32(20, self.flow_control.code());
    request
});

/// What `MAC_STATS` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatisticsMode {
    /// Write them once, now.
    Once,
    /// Write them again and again, without an event each time.
    Periodic {
        /// How often, in milliseconds.
        period_ms: u16,
    },
    /// Stop writing.
    Off,
}

/// `MAC_STATS`.
#[derive(Debug, Clone, Copy)]
pub struct MacStatistics {
    /// Where to: an array of 64-bit numbers. Not used with [`StatisticsMode::Off`].
    pub address: u64,
    /// How many numbers.
    pub count: u16,
    /// What to do.
    pub mode: StatisticsMode,
}

silent!(MacStatistics, 0x2e, "MAC_STATS", |self| {
    const DMA: u32 = 1;
    const PERIODIC_CHANGE: u32 = 1 << 2;
    const PERIODIC_ENABLE: u32 = 1 << 3;
    const PERIODIC_NO_EVENT: u32 = 1 << 5;
    let bytes = 8 * u32::from(self.count);
    let (command, len) = match self.mode {
        StatisticsMode::Once => (DMA, bytes),
        StatisticsMode::Periodic { period_ms } => {
            let flags = DMA | PERIODIC_CHANGE | PERIODIC_ENABLE | PERIODIC_NO_EVENT;
            (flags | u32::from(period_ms) << 16, bytes)
        }
        StatisticsMode::Off => (PERIODIC_CHANGE, 0),
    };
    let mut request = Request::zeroed(20);
    request
        .u64(0, if len == 0 { 0 } else { self.address })
        .u32(8, command)
        .u32(12, len)
        .u32(16, PORT_ASSIGNED);
    request
});

#[cfg(test)]
mod tests {
    use super::*;

    fn word(request: &Request, offset: usize) -> u32 {
        Reply(request.bytes()).u32(offset).unwrap()
    }

    #[test]
    fn frame_limits_of_the_reference() {
        assert_eq!([1500, 9000].map(SetMac::frame_limit), [1544, 9040]);
    }

    #[test]
    fn the_mac() {
        let set =
            SetMac { mtu: 1500, address: [1, 2, 3, 4, 5, 6], flow_control: FlowControl::Both };
        let request = set.request();
        assert_eq!(request.bytes().len(), 28);
        assert_eq!([0, 4, 20, 24].map(|at| word(&request, at)), [1544, 0, 2, 0]);
        assert_eq!(request.bytes()[8..16], [1, 2, 3, 4, 5, 6, 0, 0]);
    }

    #[test]
    fn the_link() {
        let mut bytes = [0; 28];
        bytes[0] = 0x80;
        bytes[8..12].copy_from_slice(&10_000u32.to_le_bytes());
        bytes[16] = 3;
        bytes[20] = 2;
        let link = GetLink.reply(Reply(&bytes)).unwrap();
        assert_eq!((link.up, link.full_duplex, link.speed), (true, true, 10_000));
        assert_eq!((link.flow_control, link.capabilities), (FlowControl::Both, 0x80));
        bytes[16] = 0;
        let down = GetLink.reply(Reply(&bytes)).unwrap();
        assert_eq!((down.up, down.speed), (false, 0));
        bytes[20] = 9;
        let odd = GetLink.reply(Reply(&bytes)).unwrap();
        assert_eq!(odd.flow_control, FlowControl::Unknown(9));
        assert_eq!(GetLink.reply(Reply(&bytes[..24])), Err(Malformed));
        assert_eq!(GetPhyConfig.reply(Reply(&[0; 68])), Err(Malformed));
    }

    #[test]
    fn statistics() {
        let request = |mode| MacStatistics { address: 0x9000, count: 97, mode }.request();
        let once = request(StatisticsMode::Once);
        assert_eq!([0, 8, 12, 16].map(|at| word(&once, at)), [0x9000, 1, 776, PORT_ASSIGNED]);
        let periodic = request(StatisticsMode::Periodic { period_ms: 1000 });
        assert_eq!([8, 12].map(|at| word(&periodic, at)), [0x03e8_002d, 776]);
        let off = request(StatisticsMode::Off);
        assert_eq!([0, 8, 12].map(|at| word(&off, at)), [0, 4, 0]);
    }
}
