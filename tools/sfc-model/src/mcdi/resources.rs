//! VIs and the vAdaptor (4.4).

use super::{ASSIGNED, Answer, Reply, Request, empty, error, refuse};
use crate::bits::{low32, number, size};
use crate::card::Card;
use crate::violation::Rule;

impl Card {
    pub(super) fn alloc_vis(&mut self, request: &Request) -> Answer {
        let (least, most) = (request.dword(0), request.dword(4));
        if least > most || most == 0 {
            return self.wrong(Rule::RequestValue, "ALLOC_VIS");
        }
        if self.function.vis.is_some() {
            self.host.violation(Rule::Twice, "VIs");
            return refuse(error::EALREADY);
        }
        if least > self.config.vis {
            return refuse(error::ENOSPC);
        }
        let count = size(most.min(self.config.vis));
        self.function.vis = Some(count);
        Reply::new(8).dword(0, low32(number(count))).done()
    }

    pub(super) fn free_vis(&mut self, _: &Request) -> Answer {
        if self.function.vis.is_none() {
            return refuse(error::EALREADY);
        }
        self.forget_queues();
        empty()
    }

    pub(super) fn vadaptor_alloc(&mut self, request: &Request) -> Answer {
        if request.dword(0) != ASSIGNED || request.dword(12) != 0 || request.dword(16) != 0 {
            return self
                .wrong(Rule::RequestValue, "VADAPTOR_ALLOC of another port, or with VLAN tags");
        }
        if self.function.vadaptor {
            self.host.violation(Rule::Twice, "a vAdaptor");
            return refuse(error::EEXIST);
        }
        let mac = request.bytes::<6>(24);
        if mac != [0; 6] {
            self.function.mac = mac;
        }
        self.function.vadaptor = true;
        empty()
    }

    pub(super) fn vadaptor_free(&mut self, request: &Request) -> Answer {
        self.with_vadaptor(request)?;
        let function = &self.function;
        let queues =
            function.rxqs.iter().flatten().count() + function.txqs.iter().flatten().count();
        if queues > 0 || !function.filters.is_empty() {
            self.host.violation(Rule::InUse, "the vAdaptor");
            return refuse(error::EBUSY);
        }
        self.function.vadaptor = false;
        empty()
    }

    pub(super) fn vadaptor_set_mac(&mut self, request: &Request) -> Answer {
        self.with_vadaptor(request)?;
        if !self.function.filters.is_empty() {
            return refuse(error::EBUSY);
        }
        self.function.mac = request.bytes(4);
        empty()
    }

    pub(super) fn vadaptor_get_mac(&mut self, request: &Request) -> Answer {
        self.with_vadaptor(request)?;
        Ok(self.function.mac.to_vec())
    }

    pub(super) fn vadaptor_query(&mut self, request: &Request) -> Answer {
        self.with_vadaptor(request)?;
        Reply::new(12).done()
    }

    /// Queues and filters hang on a vAdaptor. A physical function has one by itself when it makes none:
    /// the reference does not say so, but Linux built without SR-IOV never makes one.
    pub(super) fn need_vadaptor(&mut self) -> Answer {
        if self.function.vadaptor || !self.config.is_virtual() {
            return empty();
        }
        self.host.violation(Rule::Order, "a queue or a filter before VADAPTOR_ALLOC");
        refuse(error::NO_VADAPTOR)
    }

    fn with_vadaptor(&mut self, request: &Request) -> Answer {
        if request.dword(0) != ASSIGNED {
            return self.wrong(Rule::RequestValue, "a vAdaptor of another port");
        }
        if self.function.vadaptor { empty() } else { refuse(error::NO_VADAPTOR) }
    }
}
