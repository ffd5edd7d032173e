//! The ring against a driver that keeps the rules, and one that breaks each of them.

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::driver::{AVAIL, BUFFERS, DESC, Driver, INDIRECT, NEXT, STRIDE, TABLES, USED, WRITE};

fn bad(ring: &mut SplitRing, access: Access) -> ChainError {
    ring.available().unwrap();
    ring.forget_buffers();
    match ring.chain(0, access) {
        Err(Fault::Chain { reason, .. }) => {
            assert_eq!(ring.write(&[0]), 0, "a bad chain leaves no buffer");
            assert_eq!(ring.broken(), None, "the ring goes on");
            reason
        }
        other => panic!("a bad chain, not {other:?}"),
    }
}

/// One chain whose first descriptor is this, on a driver that has 8.
fn one(address: u64, len: u32, flags: u16, next: u16) -> (Driver, SplitRing) {
    let mut driver = Driver::new(8, 0);
    driver.describe(0, address, len, flags, next);
    driver.enter(0);
    driver.expose();
    let ring = driver.ring();
    (driver, ring)
}

#[test]
fn chains_go_round_and_indexes_wrap() {
    let mut driver = Driver::new(4, 65533);
    let mut ring = driver.ring();
    for round in 0..10u8 {
        driver.post(&[6, 4], WRITE);
        driver.post(&[3], WRITE);
        assert_eq!(ring.available(), Ok(2));
        for _ in 0..2 {
            ring.forget_buffers();
            let chain = ring.chain(0, Access::Write).unwrap();
            assert_eq!(ring.write(&[round; 16]), chain.len as usize);
            ring.give_back(chain.head, chain.len);
        }
        assert!(driver.used().is_empty(), "nothing is seen before it is published");
        assert_eq!(ring.publish(), 2);
        assert_eq!(driver.used_chains(), [vec![round; 10], vec![round; 3]]);
        assert_eq!(ring.available(), Ok(0));
    }
    assert_eq!((ring.next_avail(), ring.next_used()), (17, 17));
}

#[test]
fn the_nth_chain_is_the_nth() {
    let mut driver = Driver::new(8, 65535);
    driver.post(&[1], WRITE);
    driver.post(&[2], WRITE);
    driver.post(&[3], WRITE);
    let mut ring = driver.ring();
    assert_eq!(ring.available(), Ok(3));
    let lengths = [0, 1, 2].map(|nth| ring.chain(nth, Access::Write).unwrap().len);
    assert_eq!(lengths, [1, 2, 3]);
    assert_eq!(ring.write(&[9; 10]), 6, "their buffers in a row");
}

#[test]
fn an_indirect_chain_is_read_like_a_direct_one() {
    let (driver, mut ring) = one(TABLES, 16 * 3, INDIRECT, 0);
    driver.describe_at(TABLES, 0, BUFFERS, 3, NEXT, 2);
    driver.describe_at(TABLES, 2, BUFFERS + 100, 2, 0, 0);
    driver.memory.write_slice(b"abc", GuestAddress(BUFFERS)).unwrap();
    driver.memory.write_slice(b"de", GuestAddress(BUFFERS + 100)).unwrap();
    ring.available().unwrap();
    assert_eq!(ring.chain(0, Access::Read), Ok(Chain { head: 0, len: 5 }));
    assert_eq!(ring.read_array(), Some(*b"abcd"));
    let mut rest = [0; 4];
    assert_eq!((ring.read(&mut rest), rest[0]), (1, b'e'));
}

#[test]
fn an_indirect_table_may_lie_anywhere() {
    for table in [TABLES + 1, TABLES + 8, TABLES + 15] {
        let (driver, mut ring) = one(table, 32, INDIRECT, 0);
        driver.describe_at(table, 0, BUFFERS, 3, NEXT, 1);
        driver.describe_at(table, 1, BUFFERS + 100, 2, 0, 0);
        ring.available().unwrap();
        assert_eq!(ring.chain(0, Access::Read), Ok(Chain { head: 0, len: 5 }));
    }
}

#[test]
fn an_indirect_table_may_end_a_chain() {
    let (driver, mut ring) = one(BUFFERS, 3, NEXT, 1);
    driver.describe(1, TABLES, 16, INDIRECT, 0);
    driver.describe_at(TABLES, 0, BUFFERS, 4, 0, 0);
    ring.available().unwrap();
    assert_eq!(ring.chain(0, Access::Read), Ok(Chain { head: 0, len: 7 }));
}

