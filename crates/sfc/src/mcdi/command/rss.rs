//! Receive-side scaling contexts (4.8).

use super::{Command, PORT_ASSIGNED, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};
use crate::rss::{KEY_BYTES, Key, TABLE_ENTRIES, Table};

/// `RSS_CONTEXT_ALLOC`.
#[derive(Debug, Clone, Copy)]
pub struct RssAlloc {
    /// With a key and a table of the firmware's own instead of ours.
    pub shared: bool,
    /// How many queues packets go to.
    pub queues: u32,
}

impl Command for RssAlloc {
    const CODE: u16 = 0x9e;
    const NAME: &'static str = "RSS_CONTEXT_ALLOC";
    /// The context.
    type Reply = u32;

    fn request(&self) -> Request {
        words([PORT_ASSIGNED, self.shared.into(), self.queues])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<u32, Malformed> {
        reply.u32(0).and_then(|id| if id == u32::MAX { Err(Malformed) } else { Ok(id) })
    }
}

/// `RSS_CONTEXT_FREE`.
#[derive(Debug, Clone, Copy)]
pub struct RssFree(
    /// The context.
    pub u32,
);

silent!(RssFree, 0x9f, "RSS_CONTEXT_FREE", |self| words([self.0]));

/// `RSS_CONTEXT_SET_FLAGS`.
#[derive(Debug, Clone, Copy)]
pub struct RssSetFlags {
    /// The context.
    pub context: u32,
    /// Which fields are hashed.
    pub flags: u32,
}

silent!(RssSetFlags, 0xe1, "RSS_CONTEXT_SET_FLAGS", |self| words([self.context, self.flags]));

/// `RSS_CONTEXT_SET_TABLE`.
#[derive(Debug, Clone, Copy)]
pub struct RssSetTable<'a> {
    /// The context.
    pub context: u32,
    /// The indirection table.
    pub table: &'a Table,
}

silent!(RssSetTable<'_>, 0xa2, "RSS_CONTEXT_SET_TABLE", |self| {
    let mut request = Request::zeroed(4 + TABLE_ENTRIES);
    request.u32(0, self.context).put(4, self.table);
    request
});

/// `RSS_CONTEXT_SET_KEY`.
#[derive(Debug, Clone, Copy)]
pub struct RssSetKey<'a> {
    /// The context.
    pub context: u32,
    /// The hash key.
    pub key: &'a Key,
}

silent!(RssSetKey<'_>, 0xa0, "RSS_CONTEXT_SET_KEY", |self| {
    let mut request = Request::zeroed(4 + KEY_BYTES);
    request.u32(0, self.context).put(4, self.key);
    request
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context() {
        let alloc = RssAlloc { shared: false, queues: 4 };
        assert_eq!(alloc.request().bytes(), [0, 0, 0, 1, 0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(alloc.reply(Reply(&[9, 0, 0, 0])), Ok(9));
        assert_eq!(alloc.reply(Reply(&[0xff; 4])), Err(Malformed));
        let key = RssSetKey { context: 9, key: &[7; KEY_BYTES] }.request();
        assert_eq!((key.bytes().len(), key.bytes()[0], key.bytes()[43]), (44, 9, 7));
        let table = RssSetTable { context: 9, table: &[3; TABLE_ENTRIES] }.request();
        assert_eq!((table.bytes().len(), table.bytes()[131]), (132, 3));
    }
}
