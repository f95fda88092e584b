//! The variables of other sharers of GPUs, so that their containers run here unchanged.
//!
//! Their `k`, `m` and `g` are binary and a bare number is bytes; where they take nonsense or zero
//! memory for "unlimited", it is refused here. Their limit of cores is a hard one: our ceiling.

use crate::quota::{EnvironmentError, refuse};
use daemon::quota::Request;
use std::collections::BTreeMap;

type Variables<'a> = BTreeMap<&'a str, &'a str>;

/// The cap of the first of their names that is set.
pub(crate) fn memory(variables: &Variables<'_>) -> Result<Option<String>, EnvironmentError> {
    for stem in ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_MEM_LIMIT"] {
        let each = by_device(variables, stem);
        let every = variables.get(stem);
        if let (Some(every), Some((_, other, _))) = (every, each.first()) {
            let reason =
                format!("{other} is set too; accepted is one cap for every GPU, or one for each");
            return Err(refuse(stem, every, reason));
        }
        if let Some(value) = every {
            return size(stem, value).map(Some);
        }
        if !each.is_empty() {
            let caps = each
                .iter()
                .map(|(index, name, value)| {
                    let gpu = gpu(variables, *index, name, value)?;
                    Ok(format!("{gpu}:{}", size(name, value)?))
                })
                .collect::<Result<Vec<_>, _>>()?;
            return Ok(Some(caps.join(",")));
        }
    }
    Ok(None)
}

/// Their devices are numbered as the container sees them: in the order of `NVIDIA_VISIBLE_DEVICES`, where
/// that is a list.
fn gpu(
    variables: &Variables<'_>,
    index: u32,
    name: &str,
    value: &str,
) -> Result<String, EnvironmentError> {
    let Some(listed) = variables
        .get("NVIDIA_VISIBLE_DEVICES")
        .and_then(|list| crate::quota::gpus(list))
    else {
        return Ok(index.to_string());
    };
    listed.get(index as usize).cloned().ok_or_else(|| {
        let reason = format!("NVIDIA_VISIBLE_DEVICES lists {} GPUs only", listed.len());
        refuse(name, value, reason)
    })
}

/// Guarantee and ceiling in the names of those that have both: a share that is kept, and another up to which
/// idle time may be used.
pub(crate) fn elastic(
    variables: &Variables<'_>,
) -> Result<Option<(String, String)>, EnvironmentError> {
    let soft = percentage(variables, "CUDA_CORE_SOFT_LIMIT")?;
    let hard = percentage(variables, "CUDA_CORE_LIMIT")?;
    Ok(match (hard, soft) {
        (Some(hard), Some(soft)) if (1..100).contains(&hard) && soft > hard => {
            Some((format!("{hard}%"), format!("{soft}%")))
        }
        _ => None,
    })
}

/// The ceiling of the first of their names that is set. Ours is the same on every GPU.
pub(crate) fn ceiling(variables: &Variables<'_>) -> Result<Option<String>, EnvironmentError> {
    for stem in ["CUDA_DEVICE_SM_LIMIT", "CUDA_CORE_LIMIT"] {
        if let Some(percent) = percentage(variables, stem)? {
            return Ok((1..100).contains(&percent).then(|| format!("{percent}%")));
        }
    }
    Ok(None)
}

/// The percentage in `STEM` or its numbered forms, which have to agree.
fn percentage(variables: &Variables<'_>, stem: &str) -> Result<Option<u32>, EnvironmentError> {
    let mut found: Option<u32> = None;
    let every = variables
        .get_key_value(stem)
        .map(|(name, value)| (*name, *value));
    let each = by_device(variables, stem);
    let all = every
        .into_iter()
        .chain(each.into_iter().map(|(_, name, value)| (name, value)));
    for (name, value) in all {
        let percent = value
            .parse()
            .ok()
            .filter(|percent| *percent <= 100)
            .ok_or_else(|| {
                refuse(
                    name,
                    value,
                    "accepted is a whole percentage from 0 (no ceiling) to 100",
                )
            })?;
        if found.is_some_and(|before| before != percent) {
            let reason = "another GPU has another value; accepted is the same for every GPU";
            return Err(refuse(name, value, reason));
        }
        found = Some(percent);
    }
    Ok(found)
}