#[test]
fn an_indirect_chain_may_be_longer_than_a_small_ring() {
    let (driver, mut ring) = one(TABLES, 16 * 19, INDIRECT, 0);
    for index in 0..19 {
        let more = if index < 18 { NEXT } else { 0 };
        driver.describe_at(TABLES, index, BUFFERS, 1, more, index + 1);
    }
    ring.available().unwrap();
    assert_eq!(ring.chain(0, Access::Read), Ok(Chain { head: 0, len: 19 }));
}

#[test]
fn the_available_index_jumps() {
    let mut driver = Driver::new(8, 65530);
    driver.post_many(3, 100);
    let mut ring = driver.ring();
    assert_eq!(ring.available(), Ok(3));
    driver.set_avail_index(65530u16.wrapping_add(8));
    assert_eq!(ring.available(), Ok(8), "a full ring is fine");
    driver.set_avail_index(65530u16.wrapping_add(9));
    let error = RingError::AvailJump { index: 3, next: 65530, size: 8 };
    assert_eq!(ring.available(), Err(error));
    driver.set_avail_index(65530);
    assert_eq!(ring.available(), Err(error), "it stays broken");
    assert_eq!(ring.broken(), Some(&error));
    assert!(!ring.enable_notification(), "a broken ring has no work");
}

#[test]
fn the_available_index_goes_back() {
    let driver = Driver::new(8, 100);
    let mut ring = driver.ring();
    driver.set_avail_index(99);
    assert_eq!(ring.available(), Err(RingError::AvailJump { index: 99, next: 100, size: 8 }));
}

#[test]
fn a_head_is_out_of_range() {
    let mut driver = Driver::new(8, 0);
    driver.enter(8);
    driver.expose();
    let mut ring = driver.ring();
    ring.available().unwrap();
    let error = RingError::HeadOutOfRange { head: 8, size: 8 };
    assert_eq!(ring.chain(0, Access::Write), Err(Fault::Ring(error)));
    assert_eq!(ring.available(), Err(error));
}

#[test]
fn next_is_out_of_range() {
    let (_driver, mut ring) = one(BUFFERS, 10, WRITE | NEXT, 8);
    assert_eq!(bad(&mut ring, Access::Write), ChainError::NextOutOfRange);
    let (driver, mut ring) = one(TABLES, 32, INDIRECT, 0);
    driver.describe_at(TABLES, 0, BUFFERS, 10, NEXT, 2);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::NextOutOfRange);
}

#[test]
fn a_chain_loops() {
    let (_driver, mut ring) = one(BUFFERS, 10, WRITE | NEXT, 0);
    assert_eq!(bad(&mut ring, Access::Write), ChainError::Loop);
    let (driver, mut ring) = one(TABLES, 32, INDIRECT, 0);
    driver.describe_at(TABLES, 0, BUFFERS, 10, NEXT, 1);
    driver.describe_at(TABLES, 1, BUFFERS, 10, NEXT, 0);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::Loop);
}

#[test]
fn an_indirect_table_was_not_negotiated() {
    let mut driver = Driver::new(8, 0);
    driver.indirect = false;
    driver.describe(0, TABLES, 16, INDIRECT, 0);
    driver.describe_at(TABLES, 0, BUFFERS, 10, 0, 0);
    driver.enter(0);
    driver.expose();
    assert_eq!(bad(&mut driver.ring(), Access::Read), ChainError::IndirectNotNegotiated);
}

#[test]
fn an_indirect_table_is_inside_another() {
    let (driver, mut ring) = one(TABLES, 16, INDIRECT, 0);
    driver.describe_at(TABLES, 0, TABLES, 16, INDIRECT, 0);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::IndirectNested);
}

#[test]
fn an_indirect_descriptor_has_a_next_one() {
    let (_driver, mut ring) = one(TABLES, 16, INDIRECT | NEXT, 1);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::IndirectNext);
}

#[test]
fn an_indirect_table_has_a_strange_length() {
    let (_driver, mut ring) = one(TABLES, 0, INDIRECT, 0);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::IndirectEmpty);
    for len in [1, 15, 17, 16 * 65536, u32::MAX, u32::MAX - 15] {
        let (_driver, mut ring) = one(TABLES, len, INDIRECT, 0);
        assert_eq!(bad(&mut ring, Access::Read), ChainError::IndirectLength, "{len}");
    }
}

#[test]
fn an_indirect_table_is_outside_memory() {
    for address in [0, USED + 0x10_0000, u64::MAX - 7] {
        let (_driver, mut ring) = one(address, 16, INDIRECT, 0);
        assert_eq!(bad(&mut ring, Access::Read), ChainError::IndirectOutside, "{address:#x}");
    }
}

