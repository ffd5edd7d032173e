//! The port and its statistics (4.9, 4.10).

use std::time::Duration;

use super::{Answer, Reply, Request, empty, error, refuse};
use crate::bits::{bit, bits};
use crate::card::Card;
use crate::config::{Generation, flags1};
use crate::stats::Periodic;
use crate::violation::Rule;

/// 1G, 10G and 25G full duplex, pause (4.9).
const CAPABILITIES: u32 = 1 << 6 | 1 << 7 | 1 << 8 | 1 << 14;
const SPEED_MBPS: u32 = 10_000;
const SFP_PLUS: u32 = 5;
/// Numbers of statistics that buffers may have (4.10).
const LAYOUTS: [u64; 4] = [97, 104, 121, 125];

impl Card {
    pub(super) fn get_phy_cfg(&mut self, _: &Request) -> Answer {
        Reply::new(72)
            .dword(0, 1)
            .dword(4, 1)
            .dword(8, CAPABILITIES)
            .bytes(24, b"sfc-model")
            .dword(44, SFP_PLUS)
            .bytes(52, b"1")
            .done()
    }

    pub(super) fn get_phy_state(&mut self, _: &Request) -> Answer {
        Reply::new(4).dword(0, 1).done()
    }

    pub(super) fn get_loopback_modes(&mut self, _: &Request) -> Answer {
        // Only "none".
        [0, 8, 16, 24, 32].iter().fold(Reply::new(40), |reply, &at| reply.dword(at, 1)).done()
    }

    pub(super) fn get_link(&mut self, _: &Request) -> Answer {
        const UP: u32 = 0b1011;
        const MODULE: u32 = 3 << 8;
        let up = self.port.is_up();
        let (speed, flags) = if up { (SPEED_MBPS, UP | MODULE) } else { (0, 2 | MODULE) };
        Reply::new(28)
            .dword(0, CAPABILITIES)
            .dword(4, if up { CAPABILITIES } else { 0 })
            .dword(8, speed)
            .dword(16, flags)
            .dword(20, self.port.flow_control)
            .dword(24, u32::from(!up))
            .done()
    }

    pub(super) fn set_link(&mut self, request: &Request) -> Answer {
        const LINKDOWN: u32 = 3;
        let flags = u64::from(request.dword(4));
        if request.dword(8) > 1 {
            return refuse(error::EINVAL);
        }
        self.port.forced_down = bit(flags, LINKDOWN);
        empty()
    }

    pub(super) fn set_mac(&mut self, request: &Request) -> Answer {
        let (mtu, drain, fcntl) = (request.dword(0), request.dword(4), request.dword(20));
        let enhanced = self.config.has(flags1::SET_MAC_ENHANCED) && request.len() >= 32;
        let apply = if enhanced { u64::from(request.dword(28)) } else { u64::MAX };
        if bit(apply, 4) && request.dword(24) & 1 == 1 {
            return refuse(error::ENOTSUP);
        }
        if bit(apply, 0) {
            if !(64..=9240).contains(&mtu) {
                return self
                    .wrong(Rule::RequestValue, &format!("SET_MAC with frames of {mtu} bytes"));
            }
            self.set_mtu(mtu);
        }
        if bit(apply, 1) {
            self.port.drain = drain != 0;
        }
        if bit(apply, 3) {
            // What is negotiated: a peer that does whatever is asked. Automatic becomes both.
            self.port.flow_control = match fcntl {
                0 | 1 => fcntl,
                2 | 3 => 2,
                5 => 0,
                _ => {
                    return self
                        .wrong(Rule::RequestValue, &format!("SET_MAC with flow control {fcntl}"));
                }
            };
        }
        empty()
    }

    pub(super) fn mac_stats(&mut self, request: &Request) -> Answer {
        let (address, command) = (request.qword(0), u64::from(request.dword(8)));
        let len = u64::from(request.dword(12));
        let (once, clear, change, enable) =
            (bit(command, 0), bit(command, 1), bit(command, 2), bit(command, 3));
        let start = change && enable;
        if start && self.config.is_virtual() {
            return refuse(error::EPERM);
        }
        if clear {
            self.counters.clear();
        }
        if change && !enable {
            self.counters.periodic = None;
        }
        if !once && !start && (change || len == 0) {
            return empty();
        }
        let queues = self.function.rxqs.iter().flatten().count()
            + self.function.txqs.iter().flatten().count();
        if queues == 0 && (once || start) {
            return refuse(error::ENOENT);
        }
        if !LAYOUTS.contains(&(len / 8)) || len % 8 != 0 || len > self.config.statistics_len() {
            return self.wrong(Rule::Statistics, &format!("a buffer of {len} bytes"));
        }
        if address % 8 != 0 {
            return self.wrong(Rule::Alignment, &format!("a statistics buffer at {address:#x}"));
        }
        if start {
            let mark = self.host.load_qword(address + len - 8, "a statistics buffer");
            if mark.is_some_and(|mark| mark != u64::MAX) {
                self.host
                    .violation(Rule::Statistics, "the end of the buffer is not marked invalid");
            }
            let asked = bits(command, 16, 16);
            let fixed = self.config.generation == Generation::Huntington || asked == 0;
            let period = Duration::from_millis(if fixed { 1000 } else { asked });
            self.counters.periodic = Some(Periodic {
                address,
                len,
                period,
                clear: bit(command, 4),
                event: !bit(command, 5),
                next: self.host.now + period,
            });
        }
        // A request with a buffer that asks for nothing is taken as an upload (section 12).
        self.upload(address, len);
        empty()
    }
}
