//! The quota that a container's variables ask for. A bad one is an error, never "unlimited".

use crate::peers;
use daemon::quota::Request;
use daemon::terms::Wanted;
use std::collections::BTreeMap;

/// What the variables ask for, each value as the daemon reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Cap on memory, for every GPU or by GPU.
    pub memory: Option<String>,
    /// Guaranteed share of GPU time.
    pub compute: Option<String>,
    /// Ceiling of the share.
    pub compute_max: Option<String>,
    /// How what is left is divided.
    pub weight: Option<u32>,
    /// `latency`, `standard` or `batch`.
    pub class: Option<String>,
    /// The tenant's name.
    pub name: Option<String>,
}

/// A variable whose value is no quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the variable {variable} is {value:?}: {reason}")]
pub struct EnvironmentError {
    /// The variable.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// What is wrong, and what is accepted.
    pub reason: String,
}

pub(crate) fn refuse(variable: &str, value: &str, reason: impl ToString) -> EnvironmentError {
    EnvironmentError {
        variable: variable.to_owned(),
        value: value.to_owned(),
        reason: reason.to_string(),
    }
}

impl Quota {
    /// Reads a container's variables; the last of a name counts.
    ///
    /// Other sharers' names count where ours are not set. They are checked only then.
    ///
    /// # Errors
    /// The variable, its value and what is accepted.
    pub fn of_environment<'a>(
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, EnvironmentError> {
        let variables: BTreeMap<&str, &str> = variables.into_iter().collect();
        let checked = |name: &str, check: &dyn Fn(&str) -> Result<(), String>| {
            variables
                .get(name)
                .map(|value| match check(value) {
                    Ok(()) => Ok((*value).to_owned()),
                    Err(reason) => Err(refuse(name, value, reason)),
                })
                .transpose()
        };
        let mut quota = Self {
            memory: checked("SLUICE_MEMORY", &|text| {
                Request::parse(text)
                    .map(drop)
                    .map_err(|error| error.to_string())
            })?,
            compute: checked("SLUICE_COMPUTE", &|text| {
                share(Some(text), None, None, None)
            })?,
            compute_max: checked("SLUICE_COMPUTE_MAX", &|text| {
                share(None, Some(text), None, None)
            })?,
            weight: checked("SLUICE_WEIGHT", &|text| weight(text).map(drop))?
                .and_then(|text| text.parse().ok()),
            class: checked("SLUICE_CLASS", &|text| share(None, None, None, Some(text)))?,
            name: checked("SLUICE_NAME", &name)?,
        };
        if quota.memory.is_none() {
            quota.memory = peers::memory(&variables)?;
        }
        if quota.compute_max.is_none() {
            quota.compute_max = peers::ceiling(&variables)?;
        }
        if quota.class.is_none() {
            quota.class = peers::class(&variables)?;
        }
        // Each is well; together they may not be, as a guarantee above the ceiling.
        share(
            quota.compute.as_deref(),
            quota.compute_max.as_deref(),
            quota.weight,
            quota.class.as_deref(),
        )
        .map_err(|reason| {
            refuse(
                "SLUICE_COMPUTE",
                quota.compute.as_deref().unwrap_or_default(),
                reason,
            )
        })?;
        Ok(quota)
    }

    /// The quota as variables; [`Self::of_environment`] reads them back.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        [
            ("SLUICE_MEMORY", self.memory.clone()),
            ("SLUICE_COMPUTE", self.compute.clone()),
            ("SLUICE_COMPUTE_MAX", self.compute_max.clone()),
            (
                "SLUICE_WEIGHT",
                self.weight.map(|weight| weight.to_string()),
            ),
            ("SLUICE_CLASS", self.class.clone()),
            ("SLUICE_NAME", self.name.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

fn share(
    compute: Option<&str>,
    max: Option<&str>,
    weight: Option<u32>,
    class: Option<&str>,
) -> Result<(), String> {
    Wanted::parse(compute, max, weight, class)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn weight(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|weight| (1..=10_000).contains(weight))
        .ok_or_else(|| "accepted is a whole number from 1 to 10000".to_owned())
}

fn name(text: &str) -> Result<(), String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err("accepted is any text without control characters, and not empty".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_survives_being_written_and_read() {
        let variables = [
            ("SLUICE_MEMORY", "0:8GiB,1:4GiB"),
            ("SLUICE_COMPUTE", "30%"),
            ("SLUICE_COMPUTE_MAX", "50%"),
            ("SLUICE_WEIGHT", "7"),
            ("SLUICE_CLASS", "batch"),
            ("SLUICE_NAME", "web"),
        ];
        let quota = Quota::of_environment(variables).unwrap();
        let written = quota.variables();
        assert_eq!(written.len(), variables.len());
        let read = written.iter().map(|(name, value)| (*name, value.as_str()));
        assert_eq!(Quota::of_environment(read).unwrap(), quota);
    }

    #[test]
    fn a_bad_value_is_refused_by_variable_and_value() {
        for (variable, value) in [
            ("SLUICE_MEMORY", "lots"),
            ("SLUICE_MEMORY", ""),
            ("SLUICE_COMPUTE", "-3%"),
            ("SLUICE_COMPUTE_MAX", "much"),
            ("SLUICE_WEIGHT", "0"),
            ("SLUICE_WEIGHT", "10001"),
            ("SLUICE_CLASS", "best"),
            ("SLUICE_NAME", "a\nb"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
            ("CUDA_MEM_LIMIT_1", "x"),
            ("CUDA_CORE_LIMIT", "101"),
            ("CUDA_TASK_PRIORITY", "2"),
        ] {
            let error = Quota::of_environment([(variable, value)]).unwrap_err();
            assert_eq!(
                (error.variable.as_str(), error.value.as_str()),
                (variable, value)
            );
            assert!(!error.reason.is_empty());
        }
    }

    #[test]
    fn a_guarantee_above_the_ceiling_is_refused() {
        Quota::of_environment([("SLUICE_COMPUTE", "60%"), ("SLUICE_COMPUTE_MAX", "50%")])
            .unwrap_err();
    }
}
