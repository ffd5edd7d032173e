//! Front ends that say nothing, do not listen, or come and go.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use guest::raw::{Request, VERSION};

use crate::front::{Front, words};
use crate::lab::Lab;
use crate::{alone, attack, one_flow, until};

#[test]
fn a_thousand_quick_connections() {
    attack(|lab| {
        for number in 0..1000 {
            let mut stream = UnixStream::connect(lab.socket()).unwrap();
            if number % 3 == 0 {
                // It may be closed already.
                drop(stream.write_all(&words(&[number, VERSION, 8, 0])));
            }
        }
    });
}

/// Asks and asks until nobody takes it any more.
fn flood(front: &Front) {
    front.raw.stream().set_write_timeout(Some(Duration::from_millis(500))).expect("an open socket");
    let mut asked = 0;
    while front.raw.send(Request::GET_FEATURES, 0, &[], &[]).is_ok() {
        asked += 1;
        assert!(asked < 1_000_000, "the backend keeps answers without end");
    }
}

#[test]
fn a_front_end_that_never_listens() {
    attack(|lab| {
        let front = Front::running(lab);
        flood(&front);
        front.send_packets(1, 0, 200);
        until("packets are taken all the same", || front.used(1) == 200);
    });
}

#[test]
fn a_front_end_that_never_listens_can_be_left() {
    alone(|| {
        let lab = Lab::new(one_flow(), &[]);
        let front = Front::running(&lab);
        flood(&front);
        lab.stop()
    });
}

#[test]
fn a_front_end_that_says_nothing_can_be_left() {
    alone(|| {
        let lab = Lab::new(one_flow(), &[]);
        let _silent = Front::connect(&lab);
        std::thread::sleep(Duration::from_millis(50));
        let _waiting = Front::connect(&lab);
        lab.stop()
    });
}

#[test]
fn a_front_end_in_the_middle_of_a_message_can_be_left() {
    for len in [4, 12, 20] {
        alone(move || {
            let lab = Lab::new(one_flow(), &[]);
            let front = Front::running(&lab);
            let message = words(&[5, VERSION, 1024, 1, 0, 0]);
            front.raw.write(&message[..len], &[]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            lab.stop()
        });
    }
}

#[test]
fn a_front_end_that_comes_at_the_end() {
    for delay in 0..10 {
        alone(move || {
            let lab = Lab::new(one_flow(), &[]);
            let _front = Front::connect(&lab);
            std::thread::sleep(Duration::from_micros(20 * delay));
            lab.stop()
        });
    }
}
