//! Messages that are cut short, too long, unknown, at the wrong time, or made of noise.

use std::os::fd::{AsFd, BorrowedFd};

use guest::raw::{NEED_REPLY, REPLY, Request, VERSION};

use crate::attack;
use crate::front::{
    Front, GUEST, SIZE, Said, USER, descriptors_of_all_kinds, table, vring_addresses, words,
};

/// Requests by number: all that have a name, some that nobody knows.
fn requests() -> impl Iterator<Item = Request> {
    (0..=46).chain([99, 255, 256, 1 << 16, u32::MAX]).map(Request)
}

#[test]
fn messages_cut_short_at_every_byte() {
    attack(|lab| {
        for len in 0..32 {
            let front = Front::connect(lab);
            let mut message = words(&[5, VERSION, 1024]);
            message.extend([1; 40]);
            front.raw.write(&message[..len], &[]).unwrap();
        }
    });
}

#[test]
fn headers_that_lie() {
    attack(|lab| {
        for [flags, size] in [
            [VERSION, 4097],
            [VERSION, u32::MAX],
            [0, 0],
            [2, 0],
            [3, 0],
            [!0, 0],
            [VERSION | REPLY, 0],
            [VERSION | REPLY | NEED_REPLY, 8],
        ] {
            for request in [1, 2, 5, 17, 18, 24, 40] {
                let front = Front::greeted(lab);
                front.raw.send_sized(Request(request), flags, size, &[0; 8], &[]).unwrap();
            }
        }
    });
}

#[test]
fn every_request_with_bodies_of_every_length() {
    attack(|lab| {
        for request in requests() {
            for len in [0, 1, 4, 8, 12, 32, 40, 268, 4096] {
                for byte in [0, 0xff] {
                    let front = Front::connect(lab);
                    // Twice, since the first may have been the last: that is what a closed socket says.
                    for _ in 0..2 {
                        drop(front.raw.send(request, NEED_REPLY, &vec![byte; len], &[]));
                    }
                }
                let front = Front::greeted(lab);
                drop(front.raw.send(request, NEED_REPLY, &vec![0; len], &[]));
            }
        }
    });
}

#[test]
fn requests_in_the_wrong_order() {
    attack(|lab| {
        let addresses = vring_addresses(0, [USER + GUEST, USER + GUEST + 0x2000, USER + GUEST]);
        let region = table(&[[GUEST, SIZE, USER + GUEST, 0]]);
        let zero = 0u64.to_ne_bytes();
        for order in [
            &[Request::SET_VRING_ADDR, Request::SET_VRING_KICK][..],
            &[Request::SET_VRING_ENABLE, Request::SET_VRING_KICK, Request::SET_MEM_TABLE],
            &[Request::GET_VRING_BASE, Request::SET_VRING_ENABLE, Request::GET_VRING_BASE],
            &[Request::SET_OWNER, Request::SET_OWNER],
            &[Request::SET_FEATURES, Request::SET_FEATURES, Request::SET_VRING_ENABLE],
            &[Request::RESET_OWNER, Request::SET_VRING_ENABLE, Request::GET_FEATURES],
            &[Request::RESET_DEVICE, Request::SET_VRING_KICK, Request::RESET_DEVICE],
            &[Request::SET_VRING_KICK, Request::SET_MEM_TABLE, Request::SET_VRING_ADDR],
            &[Request::REM_MEM_REG, Request::ADD_MEM_REG, Request::SET_MEM_TABLE],
            &[Request::SET_LOG_BASE, Request::SET_LOG_FD, Request::SET_VRING_ERR],
        ] {
            for greeted in [false, true] {
                let front = if greeted { Front::running(lab) } else { Front::connect(lab) };
                for request in order {
                    let fds = match *request {
                        Request::SET_MEM_TABLE => vec![front.memory.as_fd()],
                        Request::SET_VRING_KICK => vec![front.kick.as_fd()],
                        _ => Vec::new(),
                    };
                    let body = match *request {
                        Request::SET_MEM_TABLE => &region[..],
                        Request::SET_VRING_ADDR => &addresses,
                        Request::SET_OWNER | Request::RESET_OWNER | Request::RESET_DEVICE => &[],
                        _ => &zero,
                    };
                    if !greeted {
                        drop(front.raw.send(*request, 0, body, &fds));
                    } else if front.say_with(*request, body, &fds) == Said::Closed {
                        break;
                    }
                }
            }
        }
    });
}

