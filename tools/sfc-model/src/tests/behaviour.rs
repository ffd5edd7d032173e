//! What the card does for a driver that does everything right.

use std::sync::{Arc, Mutex};

use super::*;
use crate::fault::{Fault, Scheduled};
use crate::host::Interrupts;

const DST_MAC: u32 = 0x10;

fn complete(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let parsed = crate::parse::parse(&frame, &[]).expect("a frame");
    crate::checksum::fill_ip(&mut frame, &parsed.outer);
    crate::checksum::fill_l4(&mut frame, &parsed.outer);
    assert!(checksums_are_right(&frame));
    frame
}

#[test]
fn discovery() {
    let mut driver = Driver::medford();
    driver.attach();
    let capabilities = driver.call(0xbe, &[]).expect("GET_CAPABILITIES");
    assert_eq!(capabilities.len(), 78);
    assert_eq!(le32(&capabilities, 0) >> 23 & 1, 1, "prefixes of 14 bytes");
    assert_eq!(driver.call(0x55, &[]).expect("GET_MAC_ADDRESSES")[..6], OWN);
    assert_eq!(driver.call(0x06, &words(&[0])).expect("GET_ASSERTS").len(), 140);
    assert_eq!(driver.call(0x1b7, &[]), Err(0x26), "an unknown command: ENOSYS");
    driver.check_clean();
}

#[test]
fn the_first_format_is_answered_in_the_first_format() {
    let mut driver = Driver::medford();
    driver.attach();
    let sequence = (driver.sequence + 1) << 16;
    driver.put(MCDI, &words(&[0x29 | 1 << 7 | sequence | 1 << 21]));
    driver.doorbell(MCDI);
    driver.poll();
    let header = le32(&driver.get(MCDI, 4), 0);
    assert_eq!((header & 0x7f, header >> 8 & 0xff, header >> 23 & 1), (0x29, 28, 1));
    assert_eq!(le32(&driver.get(MCDI + 4 + 8, 4), 0), 10_000, "the speed of the link");
    driver.check_clean();
}

#[test]
fn a_virtual_function_may_little() {
    let mut driver = Driver::new(Config::new(Generation::Medford, Function::Virtual));
    assert_eq!(driver.call(0x06, &words(&[1])), Err(1), "GET_ASSERTS: EPERM");
    driver.call(0x8b, &words(&[1, 8])).expect("ALLOC_VIS");
    driver.call(0x98, &words(&[ASSIGNED, 0, 0, 0, 0, 0, 0, 0])).expect("VADAPTOR_ALLOC");
    assert_eq!(driver.filter(2, 1 << 31, [0; 6]), Err(1), "promiscuous: EPERM");
    assert_eq!(driver.filter(0, DST_MAC, [2, 0, 0, 0, 0, 7]), Err(1), "another's address: EPERM");
    driver.filter(0, DST_MAC, OWN).expect("its own address");
    driver.check_clean();
}

#[test]
fn a_frame_arrives() {
    let mut driver = Driver::running();
    driver.post(8, 2048);
    let frame = complete(&tcp(100));
    driver.receive(std::slice::from_ref(&frame));
    let events = driver.events(1);
    assert_eq!(events.len(), 1);
    let event = events[0];
    assert_eq!(bits(event, 60, 4), 0, "a receive event");
    assert_eq!(bits(event, 0, 14), 14 + 154, "prefix and frame");
    assert_eq!((bits(event, 16, 5), bits(event, 48, 4)), (3, 1), "label, and the next descriptor");
    assert_eq!((bits(event, 42, 3), bits(event, 45, 2)), (1, 1), "IPv4, TCP");
    assert_eq!(bits(event, 24, 6), 0, "no error");
    let prefix = driver.get(Driver::buffer(0), 14);
    assert_eq!(prefix[8..10], 154u16.to_le_bytes());
    assert_eq!(driver.get(Driver::buffer(0) + 14, 154), frame);
    // Other addresses are for nobody.
    let mut other = frame;
    other[5] ^= 1;
    driver.receive(&[other]);
    assert!(driver.events(1).is_empty());
    assert_eq!(driver.card.report()["rx_no_filter"], 1);
    driver.check_clean();
}

