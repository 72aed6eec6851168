//! Where a device is on its PCI bus.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Where a device is on its PCI bus. The driver, NVML and the system write the same one differently;
/// here they are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<PciAddress> {
        let read = || {
            let mut parts = text.split(':');
            let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let (device, function) = rest.split_once('.')?;
            let byte = |text| u8::from_str_radix(text, 16).ok();
            let address = PciAddress {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: byte(bus)?,
                device: byte(device)?,
                function: byte(function)?,
            };
            parts.next().is_none().then_some(address)
        };
        read().ok_or_else(|| Error::Invalid {
            what: "PCI address",
            value: text.into(),
            allowed: "domain:bus:device.function in hexadecimal digits, such as 0000:3b:00.0"
                .into(),
        })
    }
}

impl fmt::Display for PciAddress {
    /// As the system writes it: 0000:3b:00.0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The NUMA node that the system says the device belongs to; none where there is only one.
pub(super) fn numa_node(address: PciAddress) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{address}/numa_node");
    // -1 stands for none.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_the_same() {
        let system: PciAddress = "0000:3b:00.0".parse().unwrap();
        for text in ["0000:3B:00.0", "00000000:3B:00.0", "0:3b:0.0"] {
            assert_eq!(text.parse::<PciAddress>().unwrap(), system, "{text}");
        }
        assert_eq!(system.to_string(), "0000:3b:00.0");
        assert_eq!("00018000:01:1f.7".parse::<PciAddress>().unwrap().to_string(), "18000:01:1f.7");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "3b:00.0", "0000:3b:00", "0000:3b:00.0:1", "0000:xx:00.0", "0000:3b:100.0"]
        {
            let error = text.parse::<PciAddress>().unwrap_err().to_string();
            assert!(error.contains("such as 0000:3b:00.0"), "{text}: {error}");
        }
    }
}
