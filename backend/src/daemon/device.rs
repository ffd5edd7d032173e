//! The device as the protocol library sees it: features, configuration space, and what to do when
//! rings stop and memory changes. All of it runs on the library's thread; no packet passes here.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use vhost::vhost_user::Backend;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;
use vhost_user_backend::VhostUserBackend;
use virtio_net::feature::Features;
use vmm_sys_util::epoll::EventSet;

use super::vring::Vring;
use crate::shared::{Memory, Shared};

/// What the guest is told about the device, fixed at start-up.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Virtio features on offer.
    pub features: Features,
    /// The guest's address, if the device names one.
    pub mac: Option<[u8; 6]>,
    /// The largest packet behind the Ethernet header in bytes, if the device names one.
    pub mtu: Option<u16>,
    /// Queue pairs.
    pub pairs: u16,
    /// The largest ring.
    pub max_queue_size: u16,
}

/// The device of one connection.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
    /// The channel for requests of ours. Nothing is sent over it, but a front end takes its end for the
    /// end of the device (UML).
    channel: Arc<Mutex<Option<Backend>>>,
}

impl Device {
    /// A device that passes on to `shared` what happens.
    pub fn new(shared: Arc<Shared>, identity: Arc<Identity>) -> Self {
        Self { shared, identity, channel: Arc::default() }
    }

    /// How many rings: four for each pair, since a front end that takes GET_QUEUE_NUM for a number of
    /// pairs may use twice as many as were meant.
    pub fn rings(&self) -> usize {
        4 * usize::from(self.identity.pairs)
    }

    /// The configuration space (virtio 5.1.4): MAC, status, pairs, MTU.
    fn config_space(&self) -> [u8; 12] {
        let mut space = [0; 12];
        space[..6].copy_from_slice(&self.identity.mac.unwrap_or_default());
        space[6..8].copy_from_slice(&LINK_UP.to_le_bytes());
        space[8..10].copy_from_slice(&self.identity.pairs.to_le_bytes());
        space[10..].copy_from_slice(&self.identity.mtu.unwrap_or_default().to_le_bytes());
        space
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        self.rings()
    }

    fn max_queue_size(&self) -> usize {
        usize::from(self.identity.max_queue_size)
    }

    fn features(&self) -> u64 {
        self.identity.features.bits()
    }

    fn acked_features(&self, features: u64) {
        log::info!("features: {}", Features::new(features));
        self.shared.change(|plane| {
            if let Some(connection) = &mut plane.connection {
                connection.features = features;
            }
        });
    }

    fn protocol_features(&self) -> Protocol {
        Protocol::MQ
            | Protocol::REPLY_ACK
            | Protocol::BACKEND_REQ
            | Protocol::CONFIG
            | Protocol::RESET_DEVICE
            | Protocol::CONFIGURE_MEM_SLOTS
    }

    fn reset_device(&self) {
        log::info!("the front end resets the device");
        self.shared.sync();
    }

    fn set_event_idx(&self, _enabled: bool) {
        // Each ring knows: the library sets it there, and the worker reads it from there.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        // Fields behind the last one that we know read as zero.
        let mut bytes = self.config_space().to_vec();
        let end = offset.saturating_add(size).min(MAX_CONFIG) as usize;
        bytes.resize(end.max(bytes.len()), 0);
        bytes.get(offset as usize..end).unwrap_or_default().to_vec()
    }

    fn set_config(&self, _offset: u32, _bytes: &[u8]) -> io::Result<()> {
        // Nothing of a modern network device's configuration is writable (virtio 5.1.4).
        Err(io::Error::from(io::ErrorKind::PermissionDenied))
    }

    fn update_memory(&self, _memory: Memory) -> io::Result<()> {
        // The worker holds the old mapping until it has passed; the reply must not come before.
        self.shared.sync();
        Ok(())
    }

    fn set_backend_req_fd(&self, backend: Backend) {
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(backend);
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        // No event loop of the library's: the rings belong to our worker. It also means that none of
        // its threads and descriptors outlive the connection.
        Vec::new()
    }

    fn stop_vring(&self, index: u32) -> io::Result<()> {
        // The worker has let go when the ring was marked not ready and has stored its indexes.
        log::info!("ring {index} stops");
        Ok(())
    }

    fn handle_event(
        &self,
        _event: u16,
        _set: EventSet,
        _rings: &[Vring],
        _thread: usize,
    ) -> io::Result<()> {
        Ok(())
    }
}

/// VIRTIO_NET_S_LINK_UP.
const LINK_UP: u16 = 1;
/// The configuration space of the vhost-user protocol (VHOST_USER_MAX_CONFIG_SIZE).
const MAX_CONFIG: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        let identity = Identity {
            features: Features::new(0),
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: Some(1500),
            pairs: 1,
            max_queue_size: 1024,
        };
        Device::new(Shared::new().unwrap(), Arc::new(identity))
    }

    #[test]
    fn the_configuration_space_has_mac_status_pairs_and_mtu() {
        let whole = [2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0xdc, 0x05];
        assert_eq!(device().get_config(0, 12), whole);
        assert_eq!(device().get_config(10, 2), whole[10..]);
        assert_eq!(device().get_config(0, 20)[12..], [0; 8]);
    }

    #[test]
    fn reads_beyond_the_configuration_space_are_empty_or_zero() {
        assert_eq!(device().get_config(300, 8), [0_u8; 0]);
        assert_eq!(device().get_config(u32::MAX, u32::MAX), [0_u8; 0]);
        assert_eq!(device().get_config(0, u32::MAX).len(), 256);
        assert_eq!(device().get_config(250, 8).len(), 6);
    }
}
