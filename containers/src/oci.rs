//! Changes of an OCI `config.json`, for engines that know no CDI, and what a runtime tells a hook.
//!
//! A configuration is kept as the tree that it is, so that what this version does not know stays.
//! Source: OCI runtime specification 1.0, `config.md`, `runtime.md`.

use crate::{Edits, LIBRARIES, cdi};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::io;
use std::path::{Path, PathBuf};

/// Why a configuration was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// It could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A field is of another kind than OCI says.
    #[error("its field `{0}` is not what OCI says")]
    Field(&'static str),
}

/// What a hook reads from its standard input.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct State {
    /// The container's id.
    pub id: String,
    /// Process id of its first process, as the runtime sees it.
    #[serde(default)]
    pub pid: u32,
    /// The folder with its `config.json`.
    pub bundle: PathBuf,
}

/// Reads the configuration in the file `path`.
///
/// # Errors
/// It cannot be read, or is no JSON.
pub fn read(path: &Path) -> Result<Value, OciError> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// The folder of the container's root, as the configuration spells it: absolute, or below the bundle.
pub fn root(config: &Value) -> Option<&Path> {
    config
        .pointer("/root/path")
        .and_then(Value::as_str)
        .map(Path::new)
}

/// Changes the configuration in the file `path`, in one step.
pub fn edit_file(path: &Path, edits: &Edits) -> Result<(), OciError> {
    use std::os::unix::fs::PermissionsExt;
    let mut config = read(path)?;
    edit(&mut config, edits)?;
    // As it was: the configuration holds the container's variables, which may be secrets.
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    Ok(cdi::replace(path, &config, mode)?)
}

/// Whether a container gets in already, as by a CDI device.
pub fn is_edited(config: &Value) -> bool {
    config["mounts"].as_array().is_some_and(|mounts| {
        mounts
            .iter()
            .any(|mount| mount["destination"].as_str() == Some(LIBRARIES))
    })
}

/// The variables of the container's process.
pub fn environment(config: &Value) -> Result<Vec<(String, String)>, OciError> {
    let Some(env) = config.pointer("/process/env") else {
        return Ok(Vec::new());
    };
    env.as_array()
        .ok_or(OciError::Field("process.env"))?
        .iter()
        .map(|entry| {
            let entry = entry.as_str().ok_or(OciError::Field("process.env"))?;
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            Ok((name.to_owned(), value.to_owned()))
        })
        .collect()
}

/// Changes `config`; what it has at the same place or by the same name gives way, so that a second
/// edit changes nothing more.
pub fn edit(config: &mut Value, edits: &Edits) -> Result<(), OciError> {
    let root = config.as_object_mut().ok_or(OciError::Field("(root)"))?;

    let mounts = list(root, "mounts")?;
    mounts.retain(|had| {
        let place = had["destination"].as_str();
        !edits
            .mounts
            .iter()
            .any(|mount| Some(mount.to.as_str()) == place)
    });
    mounts.extend(edits.mounts.iter().map(|mount| {
        json!({
            "destination": mount.to,
            "source": mount.from,
            "type": "bind",
            "options": mount.options,
        })
    }));

    let env = list(object(root, "process")?, "env")?;
    env.retain(|had| {
        let name = had.as_str().and_then(|had| had.split('=').next());
        !edits.env.iter().any(|(new, _)| Some(*new) == name)
    });
    env.extend(
        edits
            .env
            .iter()
            .map(|(name, value)| json!(format!("{name}={value}"))),
    );

    let entry = json!({
        "path": edits.create_runtime.path,
        "args": edits.create_runtime.args,
        "env": [cdi::HOOK_PATH],
        "timeout": cdi::HOOK_SECONDS,
    });
    let hooks = list(object(root, "hooks")?, "createRuntime")?;
    if !hooks.contains(&entry) {
        hooks.push(entry);
    }
    Ok(())
}

fn object<'a>(
    of: &'a mut Map<String, Value>,
    name: &'static str,
) -> Result<&'a mut Map<String, Value>, OciError> {
    let field = of.entry(name).or_insert(Value::Null);
    if field.is_null() {
        *field = json!({});
    }
    field.as_object_mut().ok_or(OciError::Field(name))
}

fn list<'a>(
    of: &'a mut Map<String, Value>,
    name: &'static str,
) -> Result<&'a mut Vec<Value>, OciError> {
    let field = of.entry(name).or_insert(Value::Null);
    if field.is_null() {
        *field = json!([]);
    }
    field.as_array_mut().ok_or(OciError::Field(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edits::tests::lease;
    use crate::{Quota, Source, edits};

    #[test]
    fn an_edit_keeps_what_it_does_not_know_and_a_second_changes_nothing() {
        let quota = Quota::of_environment([("SLUICE_MEMORY", "2GiB")]).unwrap();
        let edits = edits(&Source::Device(quota), &lease()).unwrap();
        let mut config = json!({
            "ociVersion": "1.0.2",
            "process": { "env": ["PATH=/bin", "SLUICE_MEMORY=9TiB"], "cwd": "/" },
            "mounts": [{ "destination": "/proc" }, { "destination": "/etc/ld.so.preload" }],
            "hooks": null,
            "x": 1,
        });
        assert!(!is_edited(&config));
        edit(&mut config, &edits).unwrap();
        assert!(is_edited(&config));
        let once = config.clone();
        edit(&mut config, &edits).unwrap();
        assert_eq!(config, once);
        assert_eq!(config["x"], 1);
        assert_eq!(
            config["process"]["env"],
            json!(["PATH=/bin", "SLUICE_MEMORY=2GiB"])
        );
        assert_eq!(config["mounts"].as_array().unwrap().len(), 4);
        assert_eq!(
            config["hooks"]["createRuntime"].as_array().unwrap().len(),
            1
        );
    }

    #[test]
    fn a_file_that_is_not_as_oci_says_stays_as_it_is() {
        let edits = edits(&Source::Environment, &lease()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for text in ["[]", "{\"mounts\": 3}", "{"] {
            std::fs::write(&path, text).unwrap();
            edit_file(&path, &edits).unwrap_err();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
