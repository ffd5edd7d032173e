//! Filters (4.7).

use super::{ASSIGNED, Answer, Reply, Request, error, refuse};
use crate::bits::{be16, size};
use crate::card::Card;
use crate::config::flags1;
use crate::filter::{Filter, SUPPORTED, SUPPORTED_ENCAP, field};
use crate::violation::Rule;

const INSERT: u32 = 0;
const REMOVE: u32 = 1;
const SUBSCRIBE: u32 = 2;
const UNSUBSCRIBE: u32 = 3;
const REPLACE: u32 = 4;
/// Filters of a card.
const TABLE: usize = 8192;
/// Shortest request that names a match.
const PLAIN: usize = 108;

impl Card {
    pub(super) fn filter_op(&mut self, request: &Request) -> Answer {
        let (op, handle) = (request.dword(0), request.qword(4));
        let handle = match op {
            INSERT | SUBSCRIBE => self.insert_filter(request, op == INSERT)?,
            REMOVE | UNSUBSCRIBE => self.remove_filter(handle, op == REMOVE)?,
            REPLACE => self.replace_filter(request, handle)?,
            _ => return self.wrong(Rule::RequestValue, &format!("FILTER_OP {op}")),
        };
        Reply::new(12).dword(0, op).bytes(4, &handle.to_le_bytes()).done()
    }

    fn insert_filter(&mut self, request: &Request, exclusive: bool) -> Result<u64, super::Refusal> {
        if request.len() < PLAIN {
            self.wrong(Rule::RequestShort, "FILTER_OP")?;
        }
        self.need_vadaptor()?;
        let filter = self.filter(request, exclusive)?;
        let encap = SUPPORTED_ENCAP.contains(&filter.fields);
        let known =
            SUPPORTED.contains(&filter.fields) || encap && self.config.has(flags1::VXLAN_NVGRE);
        if !known {
            self.host.violation(Rule::Filter, format_args!("match fields {:#x}", filter.fields));
            refuse(error::ENOTSUP)?;
        }
        let unicast = filter.fields & field::DST_MAC != 0 && filter.dst_mac[0] & 1 == 0;
        let privileged = filter.fields & field::UNKNOWN_UNICAST != 0
            || encap
            || unicast && filter.dst_mac != self.function.mac;
        if privileged && self.config.is_virtual() {
            refuse(error::EPERM)?;
        }
        if exclusive != filter.must_be_exclusive() {
            self.wrong(
                Rule::Filter,
                &format!("{:#x}: INSERT and SUBSCRIBE mixed up", filter.fields),
            )?;
        }
        let clash = |other: &Filter| {
            other.same_match(&filter) && (exclusive || other.queue == filter.queue)
        };
        if self.function.filters.iter().any(clash) {
            refuse(error::EEXIST)?;
        }
        if self.function.filters.len() >= TABLE {
            refuse(error::ENOSPC)?;
        }
        self.function.next_handle += 1;
        let handle = filter.handle;
        self.function.filters.push(filter);
        Ok(handle)
    }

    fn filter(&mut self, request: &Request, exclusive: bool) -> Result<Filter, super::Refusal> {
        let (host, queue, rss) = self.destination(request)?;
        let word = |at| be16(&request.bytes::<2>(at), 0).expect("2 bytes");
        Ok(Filter {
            handle: self.function.next_handle,
            fields: request.dword(16),
            dst_mac: request.bytes(52),
            src_port: word(50),
            dst_port: word(58),
            ether_type: word(60),
            outer_vlan: word(64),
            protocol: request.bytes::<1>(66)[0],
            src_ip: request.bytes(76),
            dst_ip: request.bytes(92),
            vni: request.dword(72),
            exclusive,
            host,
            queue,
            rss,
        })
    }

    fn destination(
        &mut self,
        request: &Request,
    ) -> Result<(bool, usize, Option<u32>), super::Refusal> {
        let (port, destination, mode) = (request.dword(12), request.dword(20), request.dword(28));
        if port != ASSIGNED || destination > 1 || mode > 1 {
            self.wrong(Rule::RequestValue, "a filter's port, destination or mode")?;
        }
        let queue = size(request.dword(24));
        if destination == 1 && queue >= self.function.rxqs.len() {
            self.wrong(Rule::RequestValue, &format!("a filter to RXQ {queue}"))?;
        }
        let rss = (mode == 1).then(|| request.dword(32));
        if let Some(id) = rss
            && !self.function.rss.iter().any(|context| context.id == id)
        {
            refuse(error::ENOENT)?;
        }
        Ok((destination == 1, queue, rss))
    }

    fn find_filter(&self, handle: u64) -> Result<usize, super::Refusal> {
        let found = self.function.filters.iter().position(|filter| filter.handle == handle);
        found.ok_or(super::Refusal::Code(error::ENOENT))
    }

    fn remove_filter(&mut self, handle: u64, exclusive: bool) -> Result<u64, super::Refusal> {
        let at = self.find_filter(handle)?;
        if self.function.filters[at].exclusive != exclusive {
            self.wrong(Rule::Filter, "REMOVE and UNSUBSCRIBE mixed up")?;
        }
        self.function.filters.remove(at);
        Ok(handle)
    }

    fn replace_filter(&mut self, request: &Request, handle: u64) -> Result<u64, super::Refusal> {
        let at = self.find_filter(handle)?;
        let (host, queue, rss) = self.destination(request)?;
        let filter = &mut self.function.filters[at];
        (filter.host, filter.queue, filter.rss) = (host, queue, rss);
        Ok(handle)
    }
}
