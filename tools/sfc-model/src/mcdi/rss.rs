//! RSS contexts (4.8).

use super::{ASSIGNED, Answer, Refusal, Reply, Request, empty, error, half, refuse};
use crate::bits::{low8, low32};
use crate::card::Card;
use crate::config::flags1;
use crate::rx::{RssContext, default_rss_flags};
use crate::violation::Rule;

/// The key of shared contexts: any will do (the real one is unknown).
const SHARED_KEY: [u8; 40] = [0x6d; 40];

impl Card {
    pub(super) fn rss_alloc(&mut self, request: &Request) -> Answer {
        let (port, kind, queues) = (request.dword(0), request.dword(4), request.dword(8));
        let shared = kind == 1;
        let good =
            (1..=64).contains(&queues) && (!shared || queues > 1 && queues.is_power_of_two());
        if port != ASSIGNED || kind > 1 || !good {
            return self.wrong(Rule::RequestValue, "RSS_CONTEXT_ALLOC");
        }
        let taken = self.function.rss.iter().filter(|context| !context.shared).count();
        if !shared && taken >= self.config.rss_contexts {
            return refuse(error::ALLOC_FAIL);
        }
        let id = low32(self.function.next_handle);
        self.function.next_handle += 1;
        let mut table = [0; 128];
        if shared {
            for (entry, index) in table.iter_mut().zip(0u64..) {
                *entry = low8(index % u64::from(queues));
            }
        }
        self.function.rss.push(RssContext {
            id,
            queues,
            shared,
            key: if shared { SHARED_KEY } else { [0; 40] },
            table,
            flags: default_rss_flags(self.config.has(flags1::ADDITIONAL_RSS_MODES)),
        });
        Reply::new(4).dword(0, id).done()
    }

    fn rss_context(&mut self, request: &Request) -> Result<&mut RssContext, Refusal> {
        let id = request.dword(0);
        let found = self.function.rss.iter_mut().find(|context| context.id == id);
        found.ok_or(Refusal::Code(error::ENOENT))
    }

    fn own_rss_context(&mut self, request: &Request) -> Result<&mut RssContext, Refusal> {
        let context = self.rss_context(request)?;
        if context.shared { Err(Refusal::Code(error::EPERM)) } else { Ok(context) }
    }

    pub(super) fn rss_free(&mut self, request: &Request) -> Answer {
        let id = self.rss_context(request)?.id;
        if self.function.filters.iter().any(|filter| filter.rss == Some(id)) {
            self.host.violation(Rule::InUse, format_args!("RSS context {id}"));
            return refuse(error::EBUSY);
        }
        self.function.rss.retain(|context| context.id != id);
        empty()
    }

    pub(super) fn rss_set_key(&mut self, request: &Request) -> Answer {
        self.own_rss_context(request)?.key = request.bytes(4);
        empty()
    }

    pub(super) fn rss_get_key(&mut self, request: &Request) -> Answer {
        let key = self.rss_context(request)?.key;
        Reply::new(44).bytes(4, &key).done()
    }

    pub(super) fn rss_set_table(&mut self, request: &Request) -> Answer {
        let context = self.own_rss_context(request)?;
        let table = request.bytes::<128>(4);
        if table.iter().any(|&entry| u32::from(entry) >= context.queues) {
            return self.wrong(Rule::RequestValue, "an RSS table's entry beyond the queues");
        }
        context.table = table;
        empty()
    }

    pub(super) fn rss_get_table(&mut self, request: &Request) -> Answer {
        let table = self.rss_context(request)?.table;
        Reply::new(132).bytes(4, &table).done()
    }

    pub(super) fn rss_set_flags(&mut self, request: &Request) -> Answer {
        let flags = request.dword(4);
        let modes = self.config.has(flags1::ADDITIONAL_RSS_MODES);
        if half(flags & 0xf0) != 0 {
            return self.wrong(Rule::RequestValue, "reserved RSS flags");
        }
        if flags > 0xff && !modes {
            return refuse(error::EINVAL);
        }
        self.own_rss_context(request)?.flags = flags;
        empty()
    }

    pub(super) fn rss_get_flags(&mut self, request: &Request) -> Answer {
        let flags = self.rss_context(request)?.flags;
        Reply::new(8).dword(4, flags).done()
    }
}
