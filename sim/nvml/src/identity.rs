//! Which devices there are, and what is fixed about each.

use std::ffi::{c_char, c_int};

use ffi::nvml::*;
use sim::client::Device;

use crate::figures::Figures;
use crate::guard::{Answer, In, Out, check_version, text_field, version_word, write_text};
use crate::library::{self, Handle};

const INVALID: nvmlReturn_t = nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT;
const NOT_FOUND: nvmlReturn_t = nvmlReturn_t::NVML_ERROR_NOT_FOUND;

/// PCI numbers of the makers: device in the upper half of a word, vendor in the lower.
const VENDOR: u32 = 0x10DE;

/// Base and subclass of a 3D controller.
const PCI_CLASS: (u32, u32) = (0x03, 0x02);

/// Domain, bus and device number; the function is always 0.
type Pci = (u32, u32, u32);

/// `nvmlPciInfo_t` of the first version, which ended before the subsystem.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV1 {
    address: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    numbers: u32,
}

/// `nvmlPciInfo_t` of the second version; the reserved words behind it are left alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV2 {
    first: PciInfoV1,
    subsystem: u32,
}

/// How many there are.
pub(crate) fn count(count: Out<u32>) -> Answer {
    count.write(library::session()?.hardware.devices().len() as u32)
}

/// The device at a place in the order that the driver library shares.
pub(crate) fn by_index(index: u32, device: Out<Handle>) -> Answer {
    let session = library::session()?;
    if (index as usize) >= session.hardware.devices().len() {
        return Err(INVALID);
    }
    hand_out(device, index as usize)
}

/// The device at a bus address, `0000:02:00.0` or `00000000:02:00.0`; domain and function may be
/// missing.
pub(crate) fn by_address(address: In<c_char>, device: Out<Handle>) -> Answer {
    library::session()?;
    let wanted = parse_address(&address.text()?).ok_or(INVALID)?;
    find(device, |candidate| candidate.pci == wanted)
}

/// The device with a UUID in its printed form.
pub(crate) fn by_uuid(uuid: In<c_char>, device: Out<Handle>) -> Answer {
    library::session()?;
    find_by_uuid(&uuid.text()?, device)
}

/// The device with a UUID in either form, in a versioned structure.
pub(crate) fn by_versioned_uuid(uuid: In<nvmlUUID_v1_t>, device: Out<Handle>) -> Answer {
    library::session()?;
    let uuid = uuid.read()?;
    check_version(uuid.version, version_word::<nvmlUUID_v1_t>(1))?;
    // SAFETY: every bit pattern of the union is a value of its longest member.
    let characters = unsafe { uuid.value.str_ };
    let bytes = characters.map(|character| character as u8);
    match nvmlUUIDType_t(uuid.type_) {
        nvmlUUIDType_t::NVML_UUID_TYPE_ASCII => {
            let printed: Vec<u8> = bytes.into_iter().take_while(|byte| *byte != 0).collect();
            find_by_uuid(&String::from_utf8_lossy(&printed), device)
        }
        nvmlUUIDType_t::NVML_UUID_TYPE_BINARY => {
            find(device, |candidate| bytes.starts_with(&candidate.uuid))
        }
        _ => Err(INVALID),
    }
}

/// The device with a serial number.
pub(crate) fn by_serial(serial: In<c_char>, device: Out<Handle>) -> Answer {
    library::session()?;
    let wanted = serial.text()?;
    find(device, |candidate| serial_of(candidate) == wanted)
}

/// Its place in the order; minor number and module number are the same.
pub(crate) fn index(device: Handle, index: Out<u32>) -> Answer {
    index.write(device.resolve()?.index as u32)
}

/// Product name; says that it is a stand-in.
pub(crate) fn name(device: Handle, text: Out<c_char>, length: u32) -> Answer {
    write_text(text, length, device.resolve()?.description().name)
}

/// UUID in its printed form, `GPU-` and then five groups.
pub(crate) fn uuid(device: Handle, text: Out<c_char>, length: u32) -> Answer {
    write_text(text, length, &device.resolve()?.description().uuid_text())
}

