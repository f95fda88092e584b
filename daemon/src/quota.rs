//! How a memory cap is written: text in, bytes out.
//!
//! | form | means |
//! |---|---|
//! | `2147483648` | bytes |
//! | `2GiB`, `2Gi`, `1536MiB`, `1.5GiB` | powers of 1,024: `Ki`, `Mi`, `Gi`, `Ti`, with or without `B` |
//! | `2GB`, `2G`, `500MB` | powers of 1,000: `K`, `M`, `G`, `T`, with or without `B` |
//! | `25%`, `12.5%` | of the device, rounded down to whole bytes |
//! | `max` | the whole device |
//! | `0:8GiB,1:25%` | one of the above for each device, by index or UUID |
//!
//! Letters count in either case, but for a lone `m`: Kubernetes reads that as a thousandth, so it is
//! refused and not guessed. Nothing is ever read in part: what is not wholly one of these forms is
//! refused, and the refusal names it.

use std::fmt;

/// What is said after each refusal of a text.
const ACCEPTED: &str = "accepted are a number of bytes, a size such as 2GiB, 1536MiB or 2GB, \
                        a part of the device such as 25%, or max";

/// Billionths: how exactly a fraction is read. Nine digits say any byte count below 1 GiB.
const FRACTION: u128 = 1_000_000_000;

/// Why a text is not a cap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// It has none of the forms.
    #[error("\"{text}\" is not an amount of memory; {ACCEPTED}")]
    Unreadable {
        /// The text.
        text: String,
    },
    /// It is zero, or rounds down to it.
    #[error("a memory cap of \"{text}\" would leave nothing to allocate; {ACCEPTED}")]
    Zero {
        /// The text.
        text: String,
    },
    /// It is below zero.
    #[error("a memory cap cannot be negative, as \"{text}\" is; {ACCEPTED}")]
    Negative {
        /// The text.
        text: String,
    },
    /// It is a part of more than the whole.
    #[error("\"{text}\" is more than the whole device; {ACCEPTED}")]
    BeyondWhole {
        /// The text.
        text: String,
    },
    /// The same device twice, or none at all.
    #[error(
        "\"{text}\" is not a list of caps by device; accepted is one entry for each device, such as \
         0:8GiB,1:4GiB, by index or UUID"
    )]
    BadList {
        /// The text.
        text: String,
    },
    /// It is more than this device has.
    #[error(
        "a memory cap of \"{text}\" is more than device {device} has, which is {device_bytes} bytes \
         ({}); accepted is anything up to that, or max", Size(*device_bytes)
    )]
    BeyondDevice {
        /// The cap, as its user may know it again.
        text: String,
        /// Index of the device.
        device: u32,
        /// Its size.
        device_bytes: u64,
    },
}

/// One cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// So many billionths of the device: `25%` is 250,000,000.
    Part(u32),
    /// The whole device.
    Max,
}

impl Memory {
    /// Reads one cap; see the module for the forms. Spaces around it do not count.
    ///
    /// # Errors
    /// A sentence that names the text and what is accepted.
    pub fn parse(text: &str) -> Result<Self, QuotaError> {
        let given = text;
        let text = text.trim_matches(' ');
        let unreadable = || QuotaError::Unreadable {
            text: given.to_owned(),
        };
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        if text.starts_with('-') {
            return Err(QuotaError::Negative {
                text: given.to_owned(),
            });
        }
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let billionths = billionths(number).ok_or_else(unreadable)?;
        if unit == "%" {
            // `25` of a hundred: a part in billionths is the number in billionths over a hundred.
            return match u32::try_from(billionths / 100) {
                Ok(0) => Err(QuotaError::Zero {
                    text: given.to_owned(),
                }),
                Ok(part) if u128::from(part) <= FRACTION && billionths <= 100 * FRACTION => {
                    Ok(Self::Part(part))
                }
                _ => Err(QuotaError::BeyondWhole {
                    text: given.to_owned(),
                }),
            };
        }
        if unit.is_empty() && number.contains('.') {
            return Err(unreadable());
        }
        let factor = factor(unit).ok_or_else(unreadable)?;
        let bytes = billionths
            .checked_mul(u128::from(factor))
            .ok_or_else(unreadable)?
            / FRACTION;
        match u64::try_from(bytes) {
            Ok(0) => Err(QuotaError::Zero {
                text: given.to_owned(),
            }),
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(_) => Err(unreadable()),
        }
    }

    /// The cap in bytes on a device of `device_bytes`, rounded down. Pure.
    ///
    /// # Errors
    /// [`QuotaError::BeyondDevice`], and [`QuotaError::Zero`] for a part that is less than a byte.
    pub fn on(self, device: u32, device_bytes: u64) -> Result<u64, QuotaError> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Max => device_bytes,
            Self::Part(part) => {
                let bytes = u128::from(device_bytes) * u128::from(part) / FRACTION;
                // A part is at most the whole, so it fits; saturating costs nothing.
                u64::try_from(bytes).unwrap_or(device_bytes)
            }
        };
        if bytes > device_bytes {
            return Err(QuotaError::BeyondDevice {
                text: self.to_string(),
                device,
                device_bytes,
            });
        }
        if bytes == 0 {
            return Err(QuotaError::Zero {
                text: self.to_string(),
            });
        }
        Ok(bytes)
    }
}

impl fmt::Display for Memory {
    /// A form that [`Memory::parse`] reads back to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => Size(*bytes).fmt(f),
            Self::Part(part) => {
                let (whole, rest) = (part / 10_000_000, part % 10_000_000);
                if rest == 0 {
                    write!(f, "{whole}%")
                } else {
                    let rest = format!("{rest:07}");
                    write!(f, "{whole}.{}%", rest.trim_end_matches('0'))
                }
            }
            Self::Max => f.write_str("max"),
        }
    }
}

