//! SEND_RARP: after a migration the front end asks for an announcement of the guest's address.

use std::sync::mpsc;
use std::time::Duration;

use guest::{Config, Connect, Guest, MessageOrder};
use packet::{Burst, Frame, Pool};
use port::{Fill, Memory};
use vhost_user_gro::daemon::Endpoint;
use vhost_user_gro::daemon::device::Identity;
use vhost_user_gro::running::{Parts, Running};
use vhost_user_gro::{Failure, announce, offer, worker};

#[test]
fn an_announcement_leaves_by_the_port() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("vhost.sock");
    let (tell, sent) = mpsc::channel();
    let source = |_: &mut Burst, _: &mut Pool| Fill::Idle;
    let sink = move |frame: Frame, pool: &mut Pool| {
        tell.send(frame.to_vec()).unwrap();
        pool.recycle(frame);
    };
    let parts = Parts {
        port: Box::new(Memory::new("memory", source, sink)),
        pool: Pool::new(64, 2048),
        config: worker::Config {
            gro: gro::Config::default(),
            normal_batch: 8,
            spin: Some(Duration::from_micros(20)),
        },
        identity: Identity {
            features: offer::features(&[]).unwrap(),
            mac: None,
            mtu: None,
            pairs: 1,
            max_queue_size: 256,
        },
    };
    let listen = || Endpoint::listen(&socket).map_err(|error| Failure::set_up(&error));
    let running = Running::start(parts, listen, |_| ()).unwrap();
    let config = Config::new(Connect::Path(socket.clone())).under(MessageOrder::Qemu);
    let mut guest = Guest::connect(config).unwrap();
    for mac in [[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]] {
        guest.send_rarp(mac).unwrap();
        let frame = sent.recv_timeout(Duration::from_secs(30)).expect("an announcement");
        assert_eq!(frame, announce::rarp(mac));
    }
    let stats = running.stop();
    assert_eq!((stats.port_tx.frames, stats.buffers.0), (2, 64), "once each, buffers back");
}