#[test]
fn a_buffer_is_outside_memory() {
    let end = BUFFERS + 8 * STRIDE;
    for (address, len) in [
        (0, 1),
        (DESC - 1, 1),
        (BUFFERS - 1, 2),
        (end - 1, 2),
        (end, 1),
        (u64::MAX, 2),
        (BUFFERS, u32::MAX),
    ] {
        let (_driver, mut ring) = one(address, len, WRITE, 0);
        assert_eq!(bad(&mut ring, Access::Write), ChainError::Outside, "{address:#x}+{len}");
    }
}

#[test]
fn a_buffer_has_no_bytes() {
    let (_driver, mut ring) = one(BUFFERS, 0, WRITE, 0);
    assert_eq!(bad(&mut ring, Access::Write), ChainError::ZeroLength);
}

#[test]
fn a_buffer_goes_the_wrong_way() {
    let (_driver, mut ring) = one(BUFFERS, 10, 0, 0);
    assert_eq!(bad(&mut ring, Access::Write), ChainError::Direction);
    let (driver, mut ring) = one(BUFFERS, 10, NEXT, 1);
    driver.describe(1, BUFFERS, 10, WRITE, 0);
    assert_eq!(bad(&mut ring, Access::Read), ChainError::Direction);
}

#[test]
fn a_chain_has_more_bytes_than_can_be_said() {
    // 6 times 1 GiB of address space, none of which is ever touched.
    let gib = 1usize << 30;
    let ranges = [(GuestAddress(DESC), 0x10_0000), (GuestAddress(1 << 32), gib)];
    let memory = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let mut driver = Driver::new(8, 0);
    driver.memory = Arc::clone(&memory);
    for index in 0..5 {
        let more = if index < 4 { NEXT } else { 0 };
        driver.describe(index, 1 << 32, 1 << 30, WRITE | more, index + 1);
    }
    driver.enter(0);
    driver.expose();
    assert_eq!(bad(&mut driver.ring(), Access::Write), ChainError::TooLong);
}

#[test]
fn unknown_descriptor_flags_are_ignored() {
    let (_driver, mut ring) = one(BUFFERS, 10, WRITE | 0xfff0, 0);
    ring.available().unwrap();
    assert_eq!(ring.chain(0, Access::Write), Ok(Chain { head: 0, len: 10 }));
}

#[test]
fn a_setup_is_checked() {
    let driver = Driver::new(8, 0);
    let new = |change: &dyn Fn(&mut RingSetup)| {
        let mut setup = driver.setup(None);
        change(&mut setup);
        SplitRing::new(Memory::new(Arc::clone(&driver.memory)), setup).err()
    };
    assert_eq!(new(&|_| ()), None);
    for size in [0, 3, 7, 32769, 65535] {
        assert_eq!(new(&|setup| setup.size = size), Some(RingError::Size(size)));
    }
    let alignment = |area, address, align| Some(RingError::Alignment { area, address, align });
    assert_eq!(new(&|setup| setup.desc += 8), alignment(AreaKind::Descriptors, DESC + 8, 16));
    assert_eq!(new(&|setup| setup.avail += 1), alignment(AreaKind::Available, AVAIL + 1, 2));
    assert_eq!(new(&|setup| setup.used += 2), alignment(AreaKind::Used, USED + 2, 4));
    let outside = |area, address, len| Some(RingError::OutsideMemory { area, address, len });
    let end = DESC + 0x10_0000;
    assert_eq!(new(&|setup| setup.desc = 0), outside(AreaKind::Descriptors, 0, 128));
    assert_eq!(new(&|setup| setup.avail = end - 20), outside(AreaKind::Available, end - 20, 22));
    assert_eq!(new(&|setup| setup.used = end - 68), outside(AreaKind::Used, end - 68, 70));
    let last = u64::MAX - 15;
    assert_eq!(new(&|setup| setup.desc = last), outside(AreaKind::Descriptors, last, 128));
}

#[test]
fn the_largest_ring_is_a_ring() {
    let ranges = [(GuestAddress(0), 0x100_0000)];
    let map = Arc::new(GuestMemoryMmap::from_ranges(&ranges).unwrap());
    let setup = RingSetup {
        size: 32768,
        desc: 0,
        avail: 0x8_0000,
        used: 0xa_0000,
        next_avail: 65535,
        next_used: 65535,
        event_idx: true,
        indirect: false,
        call: None,
    };
    map.write_obj(32767u16, GuestAddress(0x8_0002)).unwrap();
    map.write_obj(32767u16, GuestAddress(0x8_0004 + 2 * 32767)).unwrap();
    let mut ring = SplitRing::new(Memory::new(map), setup).unwrap();
    assert_eq!(ring.available(), Ok(32768));
    assert_eq!(ring.head(0), Ok(32767));
}

