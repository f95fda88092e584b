//! A container of `runc` alone, with `sluice runtime` before it: what docker and containerd call.

use crate::image;
use crate::support::{Node, PATIENCE, Stepper, eventually, finish, kept, sluice};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A bundle, and the container that is made of it.
#[derive(Debug)]
pub(crate) struct Bundle {
    folder: TempDir,
    /// Its id, which no other test has.
    pub(crate) id: String,
}

impl Bundle {
    /// A bundle whose process is a stepper with these variables.
    pub(crate) fn new(variables: &[&str]) -> Self {
        let place = kept("containers").join("bundles");
        fs::create_dir_all(&place).expect("a writable folder");
        let folder = tempfile::Builder::new()
            .prefix("c")
            .tempdir_in(place)
            .expect("a temporary folder");
        let id = format!(
            "sluice-{}-{}",
            std::process::id(),
            folder.path().file_name().expect("a name").display()
        );
        let bundle = Self { folder, id };
        image::copy(&bundle.root());
        symlink(sluice(), bundle.runtime()).expect("a link");
        let made = finish(
            Command::new("runc").arg("spec").current_dir(bundle.path()),
            PATIENCE,
        );
        assert!(made.status.success(), "{made:?}");
        bundle.change(|config| {
            config["process"]["terminal"] = json!(false);
            config["process"]["args"] = json!(["/bin/stepper"]);
            // runc makes the places of mounts itself, for which the root must not be read-only.
            config["root"]["readonly"] = json!(false);
            let env = config["process"]["env"].as_array_mut().expect("a list");
            env.extend(variables.iter().map(|variable| json!(variable)));
        });
        bundle
    }

    /// Its folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its root file system.
    pub(crate) fn root(&self) -> PathBuf {
        self.path().join("rootfs")
    }

    fn runtime(&self) -> PathBuf {
        self.path().join("sluice-runtime")
    }

    /// Changes the configuration.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        let path = self.path().join("config.json");
        let mut config = self.config();
        change(&mut config);
        fs::write(path, config.to_string()).expect("our own file");
    }

    /// The configuration as it is now.
    pub(crate) fn config(&self) -> Value {
        let text = fs::read(self.path().join("config.json")).expect("our own file");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// `sluice runtime` with its own folder of states, for the daemon of `node`.
    pub(crate) fn runtime_command(&self, node: &Node) -> Command {
        let mut command = Command::new(self.runtime());
        command
            .arg("--root")
            .arg(self.path().join("state"))
            .env("SLUICE_RUNTIME_DIR", node.folder())
            .env("SLUICE_CONFIG", node.folder().join("sluice.toml"));
        command
    }

    fn run_command(&self, node: &Node) -> Command {
        let mut command = self.runtime_command(node);
        command
            .args(["run", "--bundle"])
            .arg(self.path())
            .arg(&self.id);
        command
    }

    /// Runs the container, whose process is a stepper.
    pub(crate) fn stepper(&self, node: &Node) -> Stepper {
        Stepper::start(&mut self.run_command(node))
    }

    /// [`Self::stepper`], with a context on device 0.
    #[track_caller]
    pub(crate) fn ready_stepper(&self, node: &Node) -> Stepper {
        ready(self.stepper(node))
    }

    /// Runs the container with another process to its end.
    pub(crate) fn output(&self, node: &Node, arguments: &[&str]) -> Output {
        self.change(|config| config["process"]["args"] = json!(arguments));
        finish(&mut self.run_command(node), PATIENCE)
    }

    /// A program in the running container, as `docker exec` starts it.
    pub(crate) fn exec(&self, node: &Node, arguments: &[&str]) -> Command {
        let mut command = self.runtime_command(node);
        command.arg("exec").arg(&self.id).args(arguments);
        command
    }

    /// `kill -9` for the container, and waits until the runtime says that it is stopped.
    #[track_caller]
    pub(crate) fn kill(&self, node: &Node) {
        let output = finish(
            self.runtime_command(node)
                .args(["kill", "--all", &self.id, "KILL"]),
            PATIENCE,
        );
        assert!(output.status.success(), "{output:?}");
        eventually("the container is gone", PATIENCE, || {
            let state = finish(
                self.runtime_command(node).args(["state", &self.id]),
                PATIENCE,
            );
            let text = String::from_utf8_lossy(&state.stdout).into_owned();
            (!state.status.success() || text.contains("\"stopped\"")).then_some(())
        });
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let mut command = Command::new("runc");
        command
            .arg("--root")
            .arg(self.path().join("state"))
            .args(["delete", "--force", &self.id]);
        _ = command.output();
    }
}

/// A runtime for the daemon of `node`: an engine has no place for a runtime's variables, and some clear them.
pub(crate) fn runtime_script(folder: &Path, node: &Node) -> PathBuf {
    symlink(sluice(), folder.join("sluice-runtime")).expect("a link");
    let text = format!(
        "#!/bin/sh\nexport SLUICE_RUNTIME_DIR='{}' SLUICE_CONFIG='{}'\nexec '{}' \"$@\"\n",
        node.folder().display(),
        node.folder().join("sluice.toml").display(),
        folder.join("sluice-runtime").display(),
    );
    let script = folder.join("runtime");
    fs::write(&script, text).expect("our own folder");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    script
}

/// A stepper with a context on device 0.
#[track_caller]
pub(crate) fn ready(mut stepper: Stepper) -> Stepper {
    stepper.ok("init");
    stepper.ok("context 0");
    stepper
}