/// A number that follows from the UUID.
pub(crate) fn serial(device: Handle, text: Out<c_char>, length: u32) -> Answer {
    write_text(text, length, &serial_of(device.resolve()?.description()))
}

/// Every device has a board to itself, numbered by its bus address.
pub(crate) fn board(device: Handle, board: Out<u32>) -> Answer {
    let target = device.resolve()?;
    let (domain, bus, device) = target.description().pci;
    board.write((domain << 16) | (bus << 8) | device)
}

/// Nobody makes it.
pub(crate) fn part_number(device: Handle, text: Out<c_char>, length: u32) -> Answer {
    device.resolve()?;
    write_text(text, length, "stand-in")
}

/// It has no firmware; the field has the usual form.
pub(crate) fn firmware(device: Handle, text: Out<c_char>, length: u32) -> Answer {
    device.resolve()?;
    write_text(text, length, "00.00.00.00.00")
}

/// Bus address as binaries of the first interface know it.
pub(crate) fn pci_v1(device: Handle, pci: Out<PciInfoV1>) -> Answer {
    pci.write(first_pci_info(device.resolve()?.description()))
}

/// [`pci_v1`] and the subsystem.
pub(crate) fn pci_v2(device: Handle, pci: Out<PciInfoV2>) -> Answer {
    let first = first_pci_info(device.resolve()?.description());
    pci.write(PciInfoV2 {
        first,
        subsystem: 0,
    })
}

/// Bus address with a domain of eight digits too.
pub(crate) fn pci_v3(device: Handle, pci: Out<nvmlPciInfo_t>) -> Answer {
    let target = device.resolve()?;
    let first = first_pci_info(target.description());
    pci.write(nvmlPciInfo_t {
        busIdLegacy: first.address,
        domain: first.domain,
        bus: first.bus,
        device: first.device,
        pciDeviceId: first.numbers,
        pciSubSystemId: 0,
        busId: text_field(&printed_address(target.description().pci)),
    })
}

/// [`pci_v3`] and the class of the device, in a versioned structure.
pub(crate) fn pci_extended(device: Handle, pci: Out<nvmlPciInfoExt_v1_t>) -> Answer {
    let target = device.resolve()?;
    let pci = pci.claim()?;
    let version = version_word::<nvmlPciInfoExt_v1_t>(1);
    check_version(pci.read().version, version)?;
    let (domain, bus, device) = target.description().pci;
    pci.write(nvmlPciInfoExt_v1_t {
        version,
        domain,
        bus,
        device,
        pciDeviceId: VENDOR,
        pciSubSystemId: 0,
        baseClass: PCI_CLASS.0,
        subClass: PCI_CLASS.1,
        busId: text_field(&printed_address(target.description().pci)),
    });
    Ok(())
}

/// The brand of devices for computing.
pub(crate) fn brand(device: Handle, brand: Out<nvmlBrandType_t>) -> Answer {
    device.resolve()?;
    brand.write(nvmlBrandType_t::NVML_BRAND_NVIDIA)
}

/// Architecture number as in the header.
pub(crate) fn architecture(device: Handle, architecture: Out<u32>) -> Answer {
    architecture.write(Figures::of(device.resolve()?.description()).architecture())
}

/// Compute capability.
pub(crate) fn compute_capability(device: Handle, major: Out<c_int>, minor: Out<c_int>) -> Answer {
    let target = device.resolve()?;
    let (major, minor) = (major.claim()?, minor.claim()?);
    let profile = target.description().profile;
    major.write(profile.major as c_int);
    minor.write(profile.minor as c_int);
    Ok(())
}

/// Always PCI Express.
pub(crate) fn bus_type(device: Handle, kind: Out<u32>) -> Answer {
    device.resolve()?;
    kind.write(NVML_BUS_TYPE_PCIE)
}

/// CUDA cores.
pub(crate) fn cores(device: Handle, cores: Out<u32>) -> Answer {
    cores.write(Figures::of(device.resolve()?.description()).cores())
}

