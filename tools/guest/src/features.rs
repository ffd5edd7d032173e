//! Feature bits by name: those of virtio-net (virtio 1.3, 5.1.3 and 6) and those of the vhost-user
//! protocol itself.

/// The device completes partial checksums.
pub const CSUM: u64 = 1 << 0;
/// The driver takes partial checksums, and is told which ones were verified.
pub const GUEST_CSUM: u64 = 1 << 1;
/// The device says how large frames may be.
pub const MTU: u64 = 1 << 3;
/// The device has a MAC address to offer.
pub const MAC: u64 = 1 << 5;
/// The driver takes TCP over IPv4 unsegmented.
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver takes TCP over IPv6 unsegmented.
pub const GUEST_TSO6: u64 = 1 << 8;
/// The driver takes unsegmented TCP with a congestion mark on its first segment.
pub const GUEST_ECN: u64 = 1 << 9;
/// The driver takes unfragmented UDP.
pub const GUEST_UFO: u64 = 1 << 10;
/// The device segments TCP over IPv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// The device segments TCP over IPv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// The device segments TCP with a congestion mark.
pub const HOST_ECN: u64 = 1 << 13;
/// The device fragments UDP.
pub const HOST_UFO: u64 = 1 << 14;
/// A received packet may take several buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// The configuration space has a status field.
pub const STATUS: u64 = 1 << 16;
/// There is a control queue.
pub const CTRL_VQ: u64 = 1 << 17;
/// The driver can be asked to announce itself.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// There are several pairs of queues.
pub const MQ: u64 = 1 << 22;
/// vhost: every write of the back end is to be logged.
pub const LOG_ALL: u64 = 1 << 26;
/// Any layout of descriptors (transitional devices).
pub const ANY_LAYOUT: u64 = 1 << 27;
/// Descriptors may live in a table of their own.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Notifications are asked for by ring position.
pub const EVENT_IDX: u64 = 1 << 29;
/// vhost-user: the protocol has features of its own.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The device follows virtio 1.0 or newer.
pub const VERSION_1: u64 = 1 << 32;
/// Buffers are used in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// The driver takes UDP over IPv4 unsegmented.
pub const GUEST_USO4: u64 = 1 << 54;
/// The driver takes UDP over IPv6 unsegmented.
pub const GUEST_USO6: u64 = 1 << 55;
/// The device segments UDP.
pub const HOST_USO: u64 = 1 << 56;
/// The header carries the packet's hash.
pub const HASH_REPORT: u64 = 1 << 57;
/// The header carries how many segments were merged.
pub const RSC_EXT: u64 = 1 << 61;

/// What an up-to-date guest asks for, and this driver can keep up with.
pub const DEFAULT: u64 = CSUM
    | GUEST_CSUM
    | MTU
    | MAC
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | MRG_RXBUF
    | STATUS
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1
    | GUEST_USO4
    | GUEST_USO6
    | HOST_USO;

/// Every bit with a name, in ascending order.
pub const NAMES: &[(&str, u64)] = &[
    ("csum", CSUM),
    ("guest_csum", GUEST_CSUM),
    ("mtu", MTU),
    ("mac", MAC),
    ("guest_tso4", GUEST_TSO4),
    ("guest_tso6", GUEST_TSO6),
    ("guest_ecn", GUEST_ECN),
    ("guest_ufo", GUEST_UFO),
    ("host_tso4", HOST_TSO4),
    ("host_tso6", HOST_TSO6),
    ("host_ecn", HOST_ECN),
    ("host_ufo", HOST_UFO),
    ("mrg_rxbuf", MRG_RXBUF),
    ("status", STATUS),
    ("ctrl_vq", CTRL_VQ),
    ("guest_announce", GUEST_ANNOUNCE),
    ("mq", MQ),
    ("log_all", LOG_ALL),
    ("any_layout", ANY_LAYOUT),
    ("indirect_desc", INDIRECT_DESC),
    ("event_idx", EVENT_IDX),
    ("protocol_features", PROTOCOL_FEATURES),
    ("version_1", VERSION_1),
    ("in_order", IN_ORDER),
    ("guest_uso4", GUEST_USO4),
    ("guest_uso6", GUEST_USO6),
    ("host_uso", HOST_USO),
    ("hash_report", HASH_REPORT),
    ("rsc_ext", RSC_EXT),
];