/// A ring with a call eventfd, and a step that gives one chain back.
struct Called {
    driver: Driver,
    ring: SplitRing,
    call: EventFd,
}

impl Called {
    fn new(event_idx: bool, start: u16) -> Self {
        let mut driver = Driver::new(8, start);
        driver.event_idx = event_idx;
        let call = EventFd::new(EFD_NONBLOCK).unwrap();
        let setup = driver.setup(Some(call.try_clone().unwrap().into()));
        let ring = SplitRing::new(Memory::new(Arc::clone(&driver.memory)), setup).unwrap();
        let mut called = Self { driver, ring, call };
        assert_eq!(called.step(1), Notified::Called, "the first is never left out");
        called
    }

    fn step(&mut self, count: u16) -> Notified {
        self.driver.post_many(count, 10);
        self.ring.available().unwrap();
        for _ in 0..count {
            let head = self.ring.head(0).unwrap();
            self.ring.give_back(head, 0);
        }
        self.ring.publish();
        self.driver.used();
        let notified = self.ring.notify();
        assert_eq!(self.call.read().is_ok(), notified == Notified::Called);
        notified
    }
}

#[test]
fn calls_follow_the_flag_without_event_idx() {
    let mut called = Called::new(false, 0);
    assert_eq!(called.step(1), Notified::Called);
    called.driver.set_flags(1);
    assert_eq!(called.step(3), Notified::Suppressed);
    called.driver.set_flags(0);
    assert_eq!(called.step(3), Notified::Called);
    assert_eq!(called.ring.notify(), Notified::Suppressed, "nothing new");
}

#[test]
fn calls_follow_the_used_event_with_event_idx() {
    let mut called = Called::new(true, 65533);
    // 65534 is published; the flag means nothing now.
    called.driver.set_flags(1);
    called.driver.set_used_event(65535);
    assert_eq!(called.step(1), Notified::Suppressed, "65535: not yet passed");
    assert_eq!(called.step(1), Notified::Called, "0: passed");
    assert_eq!(called.step(1), Notified::Suppressed, "1: passed before");
    called.driver.set_used_event(3);
    assert_eq!(called.step(4), Notified::Called, "5: passed in the middle of a batch");
    called.driver.set_used_event(5 + 8);
    assert_eq!(called.step(8), Notified::Suppressed, "13: the event itself is not passed");
    assert_eq!(called.step(1), Notified::Called);
}

#[test]
fn without_a_descriptor_nobody_is_called() {
    let mut driver = Driver::new(8, 0);
    let mut ring = driver.ring();
    driver.post_many(1, 10);
    ring.available().unwrap();
    ring.give_back(0, 0);
    ring.publish();
    assert_eq!(ring.notify(), Notified::Unreachable);
}

#[test]
fn kicks_are_switched_and_no_work_is_lost() {
    for event_idx in [false, true] {
        let mut driver = Driver::new(8, 65535);
        driver.event_idx = event_idx;
        let mut ring = driver.ring();
        ring.disable_notification();
        assert_eq!(driver.kicks(), if event_idx { (0, 65534) } else { (1, 0) });
        assert!(!ring.enable_notification());
        assert_eq!(driver.kicks(), if event_idx { (0, 65535) } else { (0, 0) });
        driver.post_many(1, 10);
        assert!(ring.enable_notification(), "there is work already");
    }
}

#[test]
fn a_queue_of_the_library_becomes_a_ring() {
    let mut queue = Queue::new(256).unwrap();
    queue.set_size(64);
    queue.set_desc_table_address(Some(0x1000), None);
    queue.set_avail_ring_address(Some(0x2000), None);
    queue.set_used_ring_address(Some(0x3000), None);
    queue.set_next_avail(7);
    queue.set_next_used(5);
    let features = Features::default().with(VIRTIO_RING_F_EVENT_IDX);
    let setup = RingSetup::from_queue(&queue, features, None);
    assert_eq!((setup.size, setup.next_avail, setup.next_used), (64, 7, 5));
    assert_eq!((setup.desc, setup.avail, setup.used), (0x1000, 0x2000, 0x3000));
    assert!(setup.event_idx && !setup.indirect);
}

#[test]
fn a_ring_can_move_to_another_thread() {
    fn moves<T: Send>() {}
    moves::<SplitRing>();
}
