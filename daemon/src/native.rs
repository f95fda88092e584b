//! Caps that the driver holds itself.
//!
//! From 615 on a driver can limit what a control group holds, contexts and code and programs without our
//! library included. Where a tenant is a container with a control group of its own, the driver gets its
//! cap, follows it, and loses it when the tenant goes; the tenant's processes then leave the part that is
//! set aside for contexts to the driver, who counts them exactly. Their own check of the cap stays: the
//! driver does not count managed memory.
//!
//! What is set in the driver stands in the restart ledger before it is set, so that a daemon that comes
//! after this one takes away what nobody is left for.

use crate::devices::Watch;
use crate::group_limits::Outcome;
use crate::process;
use crate::state::Shared;
use crate::tenants::Registry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Mutex;

/// A control group on a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// UUID of the device.
    pub(crate) uuid: String,
}

/// Whose cap it is, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    tenant: u64,
    /// Of the device, in the tenant's pages.
    place: usize,
    bytes: u64,
}

/// What this daemon knows of the driver's limits.
#[derive(Debug, Default)]
struct Known {
    /// Set, and seen to stand.
    standing: BTreeMap<Place, u64>,
    /// Said no to; not asked again before something changes.
    refused: BTreeMap<Place, u64>,
    /// Why this driver is not asked at all.
    never: Option<String>,
}

/// Brings the driver's limits up to date.
#[derive(Debug)]
pub(crate) struct Native {
    shared: Arc<Shared>,
    devices: Arc<Watch>,
    is_allowed: bool,
    known: Mutex<Known>,
}

impl Native {
    pub(crate) fn new(shared: Arc<Shared>, devices: Arc<Watch>, is_allowed: bool) -> Self {
        Self {
            shared,
            devices,
            is_allowed,
            known: Mutex::default(),
        }
    }

    /// Sets what is missing in the driver, takes away what nobody is left for, and tells the tenants who
    /// holds their caps. Ends soon, also where NVML hangs.
    pub(crate) async fn settle(&self) {
        let mut known = self.known.lock().await;
        let wanted = match self.is_allowed {
            true => wanted(&self.shared.state().registry),
            false => BTreeMap::new(),
        };
        let wanted: BTreeMap<Place, Wanted> = wanted
            .into_iter()
            .filter_map(|((group, uuid), wanted)| {
                let directory = process::control_group_directory(&group)?;
                Some((Place { directory, uuid }, wanted))
            })
            .collect();
        self.clear_rest(&mut known, &wanted).await;
        if known.never.is_none() {
            self.set_all(&mut known, &wanted).await;
        }
        let is_standing = |(place, _): &(&Place, &Wanted)| known.standing.contains_key(place);
        let held = wanted.iter().filter(is_standing);
        let held: BTreeSet<(u64, usize)> = held.map(|(_, it)| (it.tenant, it.place)).collect();
        let state = self.shared.state();
        for tenant in state.registry.tenants() {
            if let Some(pages) = state.pages.get(&tenant.id) {
                (0..tenant.shares.len()).for_each(|place| {
                    let is_held = held.contains(&(tenant.id, place));
                    pages.control.set_held_by_driver(place, is_held);
                });
            }
        }
    }

    /// Takes away limits whose tenants are gone.
    async fn clear_rest(&self, known: &mut Known, wanted: &BTreeMap<Place, Wanted>) {
        let written = self.shared.state().native.clone();
        known.refused.retain(|place, _| wanted.contains_key(place));
        for place in written.iter().filter(|place| !wanted.contains_key(place)) {
            // With its directory its limit is gone.
            let outcome = match place.directory.exists() {
                true => self.devices.limit(place, None).await,
                false => Outcome::Done,
            };
            match outcome {
                Outcome::Silent => return,
                Outcome::Done => {}
                Outcome::Never(why) | Outcome::Refused(why) => {
                    tracing::warn!(?place, why, "a limit in the driver cannot be taken away");
                }
            }
            known.standing.remove(place);
            let mut state = self.shared.state();
            state.native.remove(place);
            state.is_unsaved = true;
        }
    }

