//! The management controller: requests in the host's memory, and their answers (sections 3 and 4).

mod discovery;
mod filters;
mod identity;
mod port;
mod queues;
mod resources;
mod rss;

use crate::bits::{bit, bits, le32, le64, low8, low16, low32, number, size};
use crate::card::Card;
use crate::event;
use crate::violation::Rule;

/// Longest payload (3.1).
const LONGEST: usize = 0x400;
/// CODE of a header with an extension (3.2).
const V2: u64 = 0x7f;
const RESYNC: u32 = 1 << 7;
const ERROR: u32 = 1 << 22;
const RESPONSE: u32 = 1 << 23;

/// The port assigned to the function (4.4).
pub(crate) const ASSIGNED: u32 = 0x0100_0000;

/// Error codes (3.6).
pub(crate) mod error {
    pub(crate) const EPERM: u32 = 1;
    pub(crate) const ENOENT: u32 = 2;
    pub(crate) const EEXIST: u32 = 6;
    pub(crate) const EBUSY: u32 = 0x10;
    pub(crate) const EINVAL: u32 = 0x16;
    pub(crate) const ENOSPC: u32 = 0x1c;
    pub(crate) const ENOSYS: u32 = 0x26;
    pub(crate) const ENOTSUP: u32 = 0x5f;
    pub(crate) const EALREADY: u32 = 0x72;
    pub(crate) const ALLOC_FAIL: u32 = 0x1000;
    pub(crate) const NO_VADAPTOR: u32 = 0x1001;
}

/// Why a command has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An error code.
    Code(u32),
    /// The controller rebooted, or the epoch is over.
    Rebooted,
}

/// What a command answers: its reply.
pub(crate) type Answer = Result<Vec<u8>, Refusal>;

fn refuse(code: u32) -> Answer {
    Err(Refusal::Code(code))
}

/// A request. Bytes beyond its end are zero.
#[derive(Debug)]
pub(crate) struct Request {
    payload: Vec<u8>,
}

impl Request {
    fn len(&self) -> usize {
        self.payload.len()
    }

    fn dword(&self, at: usize) -> u32 {
        le32(&self.payload, at)
    }

    fn qword(&self, at: usize) -> u64 {
        le64(&self.payload, at)
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (to, from) in bytes.iter_mut().zip(self.payload.iter().skip(at)) {
            *to = *from;
        }
        bytes
    }
}

/// A reply in the making: zeros until something is put.
#[derive(Debug)]
struct Reply(Vec<u8>);

impl Reply {
    fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn dword(self, at: usize, value: u32) -> Self {
        self.bytes(at, &value.to_le_bytes())
    }

    fn word(self, at: usize, value: u16) -> Self {
        self.bytes(at, &value.to_le_bytes())
    }

    fn done(self) -> Answer {
        Ok(self.0)
    }
}

fn empty() -> Answer {
    Ok(Vec::new())
}

/// Who may send a command. Which ones virtual functions may not is unverified (8.2): those that drivers
/// are told to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Any,
    Physical,
}

/// A command: its number, the shortest request, and what it does.
struct Command {
    number: u32,
    name: &'static str,
    shortest: usize,
    who: Who,
    run: fn(&mut Card, &Request) -> Answer,
}

const fn command(
    number: u32,
    name: &'static str,
    shortest: usize,
    who: Who,
    run: fn(&mut Card, &Request) -> Answer,
) -> Command {
    Command { number, name, shortest, who, run }
}

