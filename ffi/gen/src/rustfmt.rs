//! Formats generated text as `cargo fmt` would, so that formatting never makes it stale.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `text` through `rustfmt` for the edition of the workspace.
pub(crate) fn format(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rustfmt; `rustup component add rustfmt` installs it")?;
    let mut stdin = child.stdin.take().context("rustfmt has no input")?;
    let text = text.to_owned();
    // On a thread of its own: rustfmt may fill its output pipe before it has read all.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() || !matches!(writer.join(), Ok(Ok(()))) {
        bail!("rustfmt refused the generated text: {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}
