//! Descriptors that are missing, too many, or of kinds that nobody asked for.

use std::io::{Write, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use guest::raw::{NEED_REPLY, Request};
use rustix::event::EventfdFlags;

use crate::front::{
    Front, GUEST, SIZE, USER, bell, descriptors_of_all_kinds, event, table, vring_addresses, words,
};
use crate::{attack, until};

#[test]
fn too_few_and_too_many_descriptors_with_every_request() {
    attack(|lab| {
        let file = tempfile::tempfile().unwrap();
        for request in (1..=46).map(Request) {
            for count in [0, 1, 2, 31, 32, 33, 64] {
                let front = Front::greeted(lab);
                let fds = vec![file.as_fd(); count];
                drop(front.raw.send(request, NEED_REPLY, &[0; 8], &fds));
                drop(front.raw.send(request, 0, &[], &fds));
            }
        }
    });
}

#[test]
fn descriptors_in_the_middle_of_a_message() {
    attack(|lab| {
        let file = tempfile::tempfile().unwrap();
        for len in [1, 11, 12, 13, 30] {
            let front = Front::greeted(lab);
            let mut message = words(&[5, 1, 40]);
            message.extend(table(&[[GUEST, SIZE, USER + GUEST, 0]]));
            for part in message.chunks(len) {
                drop(front.raw.write(part, &[file.as_fd(); 20]));
            }
        }
    });
}

#[test]
fn descriptors_of_all_kinds_with_every_request() {
    attack(|lab| {
        for (_, fd) in descriptors_of_all_kinds() {
            for request in (1..=46).map(Request) {
                let front = Front::greeted(lab);
                drop(front.raw.send(request, NEED_REPLY, &0u64.to_ne_bytes(), &[fd.as_fd()]));
            }
        }
    });
}

/// Has packets sent by a ring with these descriptors; all are taken.
fn taken(front: &Front, kick: BorrowedFd<'_>, call: BorrowedFd<'_>, what: &str) {
    front.share_memory();
    front.start_with(1, kick, call);
    for round in 1..=3 {
        front.send_packets(1, (round - 1) * 200, 200);
        until(what, || front.used(1) == round * 200);
    }
}

#[test]
fn kicks_by_descriptors_of_all_kinds() {
    attack(|lab| {
        for (kind, fd) in descriptors_of_all_kinds() {
            let front = Front::greeted(lab);
            taken(&front, fd.as_fd(), front.call.as_fd(), kind);
        }
    });
}

#[test]
fn calls_by_descriptors_of_all_kinds() {
    attack(|lab| {
        for (kind, fd) in descriptors_of_all_kinds() {
            let front = Front::greeted(lab);
            taken(&front, front.kick.as_fd(), fd.as_fd(), kind);
        }
    });
}

/// Writes until there is no room, then lets writes wait again.
fn fill<T: AsFd>(fd: &T, mut write: impl FnMut() -> std::io::Result<usize>) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(fd).expect("an open descriptor");
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).expect("an open descriptor");
    while write().is_ok() {}
    fcntl_setfl(fd, flags).expect("an open descriptor");
}

#[test]
fn calls_by_descriptors_without_room_do_not_stop_the_worker() {
    attack(|lab| {
        let (_reader, mut pipe) = pipe().unwrap();
        let mut copy = pipe.try_clone().unwrap();
        fill(&pipe, || copy.write(&[0; 4096]));
        pipe.flush().unwrap();
        let (mut socket, _peer) = UnixStream::pair().unwrap();
        let other = socket.try_clone().unwrap();
        fill(&other, || socket.write(&[0; 4096]));
        let full = event(EventfdFlags::CLOEXEC);
        bell(&full, u64::MAX - 1);
        let kinds: [(_, OwnedFd); 3] =
            [("a full pipe", pipe.into()), ("a full socket", other.into()), ("an eventfd", full)];
        for (kind, fd) in kinds {
            let front = Front::greeted(lab);
            taken(&front, front.kick.as_fd(), fd.as_fd(), kind);
        }
    });
}

#[test]
fn a_kick_that_is_never_quiet() {
    attack(|lab| {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(&[0; 4096]).unwrap();
        let front = Front::greeted(lab);
        taken(&front, reader.as_fd(), front.call.as_fd(), "a pipe that can always be read");
    });
}

#[test]
fn a_storm_of_kicks() {
    attack(|lab| {
        let front = Front::running(lab);
        let kick = front.kick.try_clone().unwrap();
        let storm = std::thread::spawn(move || (0..200_000).for_each(|_| bell(&kick, 1)));
        let mut index = 0;
        while !storm.is_finished() {
            front.send_packets(1, index, 100);
            index += 100;
            until("packets are taken in the storm", || front.used(1) == index);
        }
        storm.join().unwrap();
    });
}

#[test]
fn descriptors_are_replaced_while_rings_run() {
    attack(|lab| {
        let kinds = descriptors_of_all_kinds();
        let front = Front::running(lab);
        for round in 0..200_u16 {
            let (_, fd) = &kinds[usize::from(round) % kinds.len()];
            for request in
                [Request::SET_VRING_KICK, Request::SET_VRING_CALL, Request::SET_VRING_ERR]
            {
                let said = front.say_with(request, &1u64.to_ne_bytes(), &[fd.as_fd()]);
                assert!(said.done(), "{said:?}");
            }
            front.send_packets(1, round * 7, 7);
        }
        until("all packets are taken", || front.used(1) == 1400);
        // A ring number beyond 8 bits, and the flag that there is no descriptor.
        let addresses = vring_addresses(1, [USER + GUEST; 3]);
        drop(front.raw.send(Request::SET_VRING_ADDR, 0, &addresses, &[]));
        drop(front.raw.send(Request::SET_VRING_KICK, 0, &0x1ffu64.to_ne_bytes(), &[]));
    });
}
