//! Filters (4.7).

use super::{Command, PORT_ASSIGNED, words};
use crate::filter::{Filter, Target};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `FILTER_OP`, insert or subscribe: whichever the filter asks for.
#[derive(Debug, Clone, Copy)]
pub struct InsertFilter {
    /// What it matches.
    pub filter: Filter,
    /// Where matching packets go.
    pub target: Target,
}

impl Command for InsertFilter {
    const CODE: u16 = 0x8a;
    const NAME: &'static str = "FILTER_OP";
    /// The handle to remove it by.
    type Reply = u64;

    fn request(&self) -> Request {
        const HOST: u32 = 1;
        const RSS: u32 = 1;
        let operation = if self.filter.is_exclusive() { INSERT } else { SUBSCRIBE };
        let mut request = Request::zeroed(172);
        request
            .u32(0, operation)
            .u32(12, PORT_ASSIGNED)
            .u32(16, self.filter.match_fields())
            .u32(20, HOST)
            .u32(24, self.target.queue)
            .u32(40, u32::MAX);
        if let Some(context) = self.target.rss_context {
            request.u32(28, RSS).u32(32, context);
        }
        // Match values are in network byte order.
        if let Some(address) = self.filter.destination() {
            request.put(52, &address);
        }
        request
    }

    fn reply(&self, reply: Reply<'_>) -> Result<u64, Malformed> {
        reply.u64(4).and_then(|handle| if handle == u64::MAX { Err(Malformed) } else { Ok(handle) })
    }
}

/// `FILTER_OP`, remove or unsubscribe: the counterpart of how it came in.
#[derive(Debug, Clone, Copy)]
pub struct RemoveFilter {
    /// What it matches.
    pub filter: Filter,
    /// Its handle.
    pub handle: u64,
}

impl Command for RemoveFilter {
    const CODE: u16 = 0x8a;
    const NAME: &'static str = "FILTER_OP";
    type Reply = ();

    fn request(&self) -> Request {
        let operation = if self.filter.is_exclusive() { REMOVE } else { UNSUBSCRIBE };
        let mut request = Request::zeroed(108);
        request.u32(0, operation).u64(4, self.handle).u32(12, PORT_ASSIGNED);
        request
    }

    fn reply(&self, _: Reply<'_>) -> Result<(), Malformed> {
        Ok(())
    }
}

const INSERT: u32 = 0;
const REMOVE: u32 = 1;
const SUBSCRIBE: u32 = 2;
const UNSUBSCRIBE: u32 = 3;

/// `GET_PARSER_DISP_INFO`: which combinations of fields a filter can match.
#[derive(Debug, Clone, Copy)]
pub struct GetParserInfo;

impl Command for GetParserInfo {
    const CODE: u16 = 0xe4;
    const NAME: &'static str = "GET_PARSER_DISP_INFO";
    /// Match-field masks, the highest priority first.
    type Reply = Vec<u32>;

    fn request(&self) -> Request {
        words([1])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Vec<u32>, Malformed> {
        // The count is derived from the length, as the reference's first driver does.
        reply.u32(4)?;
        (8..reply.len() & !3).step_by(4).map(|at| reply.u32(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(request: &Request, offset: usize) -> u32 {
        Reply(request.bytes()).u32(offset).unwrap()
    }

    #[test]
    fn an_address_to_one_queue() {
        let filter = Filter::Address([0, 0xf, 0x53, 1, 2, 3]);
        let insert = InsertFilter { filter, target: Target { queue: 2, rss_context: None } };
        let request = insert.request();
        assert_eq!(request.bytes().len(), 172);
        let expected = [INSERT, PORT_ASSIGNED, 0x10, 1, 2, 0, 0, u32::MAX];
        assert_eq!([0, 12, 16, 20, 24, 28, 32, 40].map(|at| word(&request, at)), expected);
        assert_eq!(request.bytes()[52..58], [0, 0xf, 0x53, 1, 2, 3]);
        let mut reply = [0; 12];
        reply[4] = 9;
        assert_eq!(insert.reply(Reply(&reply)), Ok(9));
        assert_eq!(insert.reply(Reply(&[0xff; 12])), Err(Malformed));
        let remove = RemoveFilter { filter, handle: 9 }.request();
        assert_eq!((remove.bytes().len(), word(&remove, 0), word(&remove, 4)), (108, REMOVE, 9));
    }

    #[test]
    fn everything_else_to_a_context() {
        let target = Target { queue: 0, rss_context: Some(7) };
        let request = InsertFilter { filter: Filter::OtherUnicast, target }.request();
        let expected = [SUBSCRIBE, 0x8000_0000, 1, 7];
        assert_eq!([0, 16, 28, 32].map(|at| word(&request, at)), expected);
        let remove = RemoveFilter { filter: Filter::OtherUnicast, handle: 1 }.request();
        assert_eq!(word(&remove, 0), UNSUBSCRIBE);
    }

    #[test]
    fn supported_matches() {
        let bytes: Vec<u8> =
            [1u32, 2, 0x26b, 0x10].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(GetParserInfo.reply(Reply(&bytes)), Ok(vec![0x26b, 0x10]));
        assert_eq!(GetParserInfo.reply(Reply(&bytes[..8])), Ok(vec![]));
        assert_eq!(GetParserInfo.reply(Reply(&bytes[..4])), Err(Malformed));
    }
}
