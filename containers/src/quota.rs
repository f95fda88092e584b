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
    /// Whether its memory may lie in the host's where a GPU is full.
    pub memory_overcommit: bool,
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
            memory_overcommit: checked("SLUICE_MEMORY_OVERCOMMIT", &|text| {
                flag(text).map(drop).ok_or_else(|| {
                    "accepted are 1 and true, or 0, false and nothing at all".to_owned()
                })
            })?
            .is_some_and(|text| flag(&text) == Some(true)),
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
        if quota.compute.is_none() && quota.compute_max.is_none() {
            (quota.compute, quota.compute_max) = match peers::elastic(&variables)? {
                Some((guarantee, ceiling)) => (Some(guarantee), Some(ceiling)),
                None => (None, peers::ceiling(&variables)?),
            };
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

    /// Whether nothing is asked for; a name alone asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let nameless = Self {
            name: None,
            ..self.clone()
        };
        nameless == Self::default()
    }

    /// The quota as variables; [`Self::of_environment`] reads them back.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        pairs(self)
            .into_iter()
            .filter_map(|(variable, _, value)| Some((variable, value?)))
            .collect()
    }

    /// The quota as options, as `sluice run` and `sluice hook` take them.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let pairs = pairs(self).into_iter();
        let valued = pairs
            .filter(|(_, option, _)| *option != OVERCOMMIT)
            .filter_map(|(_, option, value)| Some([option.to_owned(), value?]))
            .flatten();
        let flag = self.memory_overcommit.then(|| OVERCOMMIT.to_owned());
        valued.chain(flag).collect()
    }
}

/// The GPUs that a list as in `NVIDIA_VISIBLE_DEVICES` names, by index or UUID; `None` where it names none
/// by themselves: `all`, `none`, `void`, parts of GPUs, or nothing.
#[must_use]
pub fn gpus(list: &str) -> Option<Vec<String>> {
    let is_gpu = |word: &str| {
        word.starts_with("GPU-") || (!word.is_empty() && word.bytes().all(|c| c.is_ascii_digit()))
    };
    let words: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
    words.iter().all(|word| is_gpu(word)).then_some(words)
}

/// The option without a value.
const OVERCOMMIT: &str = "--memory-overcommit";

fn pairs(quota: &Quota) -> [(&'static str, &'static str, Option<String>); 7] {
    [
        ("SLUICE_MEMORY", "--memory", quota.memory.clone()),
        (
            "SLUICE_MEMORY_OVERCOMMIT",
            OVERCOMMIT,
            quota.memory_overcommit.then(|| "1".to_owned()),
        ),
        ("SLUICE_COMPUTE", "--compute", quota.compute.clone()),
        (
            "SLUICE_COMPUTE_MAX",
            "--compute-max",
            quota.compute_max.clone(),
        ),
        (
            "SLUICE_WEIGHT",
            "--weight",
            quota.weight.map(|weight| weight.to_string()),
        ),
        ("SLUICE_CLASS", "--class", quota.class.clone()),
        ("SLUICE_NAME", "--name", quota.name.clone()),
    ]
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "true" => Some(true),
        "" | "0" | "false" => Some(false),
        _ => None,
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
            ("SLUICE_MEMORY_OVERCOMMIT", "1"),
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
    fn a_list_of_gpus_is_one_of_indices_or_uuids() {
        assert_eq!(gpus("0, GPU-ab").unwrap(), ["0", "GPU-ab"]);
        for list in ["", "all", "none", "void", "0,MIG-1", "0,"] {
            assert_eq!(gpus(list), None, "{list:?}");
        }
    }

    #[test]
    fn a_guarantee_above_the_ceiling_is_refused() {
        Quota::of_environment([("SLUICE_COMPUTE", "60%"), ("SLUICE_COMPUTE_MAX", "50%")])
            .unwrap_err();
    }
}
