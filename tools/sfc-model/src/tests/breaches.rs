//! Every rule, broken.

use super::*;
use crate::config::flags2;

type Breach = (Rule, fn() -> Driver);

const BREACHES: &[Breach] = &[
    (Rule::BusMaster, || {
        let mut driver = Driver::running();
        driver.card.write_config(4, &[2, 0]);
        driver.doorbell(MCDI);
        driver.poll();
        driver
    }),
    (Rule::Unmapped, || {
        let mut driver = Driver::running();
        driver.doorbell(BASE + LEN);
        driver.poll();
        driver
    }),
    (Rule::UnmapInUse, || {
        let mut driver = Driver::running();
        driver.card.unmap(BASE, LEN);
        driver
    }),
    (Rule::Reserved, || with(|driver| driver.write(0, 0x300, 1))),
    (Rule::Access, || {
        with(|driver| {
            driver.card.read(register::RX_DESC_UPD);
        })
    }),
    (Rule::NoQueue, || with(|driver| driver.write(5, register::RX_DESC_UPD, 8))),
    (Rule::Alignment, || with(|driver| driver.doorbell(MCDI + 8))),
    (Rule::DoorbellMultiple, || with(|driver| driver.post(7, 2048))),
    (Rule::PastRing, || {
        with(|driver| {
            driver.post(504, 2048);
            driver.post(8, 2048);
        })
    }),
    (Rule::Descriptor, || {
        with(|driver| {
            driver.post(8, 0);
            driver.receive(&[tcp(10)]);
        })
    }),
    (Rule::EventNotCleared, || {
        with(|driver| {
            driver.post(8, 2048);
            driver.receive(&[tcp(10)]);
            driver.write(1, register::EVQ_RPTR, 2);
        })
    }),
    (Rule::EventNotWritten, || with(|driver| driver.write(1, register::EVQ_RPTR, 5))),
    (Rule::EventOverflow, || {
        with(|driver| {
            for _ in 0..=ENTRIES {
                driver.call(0x86, &words(&[1, 1, 7 << 28])).expect("DRIVER_EVENT");
            }
        })
    }),
    (Rule::EventRing, || {
        with(|driver| {
            let mut request = words(&[ENTRIES, 2, 0, 0, 1, 0, 0, 0, 0]);
            request.extend(Driver::ring(0, 2).to_le_bytes());
            driver.call(0x80, &request).expect("INIT_EVQ of zeros");
        })
    }),
    (Rule::Workaround, || with(|driver| driver.write(1, register::EVQ_TMR, 3 << 14 | 10))),
    (Rule::RequestBusy, || {
        with(|driver| {
            driver.doorbell(MCDI);
            driver.doorbell(MCDI);
        })
    }),
    (Rule::RequestHeader, || {
        with(|driver| {
            let sequence = (driver.sequence + 1) << 16;
            driver.request(0x7f | sequence | 1 << 21, 0x29, &[]).expect("without RESYNC");
        })
    }),
    (Rule::Epoch, || {
        let mut driver = Driver::medford();
        driver.epoch = false;
        driver.call(0x29, &[]).expect("GET_LINK");
        driver
    }),
    (Rule::RequestShort, || with(|driver| refused(&driver.call(0x1c, &words(&[1]))))),
    (Rule::RequestValue, || with(|driver| refused(&driver.call(0x07, &words(&[2, 5]))))),
    (Rule::Order, || {
        let mut driver = Driver::medford();
        driver.attach();
        refused(&driver.queue(0x81, 1 << 8, 0));
        driver
    }),
    (Rule::Twice, || with(|driver| refused(&driver.queue(0x81, 1 << 8, 0)))),
    (Rule::InUse, || with(|driver| refused(&driver.call(0x83, &words(&[1]))))),
    (Rule::FirstPush, || {
        with(|driver| {
            driver.send(&[option(0)], false);
        })
    }),
    (Rule::PushMismatch, || {
        with(|driver| {
            driver.write(0, register::TX_DESC_LOW, 1);
            driver.write(0, register::TX_DESC_HIGH, 1 << 31);
            driver.send(&[option(0)], false);
        })
    }),
    (Rule::PacketEnd, || {
        with(|driver| {
            driver.send(&[option(0)], true);
            driver.send(&[SCRATCH | 60 << 48 | 1 << 62], false);
        })
    }),
    (Rule::Option, || {
        with(|driver| {
            driver.send(&[option(0)], true);
            driver.send(&[SCRATCH | 60 << 48 | 1 << 62, option(0), SCRATCH | 60 << 48], false);
        })
    }),
    (Rule::Segmentation, || {
        with(|driver| {
            driver.send(&[option(0)], true);
            driver.put(SCRATCH, &tcp(3000));
            let first = 1 << 63 | 7 << 60 | 2 << 56;
            let second = 1 << 63 | 7 << 60 | 3 << 56 | 1400 << 32;
            // The first piece is not exactly the headers.
            let data = [SCRATCH | 60 << 48 | 1 << 62, (SCRATCH + 60) | (1000 << 48)];
            driver.send(&[first, second, data[0], data[1]], false);
        })
    }),
    (Rule::Statistics, || {
        with(|driver| {
            let mut request = SCRATCH.to_le_bytes().to_vec();
            request.extend(words(&[1, 800, ASSIGNED]));
            refused(&driver.call(0x2e, &request));
        })
    }),
    (Rule::Filter, || with(|driver| refused(&driver.filter(2, 0x10, [2, 0, 0, 0, 0, 7])))),
];

fn with(breach: impl FnOnce(&mut Driver)) -> Driver {
    let mut driver = Driver::running();
    driver.check_clean();
    breach(&mut driver);
    driver
}

fn refused(answer: &Result<Vec<u8>, u32>) {
    assert!(answer.is_err(), "it was done all the same");
}

#[test]
fn every_rule_can_be_broken_and_is_noticed() {
    for &(rule, breach) in BREACHES {
        let driver = breach();
        assert!(driver.of(rule) > 0, "{rule:?}: {:?}", driver.card.violations().examples());
        let json = driver.card.report();
        assert!(json["violations"]["rules"][rule.name()].as_u64() > Some(0), "{json}");
    }
}

#[test]
fn every_rule_is_tried() {
    for rule in Rule::ALL {
        assert!(BREACHES.iter().any(|(tried, _)| tried == rule), "{rule:?}");
    }
}

#[test]
fn a_broken_transmit_queue_dies() {
    let mut driver = Driver::running();
    driver.send(&[option(0)], true);
    driver.events(1);
    driver.send(&[(BASE + LEN) | (60 << 48)], false);
    driver.poll();
    let codes: Vec<_> =
        driver.events(1).iter().map(|event| (event >> 44 & 0xff, event >> 12 & 0xf)).collect();
    assert_eq!(codes, [(0xb, 9), (0xc, 0)], "a bad address, then the flush");
}

#[test]
fn segmentation_needs_the_capability() {
    let mut config = Config::new(Generation::Medford, Function::Physical);
    config.flags2 &= !flags2::TX_TSO_V2;
    let mut driver = Driver::new(config);
    driver.attach();
    driver.evq(0);
    driver.evq(1);
    assert_eq!(driver.queue(0x82, 1 << 12, 0), Err(0x5f), "ENOTSUP");
    driver.queue(0x82, 0, 0).expect("without it");
}
