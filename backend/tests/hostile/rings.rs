//! Rings in impossible places, of impossible sizes, and with lies in them.

use guest::Guest;
use guest::header::NetHeader;
use guest::raw::Request;

use crate::front::{
    AVAIL, BUFFERS, Descriptor, ENTRIES, Front, GUEST, INDIRECT, NEXT, RING, SIZE, Said, USED,
    USER, WRITE, vring_addresses, words,
};
use crate::{attack, until};

/// Where the first ring is to the front end.
const AT: u64 = USER + GUEST;

#[test]
fn rings_outside_memory_and_across_its_end() {
    attack(|lab| {
        for addresses in [
            [0, 0, 0],
            [!0xf; 3],
            [USER, USER + USED, USER + AVAIL],
            [GUEST, GUEST + USED, GUEST + AVAIL],
            [AT + SIZE; 3],
            [AT + SIZE - 0x10, AT + USED, AT + AVAIL],
            [AT, AT + SIZE - 4, AT + AVAIL],
            [AT, AT + USED, AT + SIZE - 2],
            [AT + 1, AT + USED, AT + AVAIL],
            [AT + 8, AT + USED, AT + AVAIL],
            [AT, AT + USED + 2, AT + AVAIL],
            [AT, AT + USED, AT + AVAIL + 1],
        ] {
            let front = Front::running(lab);
            front.say(Request::SET_VRING_ADDR, &vring_addresses(1, addresses));
            front.send_packets(1, 0, 10);
            lab.allow(4);
        }
    });
}

