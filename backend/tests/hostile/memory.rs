//! Memory tables that lie, and memory that changes under traffic.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use guest::raw::Request;

use crate::front::{Front, GUEST, SIZE, Said, USER, descriptors_of_all_kinds, memory, table};
use crate::{attack, until};

/// The body of ADD_MEM_REG and REM_MEM_REG.
fn region(region: [u64; 4]) -> Vec<u8> {
    [0].iter().chain(&region).flat_map(|word| word.to_ne_bytes()).collect()
}

/// What is wrong, the regions, and the size of the file behind each.
type Lie = (&'static str, &'static [[u64; 4]], u64);

const LIES: &[Lie] = &[
    ("empty", &[[GUEST, 0, USER, 0]], 4096),
    ("longer than its file", &[[GUEST, 0x2000, USER, 0]], 4096),
    ("behind its file", &[[GUEST, 0x1000, USER, 0x1000]], 4096),
    ("around the end of guest addresses", &[[!0xfff, 0x2000, USER, 0]], 0x2000),
    ("up to the end of guest addresses", &[[!0xfff, 0x1000, USER, 0]], 0x1000),
    ("around the end of user addresses", &[[GUEST, 0x2000, !0xfff, 0]], 0x2000),
    ("around the end of offsets", &[[GUEST, 0x2000, USER, !0xfff]], 0x2000),
    ("as large as can be said", &[[0, !0, 0, 0]], 0x2000),
    ("half of everything", &[[0, 1 << 63, 0, 0]], i64::MAX as u64),
    ("more than can be mapped", &[[0, 1 << 50, 0, 0]], 1 << 50),
    ("at an odd offset", &[[GUEST, 0x1000, USER, 0x123]], 0x2000),
    ("twice the same", &[[GUEST, 0x1000, USER, 0], [GUEST, 0x1000, USER, 0]], 0x2000),
    ("overlapping", &[[GUEST, 0x2000, USER, 0], [GUEST + 0x1000, 0x2000, 0, 0]], 0x2000),
    ("inside another", &[[GUEST, 0x3000, USER, 0], [GUEST + 0x1000, 0x1000, 0, 0]], 0x3000),
    ("the same to the front end", &[[GUEST, 0x1000, USER, 0], [0, 0x1000, USER, 0]], 0x1000),
];

#[test]
fn tables_that_lie_are_refused() {
    attack(|lab| {
        for (lie, regions, size) in LIES {
            let file = memory(*size);
            let front = Front::greeted(lab);
            let fds = vec![file.as_fd(); regions.len()];
            let said = front.say_with(Request::SET_MEM_TABLE, &table(regions), &fds);
            assert!(!said.done(), "a region {lie} was accepted");
            drop(front);

            let front = Front::greeted(lab);
            let add = |body: Vec<u8>| front.say_with(Request::ADD_MEM_REG, &body, &[file.as_fd()]);
            let refused = regions.iter().any(|one| !add(region(*one)).done());
            assert!(refused, "a region {lie} was added");
        }
    });
}

#[test]
fn a_refused_table_leaves_the_rings_running() {
    attack(|lab| {
        let front = Front::running(lab);
        let bad = table(&[[GUEST, SIZE, USER, 0x1000]]);
        for round in 1..=3 {
            let said = front.say_with(Request::SET_MEM_TABLE, &bad, &[front.memory.as_fd()]);
            assert!(matches!(&said, Said::Answer(_)) && !said.done(), "{said:?}");
            front.send_packets(1, (round - 1) * 100, 100);
            until("packets are taken", || front.used(1) == round * 100);
        }
    });
}