const COMMANDS: &[Command] = &[
    command(0x05, "GET_BOOT_STATUS", 0, Who::Physical, Card::get_boot_status),
    command(0x06, "GET_ASSERTS", 4, Who::Physical, Card::get_asserts),
    command(0x07, "LOG_CTRL", 8, Who::Any, Card::log_ctrl),
    command(0x08, "GET_VERSION", 0, Who::Any, Card::get_version),
    command(0x18, "GET_BOARD_CFG", 0, Who::Physical, Card::get_board_cfg),
    command(0x1c, "DRV_ATTACH", 12, Who::Any, Card::drv_attach),
    command(0x20, "ENTITY_RESET", 4, Who::Any, Card::entity_reset),
    command(0x24, "GET_PHY_CFG", 0, Who::Any, Card::get_phy_cfg),
    command(0x28, "GET_LOOPBACK_MODES", 0, Who::Any, Card::get_loopback_modes),
    command(0x29, "GET_LINK", 0, Who::Any, Card::get_link),
    command(0x2a, "SET_LINK", 16, Who::Physical, Card::set_link),
    command(0x2b, "SET_ID_LED", 4, Who::Physical, Card::set_id_led),
    command(0x2c, "SET_MAC", 28, Who::Physical, Card::set_mac),
    command(0x2e, "MAC_STATS", 16, Who::Any, Card::mac_stats),
    command(0x3d, "REBOOT", 4, Who::Physical, Card::reboot_command),
    command(0x41, "SENSOR_INFO", 0, Who::Physical, Card::sensor_info),
    command(0x43, "GET_PHY_STATE", 0, Who::Any, Card::get_phy_state),
    command(0x4a, "WORKAROUND", 8, Who::Physical, Card::workaround),
    command(0x51, "NVRAM_PARTITIONS", 0, Who::Any, Card::nvram_partitions),
    command(0x55, "GET_MAC_ADDRESSES", 0, Who::Physical, Card::get_mac_addresses),
    command(0x59, "GET_WORKAROUNDS", 0, Who::Any, Card::get_workarounds),
    command(0x5a, "PRIVILEGE_MASK", 8, Who::Any, Card::privilege_mask),
    command(0x5d, "VADAPTOR_SET_MAC", 10, Who::Physical, Card::vadaptor_set_mac),
    command(0x5e, "VADAPTOR_GET_MAC", 4, Who::Any, Card::vadaptor_get_mac),
    command(0x61, "VADAPTOR_QUERY", 4, Who::Any, Card::vadaptor_query),
    command(0x80, "INIT_EVQ", 36, Who::Any, Card::init_evq),
    command(0x81, "INIT_RXQ", 28, Who::Any, Card::init_rxq),
    command(0x82, "INIT_TXQ", 28, Who::Any, Card::init_txq),
    command(0x83, "FINI_EVQ", 4, Who::Any, Card::fini_evq),
    command(0x84, "FINI_RXQ", 4, Who::Any, Card::fini_rxq),
    command(0x85, "FINI_TXQ", 4, Who::Any, Card::fini_txq),
    command(0x86, "DRIVER_EVENT", 12, Who::Any, Card::driver_event),
    command(0x8a, "FILTER_OP", 12, Who::Any, Card::filter_op),
    command(0x8b, "ALLOC_VIS", 8, Who::Any, Card::alloc_vis),
    command(0x8c, "FREE_VIS", 0, Who::Any, Card::free_vis),
    command(0x98, "VADAPTOR_ALLOC", 16, Who::Any, Card::vadaptor_alloc),
    command(0x99, "VADAPTOR_FREE", 4, Who::Any, Card::vadaptor_free),
    command(0x9e, "RSS_CONTEXT_ALLOC", 12, Who::Any, Card::rss_alloc),
    command(0x9f, "RSS_CONTEXT_FREE", 4, Who::Any, Card::rss_free),
    command(0xa0, "RSS_CONTEXT_SET_KEY", 44, Who::Any, Card::rss_set_key),
    command(0xa1, "RSS_CONTEXT_GET_KEY", 4, Who::Any, Card::rss_get_key),
    command(0xa2, "RSS_CONTEXT_SET_TABLE", 132, Who::Any, Card::rss_set_table),
    command(0xa3, "RSS_CONTEXT_GET_TABLE", 4, Who::Any, Card::rss_get_table),
    command(0xaa, "VPORT_GET_MAC_ADDRESSES", 4, Who::Any, Card::vport_get_mac_addresses),
    command(0xac, "GET_CLOCK", 0, Who::Any, Card::get_clock),
    command(0xb6, "GET_PF_COUNT", 0, Who::Any, Card::get_pf_count),
    command(0xb8, "GET_PORT_ASSIGNMENT", 0, Who::Any, Card::get_port_assignment),
    command(0xbe, "GET_CAPABILITIES", 0, Who::Any, Card::get_capabilities),
    command(0xbf, "GET_VECTOR_CFG", 0, Who::Any, Card::get_vector_cfg),
    command(0xc2, "GET_RXDP_CONFIG", 0, Who::Physical, Card::get_rxdp_config),
    command(0xe1, "RSS_CONTEXT_SET_FLAGS", 8, Who::Any, Card::rss_set_flags),
    command(0xe2, "RSS_CONTEXT_GET_FLAGS", 4, Who::Any, Card::rss_get_flags),
    command(0xe3, "TRIGGER_INTERRUPT", 4, Who::Any, Card::trigger_interrupt),
    command(0xe4, "GET_PARSER_DISP_INFO", 4, Who::Any, Card::get_parser_disp_info),
    command(0xec, "GET_FUNCTION_INFO", 0, Who::Any, Card::get_function_info),
    command(0xff, "GET_PORT_MODES", 0, Who::Physical, Card::get_port_modes),
    command(0x117, "SET_TUNNEL_ENCAP_UDP_PORTS", 4, Who::Physical, Card::set_tunnel_ports),
    command(0x120, "SET_EVQ_TMR", 16, Who::Any, Card::set_evq_tmr),
    command(0x122, "GET_EVQ_TMR_PROPERTIES", 0, Who::Physical, Card::get_evq_tmr_properties),
];

