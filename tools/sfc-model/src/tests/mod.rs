//! The card from its driver's side: what it does, and that it notices what drivers do wrong.

mod behaviour;
mod breaches;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::bits::{bits, le32, size};
use crate::card::register;
use crate::config::{Config, Function, Generation};
use crate::mcdi::ASSIGNED;
use crate::{Card, Rule};

const BASE: u64 = 0x10_0000;
const LEN: u64 = 1 << 22;
const MCDI: u64 = BASE;
/// Rings and buffers come behind the command buffer.
const RINGS: u64 = BASE + 0x1000;
/// A page that is free for whoever needs one.
const SCRATCH: u64 = BASE + 0x20_0000;
const ENTRIES: u32 = 512;
const OWN: [u8; 6] = [0x00, 0x0f, 0x53, 0x00, 0x00, 0x01];

/// A driver that does everything right, unless a test wants otherwise.
struct Driver {
    card: Card,
    memory: File,
    now: Duration,
    sequence: u32,
    epoch: bool,
    read: [u64; 8],
    posted: u64,
    sent: u64,
}

impl Driver {
    fn new(config: Config) -> Self {
        let memory = File::from(memfd_create("driver", MemfdFlags::CLOEXEC).expect("a file"));
        ftruncate(&memory, LEN).expect("room");
        let mut card = Card::new(config);
        card.write_config(4, &[6, 0]);
        card.map(BASE, LEN, memory.try_clone().expect("a descriptor"), 0).expect("a mapping");
        Self {
            card,
            memory,
            now: Duration::ZERO,
            sequence: 0,
            epoch: true,
            read: [0; 8],
            posted: 0,
            sent: 0,
        }
    }

    fn medford() -> Self {
        Self::new(Config::new(Generation::Medford, Function::Physical))
    }

    /// With event queues 0 and 1, receive and transmit queue 0 on event queue 1, and a filter.
    fn running() -> Self {
        Self::started(Config::new(Generation::Medford, Function::Physical))
    }

    fn started(config: Config) -> Self {
        let mut driver = Self::new(config);
        driver.attach();
        driver.evq(0);
        driver.evq(1);
        driver.queue(0x81, 1 << 8, 0).expect("a receive queue");
        driver.queue(0x82, 1 << 12, 0).expect("a transmit queue");
        driver.filter(0, 0x10, OWN).expect("a filter");
        driver
    }

    fn attach(&mut self) {
        self.call(0x06, &words(&[1])).expect("GET_ASSERTS");
        self.call(0x1c, &words(&[1, 1, u32::MAX])).expect("DRV_ATTACH");
        self.call(0x20, &words(&[1])).expect("ENTITY_RESET");
        self.call(0x07, &words(&[2, 0])).expect("LOG_CTRL");
        self.call(0x8b, &words(&[1, 8])).expect("ALLOC_VIS");
        self.call(0x98, &words(&[ASSIGNED, 0, 0, 0, 0, 0, 0, 0])).expect("VADAPTOR_ALLOC");
    }

