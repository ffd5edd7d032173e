//! `sfc:FUNCTION[,option…]`: which function, and how its queues are made.

use std::fmt;

/// A function of a card, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// A PCI address (`0000:03:00.0`), or the path of a vfio-user socket: with a `/` in it.
    pub function: String,
    /// Descriptors of a receive queue.
    pub rx_ring: u32,
    /// Descriptors of a transmit queue.
    pub tx_ring: u32,
    /// The largest frame behind the Ethernet header, in bytes.
    pub mtu: u16,
    /// Frames for every unicast address, not only for the function's own.
    pub promiscuous: bool,
    /// How far apart the card keeps its interrupts, in microseconds.
    pub moderation_us: u32,
}

impl Options {
    /// That function, with everything else as it is by default.
    pub fn new(function: impl Into<String>) -> Self {
        Self {
            function: function.into(),
            rx_ring: 1024,
            tx_ring: 1024,
            mtu: 1500,
            promiscuous: true,
            moderation_us: 0,
        }
    }

    /// Reads what stands behind `sfc:`.
    ///
    /// # Errors
    ///
    /// What is wrong and how it should look.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let function = parts.next().unwrap_or_default();
        if !function.contains('/') && !pci::is_address(function) {
            return Err(format!(
                "'{function}' is no function: write a PCI address like 0000:03:00.0 (`lspci -D` \
                 lists them) or the path of a vfio-user socket"
            ));
        }
        let mut options = Self::new(function);
        for part in parts {
            options.set(part)?;
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let Some((name, value)) = option.split_once('=') else {
            return Err(format!("'{option}' is no name=value: {SHAPE}"));
        };
        let ring = |most: u32| {
            let number = value.parse().ok();
            number
                .filter(|number: &u32| number.is_power_of_two() && (512..=most).contains(number))
                .ok_or_else(|| format!("{name}={value}: a power of two from 512 to {most}"))
        };
        match name {
            "rx" => self.rx_ring = ring(4096)?,
            "tx" => self.tx_ring = ring(2048)?,
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (68..=9202).contains(mtu));
                self.mtu = mtu.ok_or_else(|| format!("mtu={value}: 68 to 9202 bytes"))?;
            }
            "promiscuous" => {
                self.promiscuous = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(format!("promiscuous={value}: on or off")),
                }
            }
            "moderation" => {
                let time = value.parse().ok().filter(|time| *time <= 10_000);
                self.moderation_us =
                    time.ok_or_else(|| format!("moderation={value}: 0 to 10000 microseconds"))?;
            }
            _ => return Err(format!("'{name}' is no option of a card: {SHAPE}")),
        }
        Ok(())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sfc:{}", self.function)?;
        let default = Self::new("");
        let numbers = [
            ("rx", self.rx_ring, default.rx_ring),
            ("tx", self.tx_ring, default.tx_ring),
            ("mtu", self.mtu.into(), default.mtu.into()),
            ("moderation", self.moderation_us, default.moderation_us),
        ];
        for (name, value, usual) in numbers {
            if value != usual {
                write!(f, ",{name}={value}")?;
            }
        }
        if self.promiscuous { Ok(()) } else { f.write_str(",promiscuous=off") }
    }
}

pub(crate) const SHAPE: &str =
    "sfc:FUNCTION[,rx=N][,tx=N][,mtu=BYTES][,promiscuous=on|off][,moderation=US]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_address_or_socket() {
        assert_eq!(Options::parse("0000:03:00.0").unwrap(), Options::new("0000:03:00.0"));
        assert_eq!(Options::parse("./card.sock").unwrap(), Options::new("./card.sock"));
        let text = "sfc:0000:af:1f.7,rx=4096,tx=512,mtu=9000,moderation=60,promiscuous=off";
        let options = Options::parse(&text[4..]).unwrap();
        assert_eq!((options.rx_ring, options.tx_ring, options.mtu), (4096, 512, 9000));
        assert!(!options.promiscuous && options.moderation_us == 60);
        assert_eq!(options.to_string(), text);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let table = [
            ("", "is no function"),
            ("eth0", "is no function"),
            ("03:00.0", "like 0000:03:00.0"),
            ("0000:03:00:0", "is no function"),
            ("000g:03:00.0", "is no function"),
            ("/s,rx=100", "a power of two from 512 to 4096"),
            ("/s,tx=4096", "512 to 2048"),
            ("/s,mtu=9203", "68 to 9202"),
            ("/s,promiscuous=yes", "on or off"),
            ("/s,moderation=-1", "0 to 10000"),
            ("/s,fast", "no name=value"),
            ("/s,speed=1", "no option of a card"),
        ];
        for (text, reason) in table {
            let error = Options::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
