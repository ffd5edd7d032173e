//! The features that a guest is offered.

use virtio_net::feature::{self, Features};

use crate::failure::Failure;

/// Everything that this device can do, less what the operator took out by name.
///
/// The control queue and what needs it (MQ, GUEST_ANNOUNCE, …) are not offered: a hypervisor that has
/// one serves it itself, and a guest without a hypervisor in between would wait for it for ever.
///
/// # Errors
///
/// When a name is not known.
pub fn features(disabled: &[String]) -> Result<Features, Failure> {
    let mut features = OFFERED.iter().fold(Features::default(), |all, bit| all.with(*bit));
    for name in disabled {
        let bit = feature::by_name(name)
            .filter(|bit| OFFERED.contains(bit) || FROM_IDENTITY.contains(bit));
        let bit = bit.ok_or_else(|| {
            let known: Vec<_> = OFFERED
                .iter()
                .chain(&FROM_IDENTITY)
                .filter(|bit| !REQUIRED.contains(bit))
                .filter_map(|bit| feature::name(*bit))
                .collect();
            Failure::SetUp(format!(
                "--disable-feature {name}: no such feature; known are {}",
                known.join(", ")
            ))
        })?;
        if REQUIRED.contains(&bit) {
            return Err(Failure::SetUp(format!(
                "--disable-feature {name}: no front end works without it; leave it out"
            )));
        }
        features = features.withhold(bit);
    }
    Ok(features)
}

/// Adds what the device can say about itself.
#[must_use]
pub fn with_identity(
    features: Features,
    disabled: &[String],
    mac: Option<[u8; 6]>,
    mtu: Option<u16>,
) -> Features {
    let wanted = |bit| !disabled.iter().any(|name| feature::by_name(name) == Some(bit));
    [(feature::VIRTIO_NET_F_MAC, mac.is_some()), (feature::VIRTIO_NET_F_MTU, mtu.is_some())]
        .into_iter()
        .filter(|(bit, known)| *known && wanted(*bit))
        .fold(features, |features, (bit, _)| features.with(bit))
}

const REQUIRED: [u32; 2] = [feature::VIRTIO_F_VERSION_1, feature::VHOST_USER_F_PROTOCOL_FEATURES];
const FROM_IDENTITY: [u32; 2] = [feature::VIRTIO_NET_F_MAC, feature::VIRTIO_NET_F_MTU];
const OFFERED: [u32; 15] = [
    feature::VIRTIO_F_VERSION_1,
    feature::VHOST_USER_F_PROTOCOL_FEATURES,
    feature::VIRTIO_RING_F_EVENT_IDX,
    feature::VIRTIO_RING_F_INDIRECT_DESC,
    // Buffers are used in order; Cloud Hypervisor then resumes from the used index after a restart.
    feature::VIRTIO_F_IN_ORDER,
    feature::VIRTIO_NET_F_CSUM,
    feature::VIRTIO_NET_F_GUEST_CSUM,
    feature::VIRTIO_NET_F_GUEST_TSO4,
    feature::VIRTIO_NET_F_GUEST_TSO6,
    feature::VIRTIO_NET_F_GUEST_ECN,
    feature::VIRTIO_NET_F_HOST_TSO4,
    feature::VIRTIO_NET_F_HOST_TSO6,
    feature::VIRTIO_NET_F_HOST_ECN,
    feature::VIRTIO_NET_F_MRG_RXBUF,
    feature::VIRTIO_NET_F_STATUS,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn without(names: &[&str]) -> Result<Features, Failure> {
        features(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn what_depends_on_a_missing_feature_goes_with_it() {
        let all = without(&[]).unwrap();
        assert!(OFFERED.iter().all(|bit| all.has(*bit)));
        let features = without(&["guest_csum"]).unwrap();
        for gone in [
            feature::VIRTIO_NET_F_GUEST_CSUM,
            feature::VIRTIO_NET_F_GUEST_TSO4,
            feature::VIRTIO_NET_F_GUEST_TSO6,
            feature::VIRTIO_NET_F_GUEST_ECN,
        ] {
            assert!(!features.has(gone), "{gone}");
        }
        assert!(features.has(feature::VIRTIO_NET_F_HOST_ECN));
        assert!(!without(&["csum"]).unwrap().has(feature::VIRTIO_NET_F_HOST_ECN));
        assert!(without(&["guest_tso4"]).unwrap().has(feature::VIRTIO_NET_F_GUEST_ECN));
    }

    #[test]
    fn unknown_and_indispensable_features_are_refused() {
        assert!(matches!(without(&["guest_tso5"]), Err(Failure::SetUp(_))));
        assert!(matches!(without(&["version_1"]), Err(Failure::SetUp(_))));
    }

    #[test]
    fn the_identity_is_offered_unless_taken_out() {
        let features =
            with_identity(Features::default(), &["mtu".to_owned()], Some([0; 6]), Some(9000));
        assert!(
            features.has(feature::VIRTIO_NET_F_MAC) && !features.has(feature::VIRTIO_NET_F_MTU)
        );
    }
}
