//! CDI, version 0.5.0: the oldest that has all that is needed, so that old engines read it too.

use crate::Edits;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The only variable that a hook has.
pub(crate) const HOOK_PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds after which a runtime ends the hook, which gives up earlier by itself.
pub(crate) const HOOK_SECONDS: u32 = 15;

/// Vendor and class of the devices: a user writes `--device sluice.dev/gpu=NAME`.
pub const KIND: &str = "sluice.dev/gpu";

/// The specification with these devices, each a name and what it changes.
#[must_use]
pub fn specification<'a>(devices: impl IntoIterator<Item = (&'a str, &'a Edits)>) -> Value {
    let devices: Vec<Value> = devices
        .into_iter()
        .map(|(name, edits)| json!({ "name": name, "containerEdits": change(edits) }))
        .collect();
    json!({ "cdiVersion": "0.5.0", "kind": KIND, "devices": devices })
}

fn change(edits: &Edits) -> Value {
    let env: Vec<_> = edits
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mounts: Vec<_> = edits
        .mounts
        .iter()
        .map(|mount| {
            json!({
                "hostPath": mount.from,
                "containerPath": mount.to,
                "options": mount.options,
                "type": "bind",
            })
        })
        .collect();
    let mut change = json!({
        "mounts": mounts,
        "hooks": [{
            "hookName": "createRuntime",
            "path": edits.create_runtime.path,
            "args": edits.create_runtime.args,
            // Never the container's: a variable of an image must not steer a program of the host.
            "env": [HOOK_PATH],
            "timeout": HOOK_SECONDS,
        }],
    });
    if !env.is_empty() {
        change["env"] = json!(env);
    }
    change
}

/// Whether a device may be called so: letters, digits, `_`, `-`, `.` and `:`, with a letter or digit at
/// either end. Of two characters at least, since readers before CDI 1.1.1 fail on one.
///
/// Source: Container Device Interface, SPEC.md.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() >= 2
        && is_edge(name.chars().next())
        && is_edge(name.chars().last())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

/// Writes `specification` to `path` in one step: engines watch the folder and read whatever is there.
pub fn write(path: &Path, specification: &Value) -> io::Result<()> {
    replace(path, specification, 0o644)
}

/// Makes `path` a file of `value`, in one step.
pub(crate) fn replace(path: &Path, value: &Value, mode: u32) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut aside = tempfile::Builder::new()
        .prefix(".sluice-")
        .suffix(".part")
        .tempfile_in(folder)?;
    serde_json::to_writer_pretty(&mut aside, value)?;
    aside.write_all(b"\n")?;
    aside
        .as_file()
        .set_permissions(std::fs::Permissions::from_mode(mode))?;
    aside.as_file().sync_all()?;
    aside.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::tests::lease;
    use crate::{Source, edits};

    #[test]
    fn a_specification_is_written_whole_and_leaves_nothing_aside() {
        let edits = edits(&Source::Environment, &lease()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluice.json");
        std::fs::write(&path, "old").unwrap();
        write(&path, &specification([("managed", &edits)])).unwrap();

        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["cdiVersion"], "0.5.0");
        assert_eq!(read["devices"][0]["name"], "managed");
        let change = &read["devices"][0]["containerEdits"];
        assert_eq!(change["mounts"][1]["containerPath"], "/etc/ld.so.preload");
        assert_eq!(change["hooks"][0]["hookName"], "createRuntime");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_are_what_readers_take() {
        for name in ["half", "8GiB", "half.v2"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a", "-a", "a-", "a b", "\u{e4}b"] {
            assert!(!is_name(name), "{name}");
        }
    }
}
