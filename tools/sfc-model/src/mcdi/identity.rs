//! Identity and life (4.2).

use super::{Answer, COMMANDS, Refusal, Reply, Request, empty, error, refuse};
use crate::card::Card;
use crate::violation::Rule;

const ASSERTS_LEN: usize = 140;
const NO_FAILURES: u32 = 1;
const DONT_CARE: u32 = u32::MAX;
/// Four numbers of the firmware's version.
const VERSION: [u16; 4] = [8, 5, 2, 1000];

impl Card {
    pub(super) fn get_boot_status(&mut self, _: &Request) -> Answer {
        const PRIMARY: u32 = 1 << 1;
        Reply::new(8).dword(4, PRIMARY).done()
    }

    pub(super) fn get_asserts(&mut self, _: &Request) -> Answer {
        Reply::new(ASSERTS_LEN).dword(0, NO_FAILURES).done()
    }

    pub(super) fn log_ctrl(&mut self, request: &Request) -> Answer {
        const EVQ: u32 = 2;
        if request.dword(4) != 0 || request.dword(0) & !3 != 0 {
            return self.wrong(Rule::RequestValue, "LOG_CTRL");
        }
        self.mc.events = request.dword(0) & EVQ != 0;
        empty()
    }

    pub(super) fn get_version(&mut self, _: &Request) -> Answer {
        let mut supported = [0; 16];
        for command in COMMANDS {
            if let Some(byte) = supported.get_mut(command.number as usize / 8) {
                *byte |= 1 << (command.number % 8);
            }
        }
        let version: Vec<u8> = VERSION.iter().flat_map(|number| number.to_le_bytes()).collect();
        Reply::new(32)
            .dword(0, 0x0053_464d)
            .dword(4, 2)
            .bytes(8, &supported)
            .bytes(24, &version)
            .done()
    }

    pub(super) fn get_board_cfg(&mut self, _: &Request) -> Answer {
        Reply::new(120).bytes(4, b"sfc-model").done()
    }

    pub(super) fn drv_attach(&mut self, request: &Request) -> Answer {
        let (state, update, firmware) = (request.dword(0), request.dword(4), request.dword(8));
        if firmware != DONT_CARE && self.config.is_virtual() {
            return refuse(error::EPERM);
        }
        let old = u32::from(self.mc.attached);
        if update == 1 {
            self.mc.attached = state & 1 == 1;
            self.mc.link_v2 = state >> 4 & 1 == 1;
        }
        // Primary, controls the link, trusted; a virtual function is none of it.
        let flags = if self.config.is_virtual() { 0 } else { 7 };
        Reply::new(8).dword(0, old).dword(4, flags).done()
    }

    pub(super) fn entity_reset(&mut self, request: &Request) -> Answer {
        if request.dword(0) != 1 {
            return self.wrong(Rule::RequestValue, "ENTITY_RESET");
        }
        self.forget_function();
        empty()
    }

    pub(super) fn reboot_command(&mut self, request: &Request) -> Answer {
        const AFTER_ASSERTION: u32 = 1;
        if request.dword(0) & AFTER_ASSERTION != 0 {
            return empty();
        }
        self.reboot();
        Err(Refusal::Rebooted)
    }

    pub(super) fn trigger_interrupt(&mut self, request: &Request) -> Answer {
        let vector = request.dword(0);
        if vector >= self.config.vectors() {
            return self.wrong(Rule::RequestValue, "TRIGGER_INTERRUPT");
        }
        self.host.interrupts.raise(vector);
        empty()
    }

    pub(super) fn nvram_partitions(&mut self, _: &Request) -> Answer {
        refuse(error::EPERM)
    }
}