/// A header in either format.
#[derive(Clone, Copy, Debug)]
struct Header {
    command: u32,
    len: usize,
    sequence: u64,
    not_epoch: bool,
    wants_event: bool,
    v2: bool,
}

impl Header {
    fn payload_at(self) -> u64 {
        if self.v2 { 8 } else { 4 }
    }
}

impl Card {
    /// Runs the request at an address and answers it there.
    pub(crate) fn command(&mut self, address: u64) {
        self.mc.commands += 1;
        let Some(header) = self.header(address) else { return };
        let epoch = std::mem::take(&mut self.mc.new_epoch);
        if epoch && header.not_epoch {
            self.host.violation(Rule::Epoch, format_args!("command {:#x}", header.command));
        }
        if self.mc.forgotten && header.not_epoch {
            self.answer(address, header, Err(Refusal::Rebooted));
            return;
        }
        self.mc.forgotten = false;
        let expected = self.mc.sequence.replace(header.sequence).map(|last| (last + 1) & 0xf);
        if header.not_epoch && expected.is_some_and(|expected| expected != header.sequence) {
            self.host.violation(
                Rule::RequestHeader,
                format_args!("sequence number {}", header.sequence),
            );
        }
        let mut payload = vec![0; header.len];
        if !self.host.read(address + header.payload_at(), &mut payload, "an MCDI request") {
            return;
        }
        let answer = self.run(header.command, &Request { payload });
        log::trace!("command {:#x}, {} bytes: {answer:?}", header.command, header.len);
        let answer = self.spoil(header.command, answer);
        self.answer(address, header, answer);
        if let Some(ports) = self.mc.reboot_for_ports.take() {
            self.reboot();
            self.function.tunnel_ports = ports;
        }
    }

    /// Refuses a request that was lost with a reboot.
    pub(crate) fn refuse_stale(&mut self, address: u64) {
        if let Some(header) = self.header(address) {
            self.answer(address, header, Err(Refusal::Rebooted));
        }
    }

