//! Virtual interfaces, and the adaptor that queues and filters hang on (4.4).

use super::{Command, PORT_ASSIGNED, silent, words};
use crate::mcdi::body::{Malformed, Reply, Request};

/// `ALLOC_VIS`.
#[derive(Debug, Clone, Copy)]
pub struct AllocVis {
    /// The fewest that are of use.
    pub min: u32,
    /// The most that are wanted.
    pub max: u32,
}

/// Virtual interfaces granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vis {
    /// How many.
    pub count: u32,
}

impl Command for AllocVis {
    const CODE: u16 = 0x8b;
    const NAME: &'static str = "ALLOC_VIS";
    type Reply = Vis;

    fn request(&self) -> Request {
        words([self.min, self.max])
    }

    fn reply(&self, reply: Reply<'_>) -> Result<Vis, Malformed> {
        let count = reply.u32(0)?;
        reply.u32(4)?;
        if (self.min..=self.max).contains(&count) { Ok(Vis { count }) } else { Err(Malformed) }
    }
}

/// `FREE_VIS`.
#[derive(Debug, Clone, Copy)]
pub struct FreeVis;

silent!(FreeVis, 0x8c, "FREE_VIS", |self| words([]));

/// `VADAPTOR_ALLOC` on the assigned port, with the port's own address and no VLAN handling.
#[derive(Debug, Clone, Copy)]
pub struct VadaptorAlloc {
    /// The address may be changed with filters present.
    pub permit_set_mac: bool,
}

silent!(VadaptorAlloc, 0x98, "VADAPTOR_ALLOC", |self| {
    let mut request = Request::zeroed(30);
    request.u32(0, PORT_ASSIGNED).u32(8, u32::from(self.permit_set_mac) << 1);
    request
});

/// `VADAPTOR_FREE`.
#[derive(Debug, Clone, Copy)]
pub struct VadaptorFree;

silent!(VadaptorFree, 0x99, "VADAPTOR_FREE", |self| words([PORT_ASSIGNED]));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_asked_for() {
        let alloc = AllocVis { min: 3, max: 9 };
        let reply = |count: u8| alloc.reply(Reply(&[count, 0, 0, 0, 64, 0, 0, 0]));
        assert_eq!(reply(3), Ok(Vis { count: 3 }));
        assert_eq!(reply(9), Ok(Vis { count: 9 }));
        assert_eq!((reply(2), reply(10)), (Err(Malformed), Err(Malformed)));
    }

    #[test]
    fn the_adaptor_is_on_the_assigned_port() {
        let request = VadaptorAlloc { permit_set_mac: true }.request();
        assert_eq!(request.bytes().len(), 30);
        assert_eq!(request.bytes()[..12], [0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0]);
    }
}