/// Caps as a user asks for them: one for every device, or one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The same for every device.
    Every(Memory),
    /// By device, each named by index or UUID; never empty.
    Each(Vec<(String, Memory)>),
}

impl Request {
    /// Reads one cap, or a list by device.
    ///
    /// # Errors
    /// A sentence that names the text and what is accepted.
    pub fn parse(text: &str) -> Result<Self, QuotaError> {
        if !text.contains([':', ',']) {
            return Memory::parse(text).map(Self::Every);
        }
        let bad_list = || QuotaError::BadList {
            text: text.to_owned(),
        };
        let mut caps: Vec<(String, Memory)> = Vec::new();
        for entry in text.split(',') {
            let (device, cap) = entry.split_once(':').ok_or_else(bad_list)?;
            let device = device.trim_matches(' ');
            let is_repeated = caps
                .iter()
                .any(|(known, _)| known.eq_ignore_ascii_case(device));
            if device.is_empty() || is_repeated {
                return Err(bad_list());
            }
            caps.push((device.to_owned(), Memory::parse(cap)?));
        }
        Ok(Self::Each(caps))
    }
}

/// Bytes for people: `2GiB`, `1536MiB`; the plain number where no unit divides it.
///
/// [`Memory::parse`] reads it back to the same number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A decimal number in billionths; `None` for anything else, also more than nine decimals.
fn billionths(number: &str) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction: u128 = format!("{fraction:0<9}").parse().ok()?;
    Some(u128::from(whole) * FRACTION + fraction)
}

/// Bytes in one `unit`; no unit is one byte.
fn factor(unit: &str) -> Option<u64> {
    if unit == "m" {
        return None;
    }
    let unit = unit.to_ascii_lowercase();
    Some(match unit.as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn every_documented_form_is_its_documented_number_of_bytes() {
        for (text, bytes) in [
            ("2GiB", 2 * GIB),
            ("2Gi", 2 * GIB),
            ("2gib", 2 * GIB),
            ("2G", 2_000_000_000),
            ("4g", 4_000_000_000),
            ("2GB", 2_000_000_000),
            ("1536MiB", 1536 << 20),
            ("1.5GiB", 1536 << 20),
            ("4.5G", 4_500_000_000),
            ("2147483648", 2 * GIB),
            ("4096M", 4_096_000_000),
            ("1T", 1_000_000_000_000),
            ("010M", 10_000_000),
            ("4G ", 4_000_000_000),
            (" 4G", 4_000_000_000),
            ("1B", 1),
        ] {
            assert_eq!(Memory::parse(text), Ok(Memory::Bytes(bytes)), "{text}");
        }
        assert_eq!(Memory::parse("25%"), Ok(Memory::Part(250_000_000)));
        assert_eq!(Memory::parse("12.5%"), Ok(Memory::Part(125_000_000)));
        assert_eq!(Memory::parse("max"), Ok(Memory::Max));
        assert_eq!(Memory::Max.on(0, 7), Ok(7));
        assert_eq!(Memory::Part(250_000_000).on(0, 8 * GIB), Ok(2 * GIB));
        assert_eq!(
            Memory::parse("100%").map(|all| all.on(0, u64::MAX)),
            Ok(Ok(u64::MAX))
        );
    }

    #[test]
    fn what_is_no_amount_is_refused_by_name_and_never_read_in_part() {
        for text in [
            "",
            " ",
            "abc",
            "4GG",
            "4;G",
            "4e9",
            "0x10",
            "+1",
            "10m",
            "4096m",
            "4 GiB",
            "1.GiB",
            ".5G",
            "1.5",
            "1..5G",
            "1.2.3G",
            "18446744073709551616",
            "99999999999T",
            "-1",
            "-0",
            "0",
            "0G",
            "0m",
            "0%",
            "0.00000001%",
            "101%",
            "100.5%",
            "%",
            "G",
            "unlimited",
            "4GiB\n",
            "٤GiB",
        ] {
            let error = Memory::parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
            assert!(error.contains("accepted"), "{error}");
        }
    }

    #[test]
    fn more_than_the_device_has_is_refused_with_its_size() {
        let error = Memory::Bytes(9 * GIB).on(3, 8 * GIB).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "a memory cap of \"9GiB\" is more than device 3 has, which is 8589934592 bytes (8GiB); \
             accepted is anything up to that, or max"
        );
    }

    #[test]
    fn a_list_gives_each_device_its_own_cap() {
        assert_eq!(
            Request::parse("0:8GiB, GPU-1f:25%"),
            Ok(Request::Each(vec![
                ("0".to_owned(), Memory::Bytes(8 * GIB)),
                ("GPU-1f".to_owned(), Memory::Part(250_000_000)),
            ]))
        );
        for text in ["0:1G,0:2G", ":1G", "1G,2G", "0:1G,", ",", ":", "0:"] {
            assert!(Request::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_cap_survives_being_written_and_read(bytes in 1u64.., part in 1u32..=1_000_000_000) {
            for cap in [Memory::Bytes(bytes), Memory::Part(part), Memory::Max] {
                prop_assert_eq!(Memory::parse(&cap.to_string()), Ok(cap));
            }
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*", near in "[0-9.%a-zA-Z:, +-]{0,24}") {
            let _ = Request::parse(&text);
            let _ = Request::parse(&near);
        }

        #[test]
        fn a_cap_never_exceeds_its_device(text in "[1-9][0-9]{0,12}(|G|MiB|%)", device_bytes: u64) {
            if let Ok(bytes) = Memory::parse(&text).and_then(|cap| cap.on(0, device_bytes)) {
                prop_assert!(bytes > 0 && bytes <= device_bytes);
            }
        }
    }
}