#[test]
fn features_that_were_never_offered() {
    attack(|lab| {
        for features in [!0, 1 << 63, 1 << 34, 1 << 26] {
            let front = Front::connect(lab);
            front.raw.ask(Request::GET_FEATURES, 0, &[]).unwrap();
            let set = |request, value: u64| front.raw.send(request, 0, &value.to_ne_bytes(), &[]);
            set(Request::SET_PROTOCOL_FEATURES, !0).unwrap();
            drop(set(Request::SET_FEATURES, features));
            drop(front.raw.ask(Request::GET_FEATURES, 0, &[]));
        }
    });
}

#[test]
fn configuration_space_by_lying_sizes() {
    attack(|lab| {
        for [offset, size, carried] in [
            [0, 0, 0],
            [0, 12, 0],
            [0, 12, 256],
            [0, u32::MAX, 12],
            [u32::MAX, 12, 12],
            [u32::MAX, u32::MAX, 0],
            [250, 12, 12],
            [0, 4096, 256],
            [4095, 1, 1],
            [0x7fff_ffff, 0x7fff_ffff, 1],
        ] {
            for request in [Request::GET_CONFIG, Request::SET_CONFIG] {
                let front = Front::greeted(lab);
                let mut body = words(&[offset, size, 0]);
                body.resize(body.len() + usize::try_from(carried).unwrap(), 0xee);
                if let Said::Answer(answer) = front.say(request, &body) {
                    assert!(answer.len() <= body.len() + 8, "{request:?} {offset} {size}");
                }
            }
        }
    });
}

/// Noise with a known start, so that what failed fails again.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        let len = u64::try_from(of.len()).expect("a short list");
        of[usize::try_from(self.next() % len).expect("an index of the list")]
    }

    /// A number that is likely to mean something.
    fn word(&mut self) -> u64 {
        let small = self.next() % 8;
        let near = USER + GUEST + ((self.next() % SIZE) & !0xfff);
        let noise = self.next();
        let one = 1 << (noise % 64);
        self.one_of(&[small, small | 1 << 32, near, GUEST, SIZE, !0, noise, one, 256, 0x1000])
    }
}

#[test]
fn noise_made_of_messages_with_rings_running() {
    attack(|lab| {
        let kinds = descriptors_of_all_kinds();
        for seed in 1..=300 {
            let mut noise = Noise(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let front = Front::running(lab);
            let good = [front.memory.as_fd(), front.kick.as_fd(), front.call.as_fd()];
            for _ in 0..40 {
                let request = Request(u32::try_from(noise.next() % 47).unwrap());
                let words = noise.one_of(&[0, 1, 1, 1, 2, 4, 5, 5, 5, 9]);
                let body: Vec<_> = (0..words).flat_map(|_| noise.word().to_ne_bytes()).collect();
                let fds: Vec<BorrowedFd<'_>> = (0..noise.one_of(&[0, 0, 0, 1, 1, 2]))
                    .map(|_| match noise.next() % 3 {
                        0 => kinds[usize::try_from(noise.next() % 14).unwrap()].1.as_fd(),
                        _ => noise.one_of(&good),
                    })
                    .collect();
                let flags = noise.one_of(&[0, NEED_REPLY]);
                if front.raw.send(request, flags, &body, &fds).is_err() {
                    break;
                }
            }
        }
    });
}