/// Their priority: 0 is high, 1 is low.
pub(crate) fn class(variables: &Variables<'_>) -> Result<Option<String>, EnvironmentError> {
    const NAME: &str = "CUDA_TASK_PRIORITY";
    match variables.get(NAME).copied() {
        None => Ok(None),
        Some("0") => Ok(Some("standard".to_owned())),
        Some("1") => Ok(Some("batch".to_owned())),
        Some(value) => Err(refuse(NAME, value, "accepted is 0 (high) or 1 (low)")),
    }
}

/// The variables `STEM_<index>`, by index.
fn by_device<'a>(variables: &Variables<'a>, stem: &str) -> Vec<(u32, &'a str, &'a str)> {
    let mut found: Vec<_> = variables
        .iter()
        .filter_map(|(name, value)| {
            let index = name.strip_prefix(stem)?.strip_prefix('_')?.parse().ok()?;
            Some((index, *name, *value))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Their size as ours.
fn size(name: &str, value: &str) -> Result<String, EnvironmentError> {
    let lower = value.to_ascii_lowercase();
    let short = lower
        .strip_suffix("ib")
        .or(lower.strip_suffix('b'))
        .unwrap_or(&lower);
    let digits = short.trim_end_matches(['k', 'm', 'g', 't']);
    let unit = match short.strip_prefix(digits) {
        Some("") => Some(""),
        Some("k") => Some("KiB"),
        Some("m") => Some("MiB"),
        Some("g") => Some("GiB"),
        Some("t") => Some("TiB"),
        _ => None,
    };
    let refused = || {
        refuse(
            name,
            value,
            "accepted is a whole number above 0, in bytes or with k, m, g or t (binary)",
        )
    };
    let unit = unit.filter(|_| digits.parse::<u64>().is_ok_and(|number| number > 0));
    let text = format!("{digits}{}", unit.ok_or_else(refused)?);
    Request::parse(&text).map(|_| text).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use crate::Quota;

    fn quota(variables: &[(&str, &str)]) -> Quota {
        Quota::of_environment(variables.iter().copied()).unwrap()
    }

    #[test]
    fn their_units_are_binary() {
        for (theirs, ours) in [("2g", "2GiB"), ("512M", "512MiB"), ("4096", "4096")] {
            assert_eq!(
                quota(&[("CUDA_MEM_LIMIT", theirs)]).memory.as_deref(),
                Some(ours)
            );
        }
    }

    #[test]
    fn caps_by_device_become_a_list_in_the_order_of_numbers() {
        let quota = quota(&[
            ("CUDA_DEVICE_MEMORY_LIMIT_10", "1g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_2", "4g"),
        ]);
        assert_eq!(quota.memory.as_deref(), Some("2:4GiB,10:1GiB"));
    }

    #[test]
    fn their_numbers_are_those_that_the_container_sees() {
        let two = [
            ("NVIDIA_VISIBLE_DEVICES", "GPU-aa,GPU-bb"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g"),
        ];
        assert_eq!(quota(&two).memory.as_deref(), Some("GPU-bb:1GiB"));
        let one = [("NVIDIA_VISIBLE_DEVICES", "GPU-aa"), two[1]];
        Quota::of_environment(one).unwrap_err();
    }

    #[test]
    fn a_soft_limit_is_the_ceiling_and_the_hard_one_what_is_kept() {
        let quota = quota(&[("CUDA_CORE_LIMIT", "30"), ("CUDA_CORE_SOFT_LIMIT", "60")]);
        assert_eq!(quota.compute.as_deref(), Some("30%"));
        assert_eq!(quota.compute_max.as_deref(), Some("60%"));
    }

    #[test]
    fn our_names_go_before_theirs() {
        let quota = quota(&[
            ("SLUICE_MEMORY", "1GiB"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "9g"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
            ("CUDA_TASK_PRIORITY", "1"),
        ]);
        assert_eq!(quota.memory.as_deref(), Some("1GiB"));
        assert_eq!(quota.compute_max.as_deref(), Some("30%"));
        assert_eq!(quota.class.as_deref(), Some("batch"));
    }

    #[test]
    fn ceilings_that_differ_by_device_are_refused() {
        Quota::of_environment([("CUDA_CORE_LIMIT_0", "30"), ("CUDA_CORE_LIMIT_1", "40")])
            .unwrap_err();
        assert_eq!(quota(&[("CUDA_CORE_LIMIT_0", "100")]).compute_max, None);
    }
}