/// The bits of a list such as `mrg_rxbuf,guest_csum` or `0x100000000,mrg_rxbuf`: names in either case,
/// hexadecimal numbers, and `default` for [`DEFAULT`].
///
/// # Errors
///
/// The word that is neither.
pub fn parse(list: &str) -> Result<u64, String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).try_fold(0, |bits, word| {
        let name = word.to_ascii_lowercase();
        if name == "default" {
            return Ok(bits | DEFAULT);
        }
        if let Some(digits) = name.strip_prefix("0x") {
            return u64::from_str_radix(digits, 16)
                .map(|number| bits | number)
                .map_err(|_| format!("{word:?} is not a hexadecimal number of 64 bits"));
        }
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, bit)| bits | bit)
            .ok_or_else(|| format!("{word:?} is not the name of a feature"))
    })
}

/// The names of the bits, separated by commas; bits without a name as one hexadecimal number.
pub fn display(bits: u64) -> String {
    let mut words: Vec<String> = NAMES
        .iter()
        .filter(|(_, bit)| bits & bit != 0)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let unnamed = NAMES.iter().fold(bits, |rest, (_, bit)| rest & !bit);
    if unnamed != 0 {
        words.push(format!("{unnamed:#x}"));
    }
    words.join(",")
}

/// The bits that a driver may ack together: those whose requirement is missing are taken away
/// (virtio 1.3, 5.1.3.1), as a driver must.
pub fn consistent(mut bits: u64) -> u64 {
    let requirements = [
        (GUEST_TSO4 | GUEST_TSO6 | GUEST_UFO | GUEST_USO4 | GUEST_USO6, GUEST_CSUM),
        (GUEST_ECN, GUEST_TSO4 | GUEST_TSO6),
        (HOST_TSO4 | HOST_TSO6 | HOST_UFO | HOST_USO, CSUM),
        (HOST_ECN, HOST_TSO4 | HOST_TSO6),
        (RSC_EXT, GUEST_TSO4 | GUEST_TSO6),
    ];
    for (dependants, any_of) in requirements {
        if bits & any_of == 0 {
            bits &= !dependants;
        }
    }
    bits
}

/// The features of the vhost-user protocol (negotiated by GET/SET_PROTOCOL_FEATURES).
pub mod protocol {
    /// Several queues; GET_QUEUE_NUM.
    pub const MQ: u64 = 1 << 0;
    /// SEND_RARP.
    pub const RARP: u64 = 1 << 2;
    /// Requests may ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// NET_SET_MTU.
    pub const NET_MTU: u64 = 1 << 4;
    /// The back end has a channel for requests of its own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// GET_CONFIG and SET_CONFIG.
    pub const CONFIG: u64 = 1 << 9;
    /// RESET_DEVICE.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions come and go one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// SET_STATUS and GET_STATUS.
    pub const STATUS: u64 = 1 << 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_make_a_set() {
        assert_eq!(parse("MRG_RXBUF, version_1,0x2"), Ok(MRG_RXBUF | VERSION_1 | GUEST_CSUM));
        assert_eq!(parse(""), Ok(0));
        assert_eq!(parse("default").map(|bits| bits & MTU), Ok(MTU));
        assert!(parse("mrg_rxbuff").unwrap_err().contains("mrg_rxbuff"));
        assert!(parse("0x1ffffffffffffffff").is_err());
    }

    #[test]
    fn a_set_is_read_back_from_its_names() {
        for bits in
            [0, DEFAULT, 1 << 63 | MRG_RXBUF, NAMES.iter().fold(0, |all, (_, bit)| all | bit)]
        {
            assert_eq!(parse(&display(bits)), Ok(bits), "{bits:#x}");
        }
    }

    #[test]
    fn dependants_go_with_what_they_need() {
        assert_eq!(consistent(DEFAULT), DEFAULT);
        let without = consistent(DEFAULT & !GUEST_CSUM);
        assert_eq!(without & (GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6), 0);
        assert_ne!(without & HOST_TSO4, 0);
        assert_ne!(consistent(DEFAULT & !GUEST_TSO4) & GUEST_ECN, 0);
        assert_eq!(consistent(DEFAULT & !(GUEST_TSO4 | GUEST_TSO6)) & GUEST_ECN, 0);
    }
}
