//! What the transfer tests of all guests have in common.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    guest::{Answer, Family, Guest},
    suite::note,
};

/// Mean bytes of a packet the guest received, over each protocol.
pub(crate) struct Received {
    pub(crate) v4: u64,
    pub(crate) v6: u64,
}

impl Received {
    /// Both means are those of a stream that was merged well: over 8 KB.
    pub(crate) fn check_merged(&self) -> Result<()> {
        self.check_more_than(8 * 1024)
    }

    /// Both means tell that there was merging; how much of it depends on the moment.
    pub(crate) fn check_merging(&self) -> Result<()> {
        self.check_more_than(3 * 1024)
    }

    fn check_more_than(&self, bytes: u64) -> Result<()> {
        for (family, mean) in [(Family::V4, self.v4), (Family::V6, self.v6)] {
            ensure!(
                mean > bytes,
                "mean received packet over IPv{family}: {mean} bytes, not over {bytes}"
            );
        }
        Ok(())
    }

    /// Both means are those of frames as they were on the wire.
    pub(crate) fn check_unmerged(&self) -> Result<()> {
        check_unmerged(Family::V4, self.v4)?;
        check_unmerged(Family::V6, self.v6)
    }
}

/// A mean of about one frame of the wire: 1514 bytes, some of it acknowledgements.
pub(crate) fn check_unmerged(family: Family, mean: u64) -> Result<()> {
    ensure!(
        (1200..=1600).contains(&mean),
        "mean received packet over IPv{family}: {mean} bytes, not about one MTU"
    );
    Ok(())
}

/// Follows a guest through `Plan::both_ways(bytes)`: each transfer has to arrive as it was sent.
pub(crate) fn both_ways(guest: &mut Guest, bytes: u64) -> Result<(Answer, Received)> {
    let up = guest.expect("up", BOOT_LIMIT)?;
    let mut means = [0; 2];
    for (mean, family) in means.iter_mut().zip(["4", "6"]) {
        let get = guest.expect("get", TRANSFER_LIMIT)?;
        ensure!(get.text("family")? == family, "the guest went another way: {get:?}");
        get.check_intact(bytes)?;
        *mean = get.mean_received()?;
        let put = guest.expect("put", TRANSFER_LIMIT)?;
        put.check_intact(bytes)?;
        note(&format!(
            "IPv{family}: {} KB to the guest {} ms, mean packet {mean} bytes; from it {} ms",
            bytes / 1024,
            get.text("ms")?,
            put.text("ms")?,
        ));
    }
    guest.expect("end", TRANSFER_LIMIT)?;
    guest.wait(Duration::from_secs(20))?;
    Ok((up, Received { v4: means[0], v6: means[1] }))
}

pub(crate) const MB: u64 = 1024 * 1024;
/// For a guest to be up; one in QEMU takes about 5 s on an idle machine.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(60);
pub(crate) const TRANSFER_LIMIT: Duration = Duration::from_secs(120);