#[test]
fn memory_of_all_kinds() {
    attack(|lab| {
        let mut kinds = descriptors_of_all_kinds();
        let path = std::env::current_exe().unwrap();
        kinds.push(("a file for reading", File::open(path).unwrap().into()));
        for (_, fd) in &kinds {
            for size in [0x1000, 0x10_0000] {
                let front = Front::greeted(lab);
                let body = table(&[[GUEST, size, USER + GUEST, 0]]);
                front.say_with(Request::SET_MEM_TABLE, &body, &[fd.as_fd()]);
                drop(front);
                let front = Front::greeted(lab);
                let body = region([GUEST, size, USER + GUEST, 0]);
                front.say_with(Request::ADD_MEM_REG, &body, &[fd.as_fd()]);
            }
        }
    });
}

#[test]
fn counts_that_are_not_those_of_the_table() {
    attack(|lab| {
        let one = [GUEST, SIZE, USER + GUEST, 0];
        for count in [0_u32, 2, 8, 33, 127, u32::MAX] {
            for fds in [0, 1, 2, 32] {
                let front = Front::greeted(lab);
                let mut body = table(&[one]);
                body[..4].copy_from_slice(&count.to_ne_bytes());
                let fds: Vec<BorrowedFd<'_>> = vec![front.memory.as_fd(); fds];
                let said = front.say_with(Request::SET_MEM_TABLE, &body, &fds);
                assert!(!said.done(), "{count} regions");
            }
        }
    });
}

#[test]
fn regions_without_end() {
    attack(|lab| {
        let front = Front::greeted(lab);
        let mut added = 0;
        for number in 0..2000 {
            let at = GUEST + number * 0x1000;
            let body = region([at, 0x1000, USER + at, 0]);
            if !front.say_with(Request::ADD_MEM_REG, &body, &[front.memory.as_fd()]).done() {
                break;
            }
            added += 1;
        }
        assert!((32..=509).contains(&added), "{added} regions were added");
    });
}

/// Nobody has a guest of this size, and mapping it several times over leaves no addresses to ourselves.
#[test]
fn more_memory_than_there_are_addresses() {
    attack(|lab| {
        let huge = 1 << 45;
        let file = memory(huge);
        let front = Front::greeted(lab);
        for number in 0..16 {
            let at = number * huge;
            let body = region([at, huge, at, 0]);
            if front.say_with(Request::ADD_MEM_REG, &body, &[file.as_fd()]) == Said::Closed {
                break;
            }
        }
        // The rest of the process needs some as well.
        let room = room_for(1 << 44);
        assert!(room.is_ok(), "no addresses are left: {room:?}");
    });
}

/// Whether as many bytes of addresses are free at one place.
fn room_for(size: u64) -> Result<(), vm_memory::mmap::MmapRegionError> {
    let offset = vm_memory::FileOffset::new(memory(size), 0);
    vm_memory::MmapRegion::<()>::from_file(offset, usize::try_from(size).expect("64 bits"))
        .map(drop)
}

#[test]
fn tables_are_replaced_under_traffic() {
    attack(|lab| {
        let front = Front::running(lab);
        let other = memory(SIZE);
        let body = table(&[[GUEST, SIZE, USER + GUEST, 0]]);
        for round in 0..200_u16 {
            front.send_packets(1, round * 50, 50);
            lab.allow(8);
            // Memory that has rings full of zeros, and then the old one again.
            for file in [&other, &front.memory] {
                let said = front.say_with(Request::SET_MEM_TABLE, &body, &[file.as_fd()]);
                assert!(said.done(), "{said:?}");
            }
        }
    });
}

#[test]
fn memory_is_taken_away_under_traffic() {
    attack(|lab| {
        let front = Front::greeted(lab);
        let body = region([GUEST, SIZE, USER + GUEST, 0]);
        let add = || front.say_with(Request::ADD_MEM_REG, &body, &[front.memory.as_fd()]);
        assert!(add().done());
        (0..2).for_each(|ring| front.start(ring));
        for round in 0..100_u16 {
            front.send_packets(1, round * 50, 50);
            lab.allow(8);
            assert!(front.say(Request::REM_MEM_REG, &body).done());
            assert!(add().done());
        }
        // Twice, and what was never there.
        front.say(Request::REM_MEM_REG, &body);
        front.say(Request::REM_MEM_REG, &body);
    });
}