#[test]
fn wrong_checksums_are_flagged() {
    let mut driver = Driver::running();
    driver.post(8, 2048);
    let mut frame = complete(&tcp(100));
    frame[60] ^= 1;
    driver.receive(std::slice::from_ref(&frame));
    frame[22] ^= 1;
    driver.receive(&[frame]);
    let events = driver.events(1);
    assert_eq!(bits(events[0], 25, 2), 0b10, "TCP's");
    assert_eq!(bits(events[1], 25, 2), 0b11, "IPv4's as well");
}

#[test]
fn completions_of_a_burst_are_merged() {
    let mut driver = Driver::running();
    driver.post(16, 2048);
    let frames = vec![complete(&tcp(200)); 11];
    driver.receive(&frames);
    let events = driver.events(1);
    let next: Vec<u64> = events.iter().map(|event| bits(*event, 48, 4)).collect();
    assert_eq!(next, [8, 11], "eight at most, then the rest");
    assert_eq!(driver.get(Driver::buffer(10) + 8, 2), 254u16.to_le_bytes());
    driver.check_clean();
}

#[test]
fn long_frames_are_scattered() {
    let mut driver = Driver::running();
    driver.post(8, 512);
    driver.receive(&[complete(&tcp(1200))]);
    let events = driver.events(1);
    let fragments: Vec<_> = events
        .iter()
        .map(|event| (bits(*event, 0, 14), bits(*event, 14, 1), bits(*event, 48, 4)))
        .collect();
    assert_eq!(fragments, [(512, 1, 1), (512, 1, 2), (244, 0, 3)]);
    // The ring runs dry in the middle of a frame: given up, without a descriptor or a byte.
    driver.receive(&[complete(&tcp(1200)), complete(&tcp(1200))]);
    let events = driver.events(1);
    let last = events.last().expect("events");
    assert_eq!((bits(*last, 0, 14), bits(*last, 48, 4)), (0, 8));
    // And at its start: dropped, and counted.
    driver.receive(&[complete(&tcp(1))]);
    assert!(driver.events(1).is_empty());
    assert_eq!(driver.card.report()["rx_no_descriptors"], 1);
    driver.check_clean();
}

#[test]
fn interrupts_come_once_per_arming() {
    #[derive(Clone, Debug, Default)]
    struct Raised(Arc<Mutex<Vec<u32>>>);
    impl Interrupts for Raised {
        fn raise(&mut self, vector: u32) {
            self.0.lock().expect("no panic").push(vector);
        }
    }
    let mut driver = Driver::running();
    driver.post(8, 2048);
    driver.events(1);
    let raised = Raised::default();
    driver.card.set_interrupts(Box::new(raised.clone()));
    let frame = complete(&tcp(10));
    driver.receive(std::slice::from_ref(&frame));
    driver.receive(std::slice::from_ref(&frame));
    assert_eq!(*raised.0.lock().expect("no panic"), [1], "not armed again");
    driver.events(1);
    driver.receive(&[frame]);
    assert_eq!(*raised.0.lock().expect("no panic"), [1, 1]);
}

#[test]
fn frames_are_sent_with_checksums() {
    let mut driver = Driver::running();
    assert!(driver.send(&[option(3)], true).is_empty());
    let frame = tcp(100);
    driver.put(SCRATCH, &frame);
    // In two pieces.
    let sent = driver.send(&[SCRATCH | 54 << 48 | 1 << 62, (SCRATCH + 54) | (100 << 48)], false);
    assert_eq!(sent, [complete(&frame)]);
    let events = driver.events(1);
    assert_eq!(*events.last().expect("an event"), 2 << 60 | 3 << 16 | 2, "up to descriptor 2");
    // Left alone when the option is off.
    let sent = driver.send(&[option(0), SCRATCH | 154 << 48], false);
    assert_eq!(sent, [frame]);
    driver.check_clean();
}