#[test]
fn rings_over_each_other() {
    attack(|lab| {
        for (rings, addresses) in [
            (&[1][..], [AT + RING; 3]),
            (&[1], [AT, AT, AT + AVAIL]),
            (&[1], [AT, AT + AVAIL, AT + AVAIL]),
            (&[1], [AT, AT + AVAIL - 4, AT + AVAIL]),
            (&[1, 3], [AT, AT + USED, AT + AVAIL]),
            (&[0, 1, 3], [AT, AT + USED, AT + AVAIL]),
            (&[0], [AT; 3]),
            (&[0], [AT, AT + AVAIL - 8, AT + AVAIL]),
        ] {
            let front = Front::running(lab);
            front.start(3);
            for fill in [0, 1, 0xff] {
                front.put(0, &[fill; 3 * 0x4000]);
                for ring in rings {
                    front.say(Request::SET_VRING_ADDR, &vring_addresses(*ring, addresses));
                }
                for ring in 0..4 {
                    front.send_packets(ring, 0, 200);
                }
                lab.allow(50);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    });
}

#[test]
fn sizes_that_no_ring_has() {
    attack(|lab| {
        for size in [0, 3, 255, 257, 1023, 1025, 32768, 65535, 65536, 65792, u32::MAX] {
            let front = Front::running(lab);
            for ring in [0, 1, 4, 255, 256, u32::MAX] {
                if front.say(Request::SET_VRING_NUM, &words(&[ring, size])) == Said::Closed {
                    break;
                }
                front.send_packets(1, 0, 10);
            }
        }
    });
}

#[test]
fn bases_that_no_ring_has() {
    attack(|lab| {
        for base in [1, 255, 32768, 65535, 65536, u32::MAX] {
            let front = Front::greeted(lab);
            front.share_memory();
            front.start(1);
            front.say(Request::GET_VRING_BASE, &words(&[1, 0]));
            front.say(Request::SET_VRING_BASE, &words(&[1, base]));
            let one = 1u64.to_ne_bytes();
            front.say_with(Request::SET_VRING_KICK, &one, &[std::os::fd::AsFd::as_fd(&front.kick)]);
            front.send_packets(1, 0, 10);
            front.say(Request::SET_VRING_ENABLE, &words(&[1, 1]));
            front.say(Request::SET_VRING_BASE, &words(&[u32::MAX, base]));
        }
    });
}

#[test]
fn rings_that_were_never_set_up_are_enabled() {
    attack(|lab| {
        for ring in [0, 1, 2, 3, 4, 63, 64, 255, 256, 65536, u32::MAX] {
            let front = Front::greeted(lab);
            for on in [1, 2, u32::MAX, 0, 1] {
                front.say(Request::SET_VRING_ENABLE, &words(&[ring, on]));
            }
            drop(front);
            // Before the features are known, as many as there are numbers.
            let front = Front::connect(lab);
            for number in 0..200 {
                let body = words(&[ring.wrapping_sub(number), 1]);
                front.raw.send(Request::SET_VRING_ENABLE, 0, &body, &[]).unwrap();
            }
            let features = guest::features::PROTOCOL_FEATURES | guest::features::VERSION_1;
            front.raw.send(Request::SET_FEATURES, 0, &features.to_ne_bytes(), &[]).unwrap();
        }
    });
}

#[test]
fn rings_are_stopped_again_and_again() {
    attack(|lab| {
        for ring in [0, 1, 2, 3, 4, 255, 256, u32::MAX] {
            let front = Front::running(lab);
            for _ in 0..3 {
                let said = front.say(Request::GET_VRING_BASE, &words(&[ring, 0xffff_ffff]));
                assert_eq!(said == Said::Closed, ring > 3, "ring {ring}: {said:?}");
                if said == Said::Closed {
                    break;
                }
            }
        }
    });
}

#[test]
fn rings_start_and_stop_under_traffic() {
    attack(|lab| {
        let front = Front::running(lab);
        for round in 0..200_u16 {
            front.send_packets(1, round * 20, 20);
            lab.allow(2);
            for on in [0, 1] {
                assert!(front.say(Request::SET_VRING_ENABLE, &words(&[1, on])).done());
            }
        }
        until("all packets are taken", || front.used(1) == 4000);
    });
}

/// A descriptor of the buffers that a packet may lie in.
fn plain() -> Descriptor {
    Descriptor { address: GUEST + BUFFERS, len: 72, flags: 0, next: 0 }
}

/// Chains that lie, as the descriptors from the head on; `flags` is what each must have to be read.
fn chains() -> Vec<(&'static str, Vec<Descriptor>)> {
    let plain = plain();
    let to = |next| Descriptor { flags: NEXT, next, ..plain };
    let table =
        |len| Descriptor { address: GUEST + BUFFERS + 0x4000, len, flags: INDIRECT, next: 0 };
    vec![
        ("a loop of one", vec![to(0)]),
        ("a loop of three", vec![to(1), to(2), to(0)]),
        ("a next one outside the table", vec![to(256)]),
        ("a next one far outside", vec![to(65535)]),
        ("a buffer outside memory", vec![Descriptor { address: 0, ..plain }]),
        ("a buffer behind memory", vec![Descriptor { address: GUEST + SIZE, ..plain }]),
        ("a buffer across its end", vec![Descriptor { address: GUEST + SIZE - 71, ..plain }]),
        ("a buffer around all addresses", vec![Descriptor { address: !0 - 20, ..plain }]),
        ("a buffer of 4 GiB", vec![Descriptor { len: !0, ..plain }]),
        ("buffers of more than 4 GiB", vec![Descriptor { len: 1 << 20, ..to(0) }]),
        ("no bytes", vec![Descriptor { len: 0, ..plain }]),
        ("the header only", vec![Descriptor { len: 12, ..plain }]),
        ("less than a header", vec![Descriptor { len: 11, ..plain }]),
        ("a megabyte", vec![Descriptor { len: 1 << 20, ..plain }]),
        ("the wrong way", vec![Descriptor { flags: WRITE, ..plain }]),
        ("both ways", vec![to(1), Descriptor { flags: WRITE, ..plain }]),
        ("flags that mean nothing", vec![Descriptor { flags: 0xfff8, ..plain }]),
        ("an empty table", vec![table(0)]),
        ("a table of half an entry", vec![table(8)]),
        ("a table of one and a half", vec![table(24)]),
        ("a table of 4 GiB", vec![table(!15)]),
        ("a table with a next one", vec![Descriptor { flags: INDIRECT | NEXT, ..table(16) }]),
        ("a table outside memory", vec![Descriptor { address: !0 - 15, ..table(16) }]),
        ("a table of zeros", vec![table(4096)]),
        ("a table in a chain", vec![to(1), table(16)]),
    ]
}

/// Makes all entries of a ring available with each of the chains; the ring goes on or is stopped.
fn offer_lies(ring: u32, lab: &crate::lab::Lab, front: &Front) {
    let write = if ring == 0 { WRITE } else { 0 };
    let mut index = 0_u16;
    for (lie, chain) in chains() {
        for (slot, descriptor) in (0..).zip(&chain) {
            let flags = descriptor.flags ^ write;
            front.descriptor(ring, slot, Descriptor { flags, ..*descriptor });
        }
        (0..256).for_each(|nth| front.entry(ring, index.wrapping_add(nth), 0));
        index = index.wrapping_add(256);
        front.publish(ring, index);
        if ring == 0 {
            lab.allow(64);
        } else {
            until(lie, || front.used(ring) == index);
        }
    }
}

#[test]
fn chains_that_lie_on_transmit() {
    let stats = attack(|lab| offer_lies(1, lab, &Front::running(lab)));
    assert!(stats.drain.chains - stats.drain.packets > 256 * 20, "{:?}", stats.drain);
}

#[test]
fn chains_that_lie_on_receive() {
    attack(|lab| {
        for round in 0..4 {
            let front = Front::running(lab);
            front.descriptor(0, 0, Descriptor { flags: WRITE, ..plain() });
            offer_lies(0, lab, &front);
            let index = 256 * u16::try_from(chains().len()).unwrap();
            // A ring that takes nothing is full; it is not in anybody's way.
            front.publish(0, index + round);
            lab.allow(64);
        }
    });
}

#[test]
fn tables_in_tables_and_tables_without_end() {
    let stats = attack(|lab| {
        let front = Front::running(lab);
        let at = GUEST + BUFFERS + 0x4000;
        let offset = at - GUEST;
        let head = Descriptor { address: at, len: 0x1_0000, flags: INDIRECT, next: 0 };
        front.descriptor(1, 0, head);
        for (round, entry) in [
            Descriptor { address: at, len: 16, flags: INDIRECT, next: 0 },
            Descriptor { flags: NEXT, ..plain() },
            Descriptor { flags: NEXT, len: 1, ..plain() },
            Descriptor { flags: NEXT, next: 4096, ..plain() },
            Descriptor { flags: NEXT, next: 65535, ..plain() },
        ]
        .into_iter()
        .enumerate()
        {
            front.put(offset, &entry.bytes());
            let index = 256 * u16::try_from(round).unwrap();
            (0..256).for_each(|nth| front.entry(1, nth, 0));
            front.publish(1, index + 256);
            until("each chain comes back", || front.used(1) == index + 256);
        }
        // A long table, each entry a byte, that goes on and on.
        for next in 0..4096_u16 {
            let entry = Descriptor { flags: NEXT, next: next + 1, len: 1, ..plain() };
            front.put(offset + 16 * u64::from(next), &entry.bytes());
        }
        front.publish(1, 1280 + 256);
        until("each chain comes back", || front.used(1) == 1280 + 256);
    });
    assert_eq!(stats.drain.chains - stats.drain.packets, 6 * 256, "{:?}", stats.drain);
}

#[test]
fn available_indexes_that_jump() {
    attack(|lab| {
        for ring in [0, 1] {
            for jump in [257, 1000, 32768, 65535] {
                let front = Front::running(lab);
                front.descriptor(ring, 0, plain());
                front.publish(ring, jump);
                lab.allow(4);
                front.publish(ring, 0);
                front.publish(ring, jump.wrapping_add(1));
                lab.allow(4);
                // A broken ring is told so by nothing but its silence, and can be stopped.
                let said = front.say(Request::GET_VRING_BASE, &words(&[ring, 0]));
                assert!(matches!(said, Said::Answer(_)), "{said:?}");
            }
        }
    });
}

#[test]
fn heads_that_are_out_of_range() {
    attack(|lab| {
        for ring in [0, 1] {
            for head in [256, 257, 32768, 65535] {
                let front = Front::running(lab);
                (0..256).for_each(|position| front.entry(ring, position, head));
                front.publish(ring, 256);
                lab.allow(16);
            }
        }
    });
}

#[test]
fn a_guest_writes_to_its_rings_all_the_time() {
    attack(|lab| {
        for ring in [0, 1] {
            for seed in 0..20_u64 {
                let front = Front::running(lab);
                let mut noise = seed + 1;
                for _ in 0..500 {
                    noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed | 1);
                    let at = u64::from(ring) * RING + (noise >> 20) % (USED + 16);
                    front.put(at, &(noise >> 33).to_le_bytes());
                    if noise >> 60 == 0 {
                        lab.allow(1);
                    }
                    front.publish(ring, u16::try_from(noise >> 40 & 0x7f).unwrap());
                }
            }
        }
        assert_eq!(ENTRIES, 256);
    });
}

#[test]
fn headers_that_lie_on_transmit() {
    let stats = attack(|lab| {
        let values = [0, 1, 13, 14, 34, 54, 66, 100, 1000, 1448, 0x7fff, 0xffff];
        let mut guest = Guest::connect(lab.config()).unwrap();
        let frame = crate::guest_frames(&crate::one_flow(), 30, 30).remove(0);
        let mut sent = 0;
        for flags in [0, 1, 2, 4, 0xff] {
            for gso_type in [0, 1, 2, 3, 4, 5, 0x80, 0x81, 0xff] {
                for (nth, first) in values.into_iter().enumerate() {
                    let value = |step: usize| values[(nth * step + step) % values.len()];
                    let right = frame.0;
                    for header in [
                        NetHeader { csum_start: first, ..right },
                        NetHeader { csum_offset: first, ..right },
                        NetHeader { gso_size: first, ..right },
                        NetHeader { hdr_len: first, ..right },
                        NetHeader {
                            csum_start: first,
                            csum_offset: value(5),
                            gso_size: value(7),
                            hdr_len: value(11),
                            num_buffers: first,
                            ..right
                        },
                    ] {
                        let header = NetHeader { flags, gso_type, ..header };
                        for len in [0, 1, 13, 14, 60, 66, 67, 2000, frame.1.len()] {
                            until("the guest may send", || {
                                guest.send_unchecked(0, header, &frame.1[..len])
                            });
                            sent += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(sent, 5 * 9 * 12 * 5 * 9);
        until("all is taken", || guest.reap_tx() == 0);
        assert_eq!(guest.violations().total(), 0, "{:?}", guest.violations());
    });
    assert!(stats.drain.dropped() > 1000, "{:?}", stats.drain);
}
