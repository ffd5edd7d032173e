//! The Toeplitz hash of receive-side scaling (4.8).

/// The hash of `input` under a key of 40 bytes.
pub(crate) fn hash(key: &[u8; 40], input: &[u8]) -> u32 {
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut next = key[4..].iter();
    let mut hash = 0;
    for &byte in input {
        let incoming = next.next().copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(incoming >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the first vectors of the published verification suite.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_published_vectors() {
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(hash(&KEY, &input), 0x323e_8fc2);
        input.extend(2794u16.to_be_bytes());
        input.extend(1766u16.to_be_bytes());
        assert_eq!(hash(&KEY, &input), 0x51cc_c178);
    }
}