    fn put(&self, iova: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, iova - BASE).expect("inside the memory");
    }

    fn get(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, iova - BASE).expect("inside the memory");
        bytes
    }

    fn qword(&self, iova: u64) -> u64 {
        u64::from_le_bytes(self.get(iova, 8).try_into().expect("8 bytes"))
    }

    fn write(&mut self, vi: u64, register: u64, value: u32) {
        self.card.write(self.now, vi * self.card.config().stride() + register, value);
    }

    fn poll(&mut self) {
        self.now += Duration::from_millis(1);
        self.card.poll(self.now);
    }

    fn doorbell(&mut self, address: u64) {
        self.write(0, register::MC_LWRD, u32::try_from(address >> 32).expect("48 bits"));
        self.write(0, register::MC_HWRD, u32::try_from(address & 0xffff_ffff).expect("32 bits"));
    }

    /// A command in the second format.
    fn call(&mut self, command: u32, payload: &[u8]) -> Result<Vec<u8>, u32> {
        self.sequence = (self.sequence + 1) & 0xf;
        let epoch = u32::from(!std::mem::take(&mut self.epoch)) << 21;
        let len = u32::try_from(payload.len()).expect("a short request");
        let first = 0x7f | 1 << 7 | self.sequence << 16 | epoch;
        self.request(first, command | len << 16, payload)
    }

    fn request(&mut self, first: u32, second: u32, payload: &[u8]) -> Result<Vec<u8>, u32> {
        self.put(MCDI, &words(&[first, second]));
        self.put(MCDI + 8, payload);
        self.doorbell(MCDI);
        self.poll();
        let header = self.get(MCDI, 8);
        let (first, second) = (le32(&header, 0), le32(&header, 4));
        assert_eq!(first >> 23 & 1, 1, "no response");
        let reply = self.get(MCDI + 8, (second >> 16 & 0x3ff) as usize);
        // An error without a code has a length of 0.
        if first >> 22 & 1 == 1 { Err(le32(&reply, 0)) } else { Ok(reply) }
    }

    /// Where rings are: event, receive and transmit rings of an instance, then buffers.
    fn ring(kind: u64, instance: u64) -> u64 {
        RINGS + (kind * 8 + instance) * 0x1000
    }

    fn evq(&mut self, instance: u32) {
        let ring = Self::ring(0, instance.into());
        self.put(ring, &[0xff; 4096]);
        // Interrupting, merging both ways, by vector.
        let mut request = words(&[ENTRIES, instance, 0, 0, 1 | 2 << 7, 0, instance, 0, 0]);
        request.extend(ring.to_le_bytes());
        self.call(0x80, &request).expect("INIT_EVQ");
        assert_eq!(self.events(instance), [5 << 60 | 2 << 56 | u64::from(instance)]);
    }

    /// INIT_RXQ or INIT_TXQ, reporting to event queue 1.
    fn queue(&mut self, command: u32, flags: u32, instance: u32) -> Result<Vec<u8>, u32> {
        let kind = if command == 0x81 { 1 } else { 2 };
        let mut request = words(&[ENTRIES, 1, 3, instance, flags, 0, ASSIGNED]);
        request.extend(Self::ring(kind, instance.into()).to_le_bytes());
        self.call(command, &request)
    }

    fn filter(&mut self, op: u32, fields: u32, mac: [u8; 6]) -> Result<Vec<u8>, u32> {
        let mut request = words(&[op, 0, 0, ASSIGNED, fields, 1, 0, 0, 0, 0, u32::MAX]);
        request.resize(172, 0);
        request[52..58].copy_from_slice(&mac);
        self.call(0x8a, &request)
    }

    /// New events, given back.
    fn events(&mut self, instance: u32) -> Vec<u64> {
        let ring = Self::ring(0, instance.into());
        let mut events = Vec::new();
        let read = &mut self.read[instance as usize];
        loop {
            let at = ring + *read % u64::from(ENTRIES) * 8;
            let mut bytes = [0; 8];
            self.memory.read_exact_at(&mut bytes, at - BASE).expect("inside the memory");
            if bytes == [0xff; 8] {
                break;
            }
            events.push(u64::from_le_bytes(bytes));
            self.memory.write_all_at(&[0xff; 8], at - BASE).expect("inside the memory");
            *read += 1;
        }
        let pointer = u32::try_from(*read % u64::from(ENTRIES)).expect("a small ring");
        self.write(instance.into(), register::EVQ_RPTR, pointer);
        events
    }

    fn buffer(index: u64) -> u64 {
        RINGS + 0x2_0000 + index * 2048
    }

    /// Posts receive buffers of so many bytes, and rings.
    fn post(&mut self, count: u64, bytes: u64) {
        for _ in 0..count {
            let slot = Self::ring(1, 0) + self.posted % u64::from(ENTRIES) * 8;
            self.put(slot, &(Self::buffer(self.posted) | bytes << 48).to_le_bytes());
            self.posted += 1;
        }
        let pointer = u32::try_from(self.posted % u64::from(ENTRIES)).expect("a small ring");
        self.write(0, register::RX_DESC_UPD, pointer);
    }

    fn receive(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            self.card.receive(frame);
        }
        self.card.end_of_burst();
    }

    /// Writes transmit descriptors, and rings; with a push of the first one if that is wanted.
    fn send(&mut self, descriptors: &[u64], push: bool) -> Vec<Vec<u8>> {
        for descriptor in descriptors {
            let slot = Self::ring(2, 0) + self.sent % u64::from(ENTRIES) * 8;
            self.put(slot, &descriptor.to_le_bytes());
            self.sent += 1;
        }
        if push {
            let words = words64(descriptors[0]);
            self.write(0, register::TX_DESC_LOW, words[0]);
            self.write(0, register::TX_DESC_HIGH, words[1]);
        }
        let pointer = u32::try_from(self.sent % u64::from(ENTRIES)).expect("a small ring");
        self.write(0, register::TX_DESC_PTR, pointer);
        self.card.take_outgoing()
    }

    fn of(&self, rule: Rule) -> u64 {
        self.card.violations().of(rule)
    }

    fn check_clean(&self) {
        assert_eq!(self.card.violations().total(), 0, "{:?}", self.card.violations().examples());
    }
}

/// Checksums on, or off.
fn option(offload: u64) -> u64 {
    1 << 63 | offload
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn words64(value: u64) -> [u32; 2] {
    let half = |low| u32::try_from(bits(value, low, 32)).expect("32 bits");
    [half(0), half(32)]
}

/// A TCP packet over IPv4 with checksums of zero.
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = OWN.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x08, 0x00, 0x45, 0]);
    frame.extend(u16::try_from(40 + payload).unwrap_or(0xff30).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x12, 0x34, 0x00, 0x50, 0, 0, 0, 100, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..=255).cycle().take(payload));
    frame
}

/// The one's complement sum of bytes (RFC 1071), folded: 0xffff when a checksum inside is right.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut total = start;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    u16::try_from(total).expect("folded")
}

/// Whether both checksums of a TCP packet over IPv4 are right.
fn checksums_are_right(frame: &[u8]) -> bool {
    let len = u32::from(u16::from_be_bytes([frame[16], frame[17]]));
    let segment = &frame[34..14 + size(len)];
    let pseudo = u32::from(sum(&frame[26..34], 0)) + 6 + len - 20;
    sum(&frame[14..34], 0) == 0xffff && sum(segment, pseudo) == 0xffff
}
