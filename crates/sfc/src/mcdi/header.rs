//! The header of a request and its response (`spec/ef10.md` 3.2).
//!
//! Requests go out in the second version: two words, the payload behind them. A response in the first
//! version (one word) is read too: its own code field tells.

/// Bytes in front of a request's payload.
pub const BYTES: usize = 8;

/// The longest payload: 10 bits of length, of which firmware uses no more than this.
pub const MAX_PAYLOAD: usize = 0x400;

/// Size of the buffer that a request and its response share.
pub const BUFFER: usize = BYTES + MAX_PAYLOAD;

/// The two header words of a request for `len` payload bytes.
///
/// `first` marks the first request after a start or after the controller's restart (NOT_EPOCH = 0).
///
/// # Panics
///
/// In debug builds, when the command has more than 15 bits or the payload more than 10 bits of length.
pub fn request(command: u16, len: usize, seq: u8, first: bool) -> [u32; 2] {
    debug_assert!(command >> 15 == 0 && len < 1 << 10, "fields of the header");
    let len = u32::try_from(len).expect("a payload is shorter than its buffer");
    let word = EXTENDED | RESYNC | u32::from(seq & 15) << 16 | u32::from(!first) << 21;
    [word, u32::from(command) | len << 16]
}

/// Whether the controller has finished: it sets this bit last.
pub fn is_response(word: u32) -> bool {
    word & RESPONSE != 0
}

/// A response's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// The command that it answers.
    pub command: u16,
    /// The request's sequence number, 4 bits.
    pub seq: u8,
    /// The payload is an error report; with no payload: the controller has restarted.
    pub error: bool,
    /// Where the payload starts.
    pub offset: usize,
    /// The payload's length as told, at most 1023.
    pub len: usize,
}

impl Response {
    /// Reads the first two words of the buffer. In a response of the first version the second word is
    /// payload.
    pub fn decode(words: [u32; 2]) -> Self {
        let field = |word: u32, at: u32, width: u32| {
            u16::try_from(word >> at & ((1 << width) - 1)).expect("fields have at most 15 bits")
        };
        let code = field(words[0], 0, 7);
        let extended = u32::from(code) == EXTENDED;
        let (command, offset, len) = if extended {
            (field(words[1], 0, 15), 8, field(words[1], 16, 10))
        } else {
            (code, 4, field(words[0], 8, 8))
        };
        Self {
            command,
            seq: u8::try_from(field(words[0], 16, 4)).expect("4 bits"),
            error: words[0] & ERROR != 0,
            offset,
            len: len.into(),
        }
    }
}

const EXTENDED: u32 = 0x7f;
const RESYNC: u32 = 1 << 7;
const ERROR: u32 = 1 << 22;
const RESPONSE: u32 = 1 << 23;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests() {
        // GET_ASSERTS, 4 bytes, the first of its epoch, then a later one.
        assert_eq!(request(0x6, 4, 1, true), [0x0001_00ff, 0x0004_0006]);
        assert_eq!(request(0x6, 4, 2, false), [0x0022_00ff, 0x0004_0006]);
        assert_eq!(request(0x81, 564, 17, false), [0x0021_00ff, 0x0234_0081]);
    }

    #[test]
    fn responses_in_both_formats() {
        let second = Response::decode([0x00a2_00ff, 0x008c_0006]);
        assert_eq!(second, Response { command: 6, seq: 2, error: false, offset: 8, len: 140 });
        let first = Response::decode([0x00c3_0486, 0x26]);
        assert_eq!(first, Response { command: 6, seq: 3, error: true, offset: 4, len: 4 });
        assert!(is_response(0x00a2_00ff) && !is_response(0x0022_00ff));
    }

    proptest! {
        #[test]
        fn a_request_is_its_own_header(command in 0u16..1 << 15, len in 0usize..1024, seq in 0u8..16) {
            let echoed = Response::decode(request(command, len, seq, false));
            prop_assert_eq!(echoed, Response { command, seq, error: false, offset: 8, len });
        }

        #[test]
        fn any_header_stays_in_bounds(words: [u32; 2]) {
            let response = Response::decode(words);
            prop_assert!(response.len < 1024 && response.offset <= 8 && response.seq < 16);
        }
    }
}
