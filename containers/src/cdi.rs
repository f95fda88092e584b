//! CDI, version 0.5.0: the oldest that has all that is needed, so that old engines read it too.

use crate::Edits;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The specification with one device, `sluice.dev/gpu=NAME`.
#[must_use]
pub fn specification(device: &str, edits: &Edits) -> Value {
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
    let mut change = json!({ "env": env, "mounts": mounts });
    if let Some(hook) = &edits.create_runtime {
        change["hooks"] = json!([{
            "hookName": "createRuntime",
            "path": hook.path,
            "args": hook.args,
            // Never the container's: a variable of an image must not steer a program of the host.
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 10,
        }]);
    }
    json!({
        "cdiVersion": "0.5.0",
        "kind": "sluice.dev/gpu",
        "devices": [{ "name": device, "containerEdits": change }],
    })
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
    use crate::{Quota, edits};

    #[test]
    fn a_specification_is_written_whole_and_leaves_nothing_aside() {
        let edits = edits(&Quota::default(), &lease()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sluice.json");
        std::fs::write(&path, "old").unwrap();
        write(&path, &specification("all", &edits)).unwrap();

        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read["cdiVersion"], "0.5.0");
        let change = &read["devices"][0]["containerEdits"];
        assert_eq!(change["mounts"][1]["containerPath"], "/etc/ld.so.preload");
        assert_eq!(change["hooks"][0]["hookName"], "createRuntime");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