#[test]
fn super_packets_are_cut() {
    let mut driver = Driver::running();
    driver.send(&[option(2)], true);
    let frame = tcp(3000);
    driver.put(SCRATCH, &frame);
    let first = 1 << 63 | 7 << 60 | 2 << 56 | 77 << 32 | 100;
    let second = 1 << 63 | 7 << 60 | 3 << 56 | 1400 << 32;
    let data = [SCRATCH | 54 << 48 | 1 << 62, (SCRATCH + 54) | (3000 << 48)];
    let sent = driver.send(&[first, second, data[0], data[1]], false);
    let lengths: Vec<_> = sent.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1454, 1454, 254]);
    let mut payload = Vec::new();
    for (index, (frame, flags)) in sent.iter().zip([0x10, 0x10, 0x18]).enumerate() {
        assert!(checksums_are_right(frame), "segment {index}");
        assert_eq!(usize::from(frame[19]), 77 + index, "identification");
        let sequence = u32::from_be_bytes(frame[38..42].try_into().expect("4 bytes"));
        assert_eq!(sequence as usize, 100 + 1400 * index);
        assert_eq!(frame[47], flags, "PSH on the last one");
        payload.extend_from_slice(&frame[54..]);
    }
    assert_eq!(payload, frame[54..]);
    driver.check_clean();
}

#[test]
fn the_end_of_a_queue_is_told_twice() {
    let mut driver = Driver::running();
    driver.events(0);
    driver.call(0x84, &words(&[0])).expect("FINI_RXQ");
    driver.poll();
    let code = |event: u64| (bits(event, 44, 8), bits(event, 0, 13));
    assert_eq!(driver.events(1).into_iter().map(code).collect::<Vec<_>>(), [(0x10, 0)]);
    assert_eq!(driver.events(0).into_iter().map(code).collect::<Vec<_>>(), [(0x10, 1 << 12)]);
    assert_eq!(driver.call(0x84, &words(&[0])), Err(0x72), "EALREADY");
    driver.call(0x85, &words(&[0])).expect("FINI_TXQ");
    driver.poll();
    driver.call(0x83, &words(&[1])).expect("FINI_EVQ");
    driver.check_clean();
}

#[test]
fn a_reboot_forgets_everything_and_wants_a_new_epoch() {
    let mut driver = Driver::running();
    driver.events(0);
    driver.card.inject(Scheduled { fault: Fault::McReboot, after: Duration::ZERO });
    driver.poll();
    let told = driver.events(0);
    assert_eq!(told.iter().map(|event| bits(*event, 44, 8)).collect::<Vec<_>>(), [0x15]);
    driver.now += Duration::from_secs(1);
    driver.poll();
    assert_eq!(driver.card.read(register::MC_STATUS), 0xb007_0002);
    assert_eq!(driver.call(0x29, &[]), Err(0), "a stale epoch: an error without a code");
    driver.epoch = true;
    driver.call(0x06, &words(&[1])).expect("GET_ASSERTS");
    assert_eq!(driver.call(0x83, &words(&[1])), Err(0x72), "no queue is left");
    driver.check_clean();
}

#[test]
fn statistics_have_equal_generations() {
    let mut driver = Driver::running();
    driver.post(8, 2048);
    driver.receive(&vec![complete(&tcp(300)); 3]);
    let len = 8 * 104;
    driver.put(SCRATCH, &vec![0; len]);
    driver.put(SCRATCH + 8 * 103, &[0xff; 8]);
    let mut request = SCRATCH.to_le_bytes().to_vec();
    request.extend(words(&[1 | 1 << 2 | 1 << 3 | 1 << 5 | 1000 << 16, 8 * 104, ASSIGNED]));
    driver.call(0x2e, &request).expect("MAC_STATS");
    assert_eq!(driver.qword(SCRATCH), driver.qword(SCRATCH + 8 * 103));
    assert_eq!(driver.qword(SCRATCH + 8 * 28), 3, "packets");
    driver.receive(&[complete(&tcp(300))]);
    driver.now += Duration::from_secs(1);
    driver.poll();
    assert_eq!(driver.qword(SCRATCH + 8 * 28), 4, "by itself after a second");
    driver.check_clean();
}

#[test]
fn rss_spreads_by_the_table() {
    let mut driver = Driver::running();
    driver.queue(0x81, 1 << 8, 1).expect("a second receive queue");
    let id = driver.call(0x9e, &words(&[ASSIGNED, 0, 2])).expect("RSS_CONTEXT_ALLOC");
    let mut request = id.clone();
    request.extend([1; 128]);
    driver.call(0xa2, &request).expect("RSS_CONTEXT_SET_TABLE");
    let mut request = id.clone();
    request.extend([0x6d; 40]);
    driver.call(0xa0, &request).expect("RSS_CONTEXT_SET_KEY");
    let mut request = words(&[2, 0, 0, ASSIGNED, 1 << 31, 1, 0, 1, le32(&id, 0), 0, u32::MAX]);
    request.resize(172, 0);
    driver.call(0x8a, &request).expect("FILTER_OP");
    let mut frame = complete(&tcp(10));
    frame[5] ^= 1;
    driver.receive(&[frame]);
    // Everything goes to queue 1, which has no buffers.
    assert_eq!(driver.card.report()["rx_no_descriptors"], 1);
    driver.check_clean();
}

