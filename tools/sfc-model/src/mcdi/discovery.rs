//! What the function is and can do (4.3).

use super::{ASSIGNED, Answer, Reply, Request, empty, error, half, refuse};
use crate::bits::{low16, low32, number};
use crate::card::Card;
use crate::config::{Generation, flags1};
use crate::filter::{SUPPORTED, SUPPORTED_ENCAP};
use crate::violation::Rule;

/// Clock of the chip, in MHz: a tick of the timers is 1536 cycles (5.7).
const CLOCK: u32 = 800;

/// Numbers of workarounds (4.3).
mod bug {
    pub(super) const INDIRECT: u32 = 2;
    pub(super) const CHAINING: u32 = 6;
    pub(super) const TIMERS: u32 = 7;
}

/// Privileges (4.3).
mod privilege {
    pub(super) const ALL: u32 = 0xffff;
    pub(super) const UNICAST: u32 = 0x40;
    pub(super) const MULTICAST: u32 = 0x80;
    pub(super) const BROADCAST: u32 = 0x100;
    pub(super) const ALL_MULTICAST: u32 = 0x200;
}

impl Card {
    pub(super) fn get_capabilities(&mut self, _: &Request) -> Answer {
        let config = &self.config;
        let vis = half(config.vis);
        // Only this function, on port 0; the others are absent.
        let mut ports = [0xfe; 16];
        ports[0] = 0;
        let window_mode = u8::from(config.generation == Generation::Medford2);
        Reply::new(78)
            .dword(0, config.flags1)
            .dword(20, config.flags2)
            .word(24, half(config.tso_contexts))
            .bytes(26, &ports)
            .word(58, vis)
            .bytes(66, &[5, 4])
            .bytes(72, &[window_mode])
            .word(76, half(config.statistics))
            .done()
    }

    pub(super) fn get_function_info(&mut self, _: &Request) -> Answer {
        let vf = if self.config.is_virtual() { 0 } else { 0xffff };
        Reply::new(8).dword(4, vf).done()
    }

    pub(super) fn get_port_assignment(&mut self, _: &Request) -> Answer {
        Reply::new(4).done()
    }

    pub(super) fn get_mac_addresses(&mut self, _: &Request) -> Answer {
        Reply::new(16).bytes(0, &self.config.mac).dword(8, 1).dword(12, 1).done()
    }

    pub(super) fn vport_get_mac_addresses(&mut self, request: &Request) -> Answer {
        if request.dword(0) != ASSIGNED {
            return self.wrong(Rule::RequestValue, "VPORT_GET_MAC_ADDRESSES of another port");
        }
        Reply::new(10).dword(0, 1).bytes(4, &self.config.mac).done()
    }

    pub(super) fn privilege_mask(&mut self, request: &Request) -> Answer {
        let mask = if self.config.is_virtual() {
            privilege::UNICAST
                | privilege::MULTICAST
                | privilege::BROADCAST
                | privilege::ALL_MULTICAST
        } else {
            privilege::ALL
        };
        if request.dword(4) >> 31 == 1 {
            return refuse(error::EPERM);
        }
        Reply::new(4).dword(0, mask).done()
    }

    pub(super) fn get_workarounds(&mut self, _: &Request) -> Answer {
        let (mut implemented, mut enabled) = (1 << bug::CHAINING, 0);
        match self.config.generation {
            Generation::Huntington => implemented |= 1 << bug::INDIRECT,
            Generation::Medford => {
                implemented |= 1 << bug::TIMERS;
                enabled |= 1 << bug::TIMERS;
            }
            Generation::Medford2 => {}
        }
        enabled |= u32::from(self.mc.indirect) << bug::INDIRECT;
        enabled |= u32::from(self.mc.chaining) << bug::CHAINING;
        // The bit of a workaround is that of its number (4.3).
        Reply::new(8).dword(0, implemented).dword(4, enabled).done()
    }

