//! A DHCP server (RFC 2131) with one address to give: the guest's, and a boot file (RFC 2132).
//! Answers are broadcast, for the client has no address yet.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context as _, Result};

use super::{GUEST_V4, HTTP_PORT, PEER_V4};

/// Serves for ever, each answer reported through `report`.
pub fn serve(socket: &UdpSocket, report: fn(&str)) -> Result<()> {
    let mut buffer = [0; 1500];
    loop {
        let (len, _) = socket.recv_from(&mut buffer).context("cannot receive DHCP requests")?;
        let Some(answer) = answer(&buffer[..len]) else {
            continue;
        };
        socket
            .send_to(&answer, (Ipv4Addr::BROADCAST, CLIENT_PORT))
            .context("cannot broadcast a DHCP answer")?;
        report(&format!("dhcp: gave {GUEST_V4} to {:02x?}", &answer[28..34]));
    }
}

/// The answer to a message, or none when it is no question for this server.
pub fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let (fixed, options) = request.split_at_checked(FIXED_LEN + COOKIE.len())?;
    if fixed[0] != BOOT_REQUEST || fixed[FIXED_LEN..] != COOKIE {
        return None;
    }
    let kind = match option(options, MESSAGE_TYPE)? {
        [DISCOVER] => OFFER,
        [REQUEST] => ACK,
        _ => return None,
    };

    let mut answer = fixed[..FIXED_LEN].to_vec();
    answer[0] = BOOT_REPLY;
    answer[3] = 0; // hops
    answer[16..20].copy_from_slice(&GUEST_V4.octets());
    answer[20..24].copy_from_slice(&PEER_V4.octets());
    answer[44..].fill(0); // server name and boot file go into options
    let boot_file = format!("http://{PEER_V4}:{HTTP_PORT}/boot.ipxe");
    answer[FILE..FILE + boot_file.len()].copy_from_slice(boot_file.as_bytes());
    answer.extend_from_slice(&COOKIE);
    let mut put = |code: u8, value: &[u8]| {
        answer.push(code);
        answer.push(u8::try_from(value.len()).expect("options are short"));
        answer.extend_from_slice(value);
    };
    put(MESSAGE_TYPE, &[kind]);
    put(SERVER_ID, &PEER_V4.octets());
    put(LEASE_TIME, &3600_u32.to_be_bytes());
    put(SUBNET_MASK, &[255, 255, 255, 0]);
    put(ROUTER, &PEER_V4.octets());
    put(BOOT_FILE, boot_file.as_bytes());
    answer.push(END);
    Some(answer)
}

/// The value of an option, in a list of code, length, value (RFC 2132, section 2).
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        match *options {
            [PAD, ref rest @ ..] => options = rest,
            [code, len, ref rest @ ..] if code != END => {
                let (value, after) = rest.split_at_checked(usize::from(len))?;
                if code == wanted {
                    return Some(value);
                }
                options = after;
            }
            _ => return None,
        }
    }
}

/// Length of the part of a message before the cookie, and the place of the boot file's name in it.
const FIXED_LEN: usize = 236;
const FILE: usize = 108;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const CLIENT_PORT: u16 = 68;

const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;

const PAD: u8 = 0;
const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
const BOOT_FILE: u8 = 67;
const END: u8 = 255;

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8) -> Vec<u8> {
        let mut message = vec![0; FIXED_LEN];
        message[..4].copy_from_slice(&[BOOT_REQUEST, 1, 6, 0]);
        message[4..8].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        message[28..34].copy_from_slice(&[0x52, 0x54, 0, 1, 2, 3]);
        message.extend_from_slice(&COOKIE);
        message.extend_from_slice(&[PAD, 57, 2, 5, 192, MESSAGE_TYPE, 1, kind, END]);
        message
    }

    #[test]
    fn a_discover_is_offered_the_guests_address() {
        let answer = answer(&message(DISCOVER)).unwrap();
        assert_eq!(answer[..3], [BOOT_REPLY, 1, 6]);
        assert_eq!(answer[4..8], [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(answer[16..20], [10, 99, 0, 2]);
        assert_eq!(answer[28..34], [0x52, 0x54, 0, 1, 2, 3]);
        let options = &answer[FIXED_LEN + 4..];
        assert_eq!(option(options, MESSAGE_TYPE).unwrap(), [OFFER]);
        assert_eq!(option(options, BOOT_FILE).unwrap(), b"http://10.99.0.1:8080/boot.ipxe");
    }

    #[test]
    fn a_request_is_acknowledged() {
        let answer = answer(&message(REQUEST)).unwrap();
        assert_eq!(option(&answer[FIXED_LEN + 4..], MESSAGE_TYPE).unwrap(), [ACK]);
    }

    #[test]
    fn other_messages_get_no_answer() {
        assert!(answer(&[]).is_none());
        assert!(answer(&message(7)).is_none());
        let mut reply = message(DISCOVER);
        reply[0] = BOOT_REPLY;
        assert!(answer(&reply).is_none());
        let cut = message(DISCOVER);
        assert!(answer(&cut[..FIXED_LEN + 4 + 6]).is_none());
    }
}