#[test]
fn an_indirect_register_moves_the_pointer_on_huntington() {
    let mut driver = Driver::medford();
    driver = Driver {
        card: Card::new(Config::new(Generation::Huntington, Function::Physical)),
        ..driver
    };
    driver.card.write_config(4, &[6, 0]);
    let memory = driver.memory.try_clone().expect("a descriptor");
    driver.card.map(BASE, LEN, memory, 0).expect("a mapping");
    driver.attach();
    driver.call(0x4a, &words(&[2, 1])).expect("WORKAROUND");
    let ring = Driver::ring(0, 0);
    driver.put(ring, &[0xff; 4096]);
    let mut request = words(&[ENTRIES, 0, 0, 0, 1 | 3 << 4, 0, 0, 0, 0]);
    request.extend(ring.to_le_bytes());
    assert_eq!(driver.call(0x80, &request).expect("INIT_EVQ").len(), 4);
    driver.put(ring, &[0xff; 8]);
    driver.write(0, register::TX_DESC_PTR, 1 << 11);
    driver.write(0, register::TX_DESC_PTR, 1 << 11 | 1 << 8 | 1);
    driver.check_clean();
    driver.write(0, register::EVQ_RPTR, 1);
    assert_eq!(driver.of(Rule::Workaround), 1);
}

mod any_driver {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u32),
        Command(u32, Vec<u32>),
        Memory(u64, Vec<u64>),
        Frame(Vec<u8>),
        Unmap,
    }

    fn step() -> impl Strategy<Value = Step> {
        let registers = prop::sample::select(&[
            register::MC_LWRD,
            register::MC_HWRD,
            register::EVQ_RPTR,
            register::EVQ_TMR,
            register::RX_DESC_UPD,
            register::TX_DESC_LOW,
            register::TX_DESC_HIGH,
            register::TX_DESC_PTR,
            register::TX_DESC_REST,
            0x300,
        ]);
        let value = prop_oneof![0_u32..600, any::<u32>()];
        let small = prop_oneof![0_u32..40, Just(ASSIGNED), Just(512), any::<u32>()];
        let inside = (0..4096_u64).prop_map(|at| BASE + at * 64);
        let words = prop::collection::vec(any::<u64>(), 1..8);
        prop_oneof![
            8 => (0..9_u64, registers, value).prop_map(|(vi, at, value)| Step::Write(vi, at, value)),
            8 => (0..0x130_u32, prop::collection::vec(small, 0..60)).prop_map(|(number, words)| Step::Command(number, words)),
            4 => (inside, words).prop_map(|(at, words)| Step::Memory(at, words)),
            4 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Step::Frame),
            1 => Just(Step::Unmap),
        ]
    }

    proptest! {
        /// Whatever a driver does, it is counted, and the card goes on.
        #[test]
        fn is_survived(huntington: bool, steps in prop::collection::vec(step(), 1..80)) {
            let generation = if huntington { Generation::Huntington } else { Generation::Medford };
            let mut driver = Driver::new(Config::new(generation, Function::Physical));
            driver.attach();
            for step in steps {
                match step {
                    Step::Write(vi, at, value) => driver.write(vi, at, value),
                    Step::Command(number, payload) => {
                        let len = u32::try_from(payload.len() * 4).expect("short");
                        let header = [0x7f | 1 << 7 | 1 << 21, number | len << 16];
                        driver.put(MCDI, &[words(&header), words(&payload)].concat());
                        driver.doorbell(MCDI);
                    }
                    Step::Memory(at, values) => {
                        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                        driver.put(at, &bytes);
                    }
                    Step::Frame(frame) => driver.receive(&[frame]),
                    Step::Unmap => drop(driver.card.unmap(BASE, LEN)),
                }
                driver.poll();
                driver.card.take_outgoing();
            }
            driver.card.reset();
            driver.card.poll(driver.now);
        }
    }
}
