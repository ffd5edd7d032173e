//! Reverse ARP (RFC 903), the way in which a network learns where a guest has gone.

/// A broadcast frame that says: this address is here. 60 bytes, the shortest that Ethernet allows.
pub fn rarp(mac: [u8; 6]) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ETHERTYPE_RARP);
    // Ethernet, IPv4, their address lengths, "request reverse"; both hardware addresses are the guest's.
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

const ETHERTYPE_RARP: [u8; 2] = [0x80, 0x35];

#[cfg(test)]
mod tests {
    #[test]
    fn the_frame_names_the_address_as_sender_and_target() {
        let mac = [2, 0, 0, 0, 0, 9];
        let frame = super::rarp(mac);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!([&frame[6..12], &frame[22..28], &frame[32..38]], [mac; 3]);
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    }
}