    async fn set_all(&self, known: &mut Known, wanted: &BTreeMap<Place, Wanted>) {
        let is_news = |(place, wanted): &(&Place, &Wanted)| {
            let is = |done: &BTreeMap<Place, u64>| done.get(*place) == Some(&wanted.bytes);
            !is(&known.standing) && !is(&known.refused)
        };
        let news: Vec<_> = wanted.iter().filter(is_news).collect();
        if news.is_empty() {
            return;
        }
        self.write_down(news.iter().map(|(place, _)| (*place).clone()));
        for (place, Wanted { bytes, .. }) in news {
            // A cap that changed is nobody's until the driver has the new one.
            known.standing.remove(place);
            match self.devices.limit(place, Some(*bytes)).await {
                Outcome::Done => {
                    tracing::info!(?place, bytes, "the driver holds this cap");
                    known.standing.insert(place.clone(), *bytes);
                    known.refused.remove(place);
                }
                Outcome::Refused(why) => {
                    tracing::warn!(?place, bytes, why, "the driver does not hold this cap");
                    known.refused.insert(place.clone(), *bytes);
                }
                Outcome::Never(why) => {
                    tracing::info!(why, "the driver holds no caps");
                    known.never = Some(why);
                    return;
                }
                Outcome::Silent => return,
            }
        }
    }

    fn write_down(&self, places: impl Iterator<Item = Place>) {
        self.shared.state().native.extend(places);
        self.shared.save();
    }
}

/// Which caps the driver could hold: those of containers whose control groups are no other tenant's, nor
/// above or below one, since limits nest. By control group and device.
fn wanted(registry: &Registry) -> BTreeMap<(String, String), Wanted> {
    let groups = registry.tenants().filter_map(|tenant| {
        let container = tenant.container.as_ref()?;
        Some((tenant, container, container.control_group.as_deref()?))
    });
    let groups: Vec<_> = groups.collect();
    let alone = groups.iter().filter(|(tenant, container, group)| {
        groups.iter().all(|(other, others, path)| {
            let is_apart = !container.has(Some(path), None) && !others.has(Some(group), None);
            other.id == tenant.id || is_apart
        })
    });
    let of_each = alone.flat_map(|(tenant, _, group)| {
        tenant.shares.iter().enumerate().map(|(place, share)| {
            let key = ((*group).to_owned(), share.device.uuid.clone());
            let wanted = Wanted {
                tenant: tenant.id,
                place,
                bytes: share.limit_bytes,
            };
            (key, wanted)
        })
    });
    of_each.collect()
}

/// What stands in the ledger.
pub(crate) type Written = BTreeSet<Place>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ContainerInfo;
    use crate::quota::Request;
    use crate::tenants::{Container, Device, NewTenant, ProcessId};
    use crate::terms::Wanted as Terms;

    fn registry(groups: &[Option<&str>]) -> Registry {
        let mut registry = Registry::new(1.0, 0);
        registry.set_devices(vec![Device {
            index: 0,
            uuid: "GPU-1".to_owned(),
            name: "device".to_owned(),
            memory_bytes: 8 << 30,
        }]);
        for (pid, group) in (1..).zip(groups) {
            let container = group.map(|group| Container {
                info: ContainerInfo {
                    id: format!("c{pid}"),
                    lease: None,
                },
                control_group: Some(group.to_owned()),
                pid_namespace: None,
            });
            let new = NewTenant {
                name: None,
                memory: Request::parse("1GiB").expect("a cap"),
                is_overcommitted: false,
                compute: Terms::default(),
                gpus: None,
                owner: ProcessId {
                    pid,
                    start_ticks: 1,
                },
                container,
                token: [0; 16],
                nonce: [0; 16],
            };
            registry.register(new).expect("there is room");
        }
        registry
    }

    #[test]
    fn containers_with_a_group_of_their_own_can_be_held_by_the_driver() {
        let registry = registry(&[Some("/a"), None, Some("/b"), Some("/b/c"), Some("/ab")]);
        let wanted = wanted(&registry);
        let groups: Vec<_> = wanted.keys().map(|(group, _)| &**group).collect();
        assert_eq!(groups, ["/a", "/ab"]);
        let all = wanted.values().map(|it| (it.tenant, it.place, it.bytes));
        assert_eq!(all.collect::<Vec<_>>(), [(1, 0, 1 << 30), (5, 0, 1 << 30)]);
    }
}
