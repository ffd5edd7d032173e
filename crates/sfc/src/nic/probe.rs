//! Finding out what the function is and can do: steps 3 to 9 of the bring-up (`spec/ef10.md` 8.1, 8.2).
//!
//! Repeated after each restart of the controller, whose firmware may then be another.

use crate::device::{Generation, Identity, Kind, window_bytes};
use crate::error::Error;
use crate::mcdi::command::{
    Capabilities, DrvAttach, EntityReset, FunctionInfo, GetAsserts, GetCapabilities, GetClock,
    GetFunctionInfo, GetMacAddresses, GetPhyConfig, GetPortAssignment, GetRxdpConfig,
    GetTimerProperties, GetVersion, GetWorkarounds, LogControl, PhyConfig, Reboot, Version,
    VportGetMacAddresses, Workaround, Workarounds,
};
use crate::mcdi::{Code, Mcdi};
use crate::moderation::Timer;

/// What the function is and what its firmware can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// By its PCI numbers.
    pub identity: Identity,
    /// The firmware's version.
    pub firmware: Version,
    /// Which function of the card it is.
    pub function: FunctionInfo,
    /// The network port it belongs to, when it has one.
    pub port: Option<u32>,
    /// What the firmware can do.
    pub capabilities: Capabilities,
    /// The function's own address.
    pub address: [u8; 6],
    /// The size of a virtual interface's window, in bytes.
    pub window: u32,
    /// Event queue registers are reached through the transmit doorbell's address (bug 35388).
    pub indirect: bool,
    /// How event timers are set, when they can be.
    pub timer: Option<Timer>,
    /// To what multiple the card pads what it writes, in bytes.
    pub padding: u16,
    /// The PHY, when the function may ask for it.
    pub phy: Option<PhyConfig>,
}

/// Announces the driver, frees what was left over, and asks.
pub(super) fn probe(mcdi: &mut Mcdi, identity: Identity) -> Result<Info, Error> {
    clear_asserts(mcdi)?;
    mcdi.call(&DrvAttach { attach: true })?;
    mcdi.call(&EntityReset)?;
    mcdi.call(&LogControl)?;
    let capabilities = mcdi.call(&GetCapabilities)?;
    if !capabilities.flags1.rx_prefix_14() {
        return Err(Error::Lacks("the 14-byte prefix of received packets"));
    }
    let (indirect, by_command) = workarounds(mcdi, identity)?;
    Ok(Info {
        identity,
        firmware: mcdi.call(&GetVersion)?,
        function: mcdi.call(&GetFunctionInfo)?,
        port: mcdi.call(&GetPortAssignment)?,
        capabilities,
        address: match identity.kind {
            Kind::Physical => mcdi.call(&GetMacAddresses)?,
            Kind::Virtual => mcdi.call(&VportGetMacAddresses)?,
        },
        window: window(capabilities, identity)?,
        indirect,
        timer: timer(mcdi, identity, by_command, indirect)?,
        padding: padding(mcdi, identity)?,
        phy: optional(mcdi.call(&GetPhyConfig))?,
    })
}

/// Takes the controller out of its assertion handler, if it is in there.
fn clear_asserts(mcdi: &mut Mcdi) -> Result<(), Error> {
    const ATTEMPTS: usize = 3;
    for attempt in 1..=ATTEMPTS {
        match mcdi.call(&GetAsserts) {
            Ok(asserts) if asserts.is_clean() => return Ok(()),
            Ok(_) => {
                return match mcdi.call(&Reboot) {
                    Ok(()) => Ok(()),
                    Err(Error::Rebooted { .. }) => mcdi.restart(),
                    Err(error) if error.code() == Some(Code::EIO) || error.is_denied() => Ok(()),
                    Err(error) => Err(error),
                };
            }
            Err(error) if error.is_denied() => return Ok(()),
            Err(error)
                if attempt < ATTEMPTS && matches!(error.code(), Some(Code::EINTR | Code::EIO)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The size of a window. Without the firmware's word it is the one that the early generations have; on
/// the latest that would be a guess.
fn window(capabilities: Capabilities, identity: Identity) -> Result<u32, Error> {
    const SIZE: &str = "a size of register windows that the driver knows";
    match capabilities.window_mode {
        Some(mode) => window_bytes(mode).ok_or(Error::Lacks(SIZE)),
        None if identity.generation == Generation::Medford2 => Err(Error::Lacks(SIZE)),
        None => window_bytes(0).ok_or(Error::Lacks(SIZE)),
    }
}

/// Whether bugs 35388 and 61265 are worked around. The first is switched on here; the second is the
/// firmware's decision.
///
/// Chained multicast (26807) is left as it is: switching it resets every function of the card that has
/// filters.
fn workarounds(mcdi: &mut Mcdi, identity: Identity) -> Result<(bool, bool), Error> {
    let has = |mask: u32, workaround: Workaround| mask & workaround.bit() != 0;
    let Workarounds { implemented, enabled } =
        optional(mcdi.call(&GetWorkarounds))?.unwrap_or_default();
    let mut indirect = has(enabled, Workaround::IndirectEvq);
    if identity.generation == Generation::Huntington
        && has(implemented, Workaround::IndirectEvq)
        && !indirect
    {
        indirect = optional(mcdi.call(&Workaround::IndirectEvq))?.is_some();
    }
    Ok((indirect, has(enabled, Workaround::TimerByCommand)))
}

/// How timers are set: the firmware's word, else from the clocks, else not at all.
fn timer(
    mcdi: &mut Mcdi,
    identity: Identity,
    by_command: bool,
    indirect: bool,
) -> Result<Option<Timer>, Error> {
    if let Some(properties) = optional(mcdi.call(&GetTimerProperties))? {
        return Ok(Some(Timer::from_properties(properties, by_command, indirect)));
    }
    let clocks = optional(mcdi.call(&GetClock))?;
    Ok(clocks.map(|clocks| Timer::from_clocks(clocks, identity.generation, by_command, indirect)))
}

/// Padding of what the card writes (6.1); the largest there is when the firmware does not tell.
fn padding(mcdi: &mut Mcdi, identity: Identity) -> Result<u16, Error> {
    const HUNTINGTON: u16 = 64;
    const LARGEST: u16 = 256;
    if identity.generation == Generation::Huntington {
        return Ok(HUNTINGTON);
    }
    Ok(optional(mcdi.call(&GetRxdpConfig))?.unwrap_or(LARGEST))
}

/// What the function may not ask, or the firmware does not know, is not there.
fn optional<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_denied() || error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}