/// Width of the memory interface in bits.
pub(crate) fn memory_bus(device: Handle, bits: Out<u32>) -> Answer {
    bits.write(Figures::of(device.resolve()?.description()).memory_bus_bits())
}

/// Only a device and itself share a board.
pub(crate) fn on_same_board(device: Handle, other: Handle, is_same: Out<c_int>) -> Answer {
    let (one, other) = (device.resolve()?, other.resolve()?);
    is_same.write(c_int::from(one.index == other.index))
}

/// Two devices meet in the processor: the same node, but no switch in between.
pub(crate) fn common_ancestor(
    device: Handle,
    other: Handle,
    level: Out<nvmlGpuTopologyLevel_t>,
) -> Answer {
    let (one, other) = (device.resolve()?, other.resolve()?);
    level.write(match one.index == other.index {
        true => nvmlGpuTopologyLevel_t::NVML_TOPOLOGY_INTERNAL,
        false => nvmlGpuTopologyLevel_t::NVML_TOPOLOGY_NODE,
    })
}

/// Every processor of the machine is equally near.
pub(crate) fn cpu_affinity(device: Handle, words: u32, set: Out<u64>) -> Answer {
    device.resolve()?;
    if words == 0 {
        return Err(INVALID);
    }
    let set = set.claim()?;
    // SAFETY: takes a number and returns one.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let mut left = u32::try_from(processors).unwrap_or(1).max(1);
    for at in 0..words as usize {
        let here = left.min(u64::BITS);
        set.nth(at)
            .write(u64::MAX.checked_shr(u64::BITS - here).unwrap_or(0));
        left -= here;
    }
    Ok(())
}

/// [`cpu_affinity`]; by node (0) and by socket (1) alike.
pub(crate) fn cpu_affinity_within(device: Handle, words: u32, set: Out<u64>, scope: u32) -> Answer {
    match scope {
        0 | 1 => cpu_affinity(device, words, set),
        _ => Err(INVALID),
    }
}

fn find(device: Out<Handle>, is_wanted: impl Fn(&Device) -> bool) -> Answer {
    let session = library::session()?;
    let index = session
        .hardware
        .devices()
        .iter()
        .position(is_wanted)
        .ok_or(NOT_FOUND)?;
    hand_out(device, index)
}

/// Writes a device's handle; of one that has fallen off the bus there is none.
fn hand_out(device: Out<Handle>, index: usize) -> Answer {
    let handle = Handle::new(index);
    handle.resolve()?;
    device.write(handle)
}

fn find_by_uuid(wanted: &str, device: Out<Handle>) -> Answer {
    find(device, |candidate| {
        candidate.uuid_text().eq_ignore_ascii_case(wanted)
    })
}

fn first_pci_info(device: &Device) -> PciInfoV1 {
    let (domain, bus, device) = device.pci;
    PciInfoV1 {
        address: text_field(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        numbers: VENDOR,
    }
}

fn printed_address(pci: Pci) -> String {
    let (domain, bus, device) = pci;
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// Hexadecimal groups; only function 0 exists.
fn parse_address(text: &str) -> Option<Pci> {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let mut groups = place
        .split(':')
        .rev()
        .map(|group| u32::from_str_radix(group, 16).ok());
    let device = groups.next()??;
    let bus = groups.next()??;
    let domain = groups.next().unwrap_or(Some(0))?;
    (groups.next().is_none() && function.trim() == "0").then_some((domain, bus, device))
}

/// Thirteen digits, as boards have them.
fn serial_of(device: &Device) -> String {
    let folded = u128::from_be_bytes(device.uuid) % 1_000_000_000;
    format!("1650{folded:09}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_address_is_found_in_every_form_that_tools_print() {
        let wanted = Some((0, 2, 0));
        for text in [
            "0000:02:00.0",
            "00000000:02:00.0",
            "02:00.0",
            "02:00",
            "0:2:0",
        ] {
            assert_eq!(parse_address(text), wanted, "{text}");
        }
        for text in ["", "02", "xx:00.0", "0:0:2:0.0", "02:00.1"] {
            assert!(parse_address(text).is_none(), "{text}");
        }
    }
}