    pub(super) fn workaround(&mut self, request: &Request) -> Answer {
        let (kind, enable) = (request.dword(0), request.dword(4));
        if enable > 1 {
            return self.wrong(Rule::RequestValue, "WORKAROUND neither enables nor disables");
        }
        let mut reset = false;
        match (kind, self.config.generation) {
            (bug::INDIRECT, Generation::Huntington) => self.mc.indirect = enable == 1,
            (bug::CHAINING, _) => {
                // Functions with filters are reset: this is the only one.
                reset = self.mc.chaining != (enable == 1) && !self.function.filters.is_empty();
                self.mc.chaining = enable == 1;
            }
            (bug::TIMERS, Generation::Medford) if enable == 1 => {}
            _ => return refuse(error::ENOENT),
        }
        if reset {
            self.forget_function();
        }
        Reply::new(4).dword(0, u32::from(reset)).done()
    }

    pub(super) fn get_clock(&mut self, _: &Request) -> Answer {
        Reply::new(8).dword(0, CLOCK).dword(4, CLOCK).done()
    }

    pub(super) fn get_rxdp_config(&mut self, _: &Request) -> Answer {
        let len = match self.config.padding {
            64 => 0,
            128 => 1,
            _ => 2,
        };
        Reply::new(4).dword(0, 1 | len << 1).done()
    }

    pub(super) fn get_port_modes(&mut self, _: &Request) -> Answer {
        Reply::new(12).dword(0, 1).done()
    }

    pub(super) fn get_pf_count(&mut self, _: &Request) -> Answer {
        Ok(vec![1])
    }

    pub(super) fn get_vector_cfg(&mut self, _: &Request) -> Answer {
        let vectors = self.config.vectors();
        Reply::new(12).dword(4, vectors).dword(8, vectors).done()
    }

    pub(super) fn sensor_info(&mut self, _: &Request) -> Answer {
        Reply::new(4).done()
    }

    pub(super) fn get_parser_disp_info(&mut self, request: &Request) -> Answer {
        const MATCHES: u32 = 1;
        const ENCAP_MATCHES: u32 = 4;
        let op = request.dword(0);
        let list = match op {
            MATCHES => SUPPORTED,
            ENCAP_MATCHES if self.config.has(flags1::VXLAN_NVGRE) => SUPPORTED_ENCAP,
            _ => return refuse(error::EINVAL),
        };
        let reply = Reply::new(8 + 4 * list.len()).dword(0, op).dword(4, low32(number(list.len())));
        list.iter()
            .enumerate()
            .fold(reply, |reply, (index, &fields)| reply.dword(8 + 4 * index, fields))
            .done()
    }

    pub(super) fn set_tunnel_ports(&mut self, request: &Request) -> Answer {
        const MOST: u32 = 16;
        const UNLOADING: u32 = 1;
        if !self.config.has(flags1::VXLAN_NVGRE) {
            return refuse(error::ENOSYS);
        }
        let (flags, count) = (request.dword(0) & 0xffff, request.dword(0) >> 16);
        if count > MOST || flags & !UNLOADING != 0 || request.len() < 4 + 4 * count as usize {
            return self.wrong(Rule::RequestValue, "SET_TUNNEL_ENCAP_UDP_PORTS");
        }
        let entries = (0..count as usize).map(|index| request.dword(4 + 4 * index));
        let ports: Vec<u16> = entries.map(|entry| low16(u64::from(entry & 0xffff))).collect();
        if ports == self.function.tunnel_ports {
            return Reply::new(2).done();
        }
        if flags & UNLOADING != 0 {
            // Nobody is left to be told: taken over without a reboot (unverified).
            self.function.tunnel_ports = ports;
            return Reply::new(2).done();
        }
        self.mc.reboot_for_ports = Some(ports);
        Reply::new(2).word(0, 1).done()
    }

    pub(super) fn set_id_led(&mut self, _: &Request) -> Answer {
        empty()
    }
}
