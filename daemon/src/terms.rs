//! How a share of GPU time is asked for: text in, [`Terms`] out.
//!
//! | what | forms | means |
//! |---|---|---|
//! | guarantee | `30%`, `12.5%`, `0%` | that part of the device's time, whenever the tenant has work |
//! | ceiling | `50%`, `max` | never more than that part, also on an idle device |
//! | weight | 1 to 10000 | how what is left is divided; unless asked for, the guarantee in permille, else 100 |
//! | class | `latency`, `standard`, `batch` | see [`Class`] |

use crate::arbiter::{Class, Terms};
use serde::{Deserialize, Serialize};

/// The whole of a device.
pub const WHOLE_PERMILLE: u32 = 1000;

/// Why a share cannot be what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// No part of a device.
    #[error(
        "\"{text}\" is no share of GPU time; accepted is a part of the device from 0% to 100%, in steps \
         of 0.1%, such as 30%{}", if *.takes_max { ", or max" } else { "" }
    )]
    Unreadable {
        /// The text.
        text: String,
        /// Whether `max` would have done.
        takes_max: bool,
    },
    /// No weight.
    #[error("{0} is no weight; accepted is a whole number from 1 to 10000")]
    Weight(u32),
    /// No class.
    #[error("\"{0}\" is no class; accepted are latency, standard and batch")]
    Class(String),
    /// A ceiling of nothing.
    #[error("a ceiling of 0% would let nothing run; to hold a tenant for a while, pause it")]
    NoCeiling,
    /// The two contradict each other.
    #[error("a ceiling of {} is below the guarantee of {}", Part(*.ceiling), Part(*.guarantee))]
    CeilingBelowGuarantee {
        /// In permille.
        ceiling: u32,
        /// In permille.
        guarantee: u32,
    },
}

/// A part in permille, for people: `30%`, `12.5%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part(pub u32);

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, tenth) => write!(f, "{whole}.{tenth}%"),
        }
    }
}

/// What was asked for; what was not is left as it is, or as it is by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Wanted {
    /// In permille.
    pub guarantee_permille: Option<u32>,
    /// In permille; 1000 is none.
    pub ceiling_permille: Option<u32>,
    /// From 1 to 10000.
    pub weight: Option<u32>,
    /// See [`Class`].
    pub class: Option<Class>,
}

impl Wanted {
    /// Reads what was asked for.
    ///
    /// # Errors
    /// A sentence that names the value and what is accepted.
    pub fn parse(
        guarantee: Option<&str>,
        ceiling: Option<&str>,
        weight: Option<u32>,
        class: Option<&str>,
    ) -> Result<Self, TermsError> {
        let wanted = Self {
            guarantee_permille: guarantee.map(|text| part(text, false)).transpose()?,
            ceiling_permille: ceiling.map(|text| part(text, true)).transpose()?,
            weight,
            class: class.map(parse_class).transpose()?,
        };
        wanted.terms()?;
        Ok(wanted)
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// This, and `former` for what this says nothing about.
    pub fn over(self, former: Self) -> Self {
        Self {
            guarantee_permille: self.guarantee_permille.or(former.guarantee_permille),
            ceiling_permille: self.ceiling_permille.or(former.ceiling_permille),
            weight: self.weight.or(former.weight),
            class: self.class.or(former.class),
        }
    }

    /// The guarantee, in permille.
    pub fn guarantee(&self) -> u32 {
        self.guarantee_permille.unwrap_or(0)
    }

    /// The terms that follow.
    ///
    /// # Errors
    /// Parts of it contradict each other.
    pub fn terms(&self) -> Result<Terms, TermsError> {
        let guarantee = self.guarantee();
        let ceiling = self.ceiling_permille.unwrap_or(WHOLE_PERMILLE);
        if ceiling == 0 {
            return Err(TermsError::NoCeiling);
        }
        if ceiling < guarantee {
            return Err(TermsError::CeilingBelowGuarantee { ceiling, guarantee });
        }
        if let Some(weight) = self.weight
            && !(1..=10_000).contains(&weight)
        {
            return Err(TermsError::Weight(weight));
        }
        let default = Terms::default();
        let by_guarantee = if guarantee > 0 {
            guarantee
        } else {
            default.weight
        };
        Ok(Terms {
            guarantee_permille: guarantee,
            ceiling_permille: ceiling,
            weight: self.weight.unwrap_or(by_guarantee),
            class: self.class.unwrap_or_default(),
        })
    }
}

fn parse_class(text: &str) -> Result<Class, TermsError> {
    match text {
        "latency" => Ok(Class::Latency),
        "standard" => Ok(Class::Standard),
        "batch" => Ok(Class::Batch),
        _ => Err(TermsError::Class(text.to_owned())),
    }
}

/// Reads a part of a device, in permille.
fn part(text: &str, takes_max: bool) -> Result<u32, TermsError> {
    let unreadable = || TermsError::Unreadable {
        text: text.to_owned(),
        takes_max,
    };
    let trimmed = text.trim_matches(' ');
    if takes_max && trimmed.eq_ignore_ascii_case("max") {
        return Ok(WHOLE_PERMILLE);
    }
    let number = trimmed.strip_suffix('%').ok_or_else(unreadable)?;
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(tenth) || tenth.len() > 1 || whole.len() > 3 {
        return Err(unreadable());
    }
    let whole: u32 = whole.parse().map_err(|_| unreadable())?;
    let tenth: u32 = tenth.parse().map_err(|_| unreadable())?;
    let permille = whole * 10 + tenth;
    if permille > WHOLE_PERMILLE {
        return Err(unreadable());
    }
    Ok(permille)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_documented_form_is_its_documented_part() {
        for (text, permille) in [("30%", 300), ("12.5%", 125), ("0%", 0), ("100%", 1000)] {
            assert_eq!(part(text, false), Ok(permille), "{text}");
            assert_eq!(Part(permille).to_string(), text);
        }
        assert_eq!(part("max", true), Ok(1000));
    }

    #[test]
    fn what_is_no_part_is_refused_by_name() {
        for text in [
            "", "%", "30", "0.3", "-1%", "101%", "100.1%", "1.25%", "max", "30 %", "٣%",
        ] {
            let error = part(text, false).expect_err(text).to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
            assert!(error.contains("accepted"), "{error}");
        }
    }

    #[test]
    fn a_weight_follows_the_guarantee_unless_it_was_asked_for() {
        let wanted = |guarantee, weight| Wanted::parse(guarantee, None, weight, None);
        let weight = |wanted: Result<Wanted, TermsError>| {
            wanted.and_then(|it| it.terms()).map(|it| it.weight)
        };
        assert_eq!(weight(wanted(Some("30%"), None)), Ok(300));
        assert_eq!(weight(wanted(Some("30%"), Some(7))), Ok(7));
        assert_eq!(weight(wanted(None, None)), Ok(100));
        assert_eq!(weight(wanted(None, Some(0))), Err(TermsError::Weight(0)));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let error = Wanted::parse(Some("50%"), Some("30%"), None, None).expect_err("below");
        assert_eq!(
            error.to_string(),
            "a ceiling of 30% is below the guarantee of 50%"
        );
        assert_eq!(
            Wanted::parse(None, Some("0%"), None, None),
            Err(TermsError::NoCeiling)
        );
        let error = Wanted::parse(None, None, None, Some("fast")).expect_err("a class");
        assert!(error.to_string().contains("latency, standard and batch"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*", near in "[0-9.%max -]{0,8}") {
            let _ = part(&text, true);
            let _ = part(&near, true);
        }
    }
}