    fn header(&mut self, address: u64) -> Option<Header> {
        let mut bytes = [0; 8];
        if !self.host.read(address, &mut bytes, "an MCDI request") {
            return None;
        }
        let (first, second) = (u64::from(le32(&bytes, 0)), u64::from(le32(&bytes, 4)));
        let v2 = bits(first, 0, 7) == V2;
        let malformed = first & u64::from(RESYNC) == 0
            || bit(first, 20)
            || first & u64::from(ERROR | RESPONSE) != 0
            || v2 && (bits(first, 8, 8) != 0 || bit(second, 15) || bits(second, 26, 6) != 0)
            || v2 && bits(second, 16, 10) > number(LONGEST)
            || !v2 && bits(first, 8, 8) > 0xfc;
        if malformed {
            self.host.violation(Rule::RequestHeader, format_args!("{first:#x}, {second:#x}"));
        }
        Some(Header {
            command: low32(if v2 { bits(second, 0, 15) } else { bits(first, 0, 7) }),
            len: size(if v2 { bits(second, 16, 10) } else { bits(first, 8, 8) }).min(LONGEST),
            sequence: bits(first, 16, 4),
            not_epoch: bit(first, 21),
            wants_event: bit(first, 24),
            v2,
        })
    }

    fn run(&mut self, number: u32, request: &Request) -> Answer {
        let Some(command) = COMMANDS.iter().find(|command| command.number == number) else {
            return refuse(error::ENOSYS);
        };
        if command.who == Who::Physical && self.config.is_virtual() {
            return refuse(error::EPERM);
        }
        if request.len() < command.shortest {
            let detail = format_args!("{} with {} bytes", command.name, request.len());
            self.host.violation(Rule::RequestShort, detail);
            return refuse(error::EINVAL);
        }
        (command.run)(self, request)
    }

    /// Faults on request.
    fn spoil(&self, command: u32, answer: Answer) -> Answer {
        if let Some(&(_, code)) = self.faults.errors.iter().find(|(spoiled, _)| *spoiled == command)
        {
            return refuse(code);
        }
        let mut answer = answer?;
        if let Some(&(_, len)) = self.faults.short.iter().find(|(spoiled, _)| *spoiled == command) {
            answer.truncate(len);
        }
        Ok(answer)
    }

    /// The payload first, then the header's second word, then the first: hosts look at that one (3.4).
    fn answer(&mut self, address: u64, header: Header, answer: Answer) {
        let what = "an MCDI reply";
        let (failed, code, payload) = match answer {
            Ok(reply) => (0, 0, reply),
            Err(Refusal::Code(code)) => (ERROR, code, [code.to_le_bytes(), [0; 4]].concat()),
            Err(Refusal::Rebooted) => (ERROR, 0, Vec::new()),
        };
        let len = low32(number(payload.len()));
        self.host.write(address + header.payload_at(), &payload, what);
        let sequence = low32(header.sequence) << 16 | u32::from(header.not_epoch) << 21;
        let mut first = RESYNC | sequence | RESPONSE | failed;
        if header.v2 {
            self.host.store_dword(address + 4, header.command | len << 16, what);
            first |= low32(V2);
        } else {
            // Replies of this format are short by the choice of whoever asked (3.2).
            first |= header.command | len.min(0xfc) << 8;
        }
        self.host.store_dword(address, first, what);
        if header.wants_event && self.mc.events {
            let data = low32(header.sequence)
                | u32::from(low8(u64::from(len.min(0xff)))) << 8
                | u32::from(low8(u64::from(code.min(0xff)))) << 16;
            let done = event::controller(event::code::CMDDONE, data);
            self.function.evqs.post(&mut self.host, 0, done);
        }
    }

    fn wrong(&mut self, rule: Rule, detail: &str) -> Answer {
        self.host.violation(rule, detail);
        refuse(error::EINVAL)
    }
}

/// The 16-bit half of a value that is known to fit.
fn half(value: u32) -> u16 {
    low16(u64::from(value))
}
