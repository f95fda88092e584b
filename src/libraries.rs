//! Where the shared libraries lie: beside the installed program, else where the build put them.

use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};

/// What a complete folder holds, relative to it. The links of the stand-in are not among them:
/// nothing of ours needs them.
pub(crate) const FILES: [&str; 8] = [
    "libsluice.so",
    "libsluice-cuda.so",
    "libsluice-cuda-1.so",
    "libsluice-nvml.so",
    "libsluice-nvml-1.so",
    "ld.so.preload",
    "stand-in/libcuda.so.1",
    "stand-in/libnvidia-ml.so.1",
];

/// Names without a version in the stand-in's folder, and the file that each leads to.
pub(crate) const LINKS: [(&str, &str); 2] = [
    ("stand-in/libcuda.so", "libcuda.so.1"),
    ("stand-in/libnvidia-ml.so", "libnvidia-ml.so.1"),
];

/// A complete folder of libraries.
#[derive(Debug, Clone)]
pub(crate) struct Libraries(PathBuf);

impl Libraries {
    /// Finds `../lib/sluice` beside the program, as `sluice install` lays it down; where there is no
    /// such folder, the one that this program was built with.
    ///
    /// # Errors
    /// There is neither, or a file is missing.
    pub(crate) fn find() -> Result<Self> {
        let program = env::current_exe().context("cannot tell where this program lies")?;
        let installed = program
            .parent()
            .and_then(Path::parent)
            .map(|prefix| prefix.join("lib/sluice"))
            .filter(|folder| folder.join(FILES[0]).exists());
        Self::at(installed.unwrap_or_else(|| PathBuf::from(env!("SLUICE_LIBRARIES"))))
    }

    /// Those in `folder`.
    ///
    /// # Errors
    /// A file is missing.
    pub(crate) fn at(folder: PathBuf) -> Result<Self> {
        for file in FILES {
            let path = folder.join(file);
            if !path.is_file() {
                bail!(
                    "the library {} is missing; build the program again, or lay it down with \
                     `sluice install DIR` and run DIR/bin/sluice",
                    path.display()
                );
            }
        }
        Ok(Self(folder))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// The folder of the stand-in's client libraries.
    pub(crate) fn stand_in(&self) -> PathBuf {
        self.0.join("stand-in")
    }

    /// What `LD_PRELOAD` has to be: the shim before whatever is in `present`.
    ///
    /// # Errors
    /// The folder's name has a character that the dynamic loader reads as something else.
    pub(crate) fn preload(&self, present: Option<&str>) -> Result<String> {
        let shim = self.0.join(FILES[0]);
        let shim = shim
            .to_str()
            .filter(|path| !path.contains([' ', ':', '$', '\t', '\n']))
            .with_context(|| {
                format!(
                    "{} cannot be named in LD_PRELOAD, where spaces, colons and dollar signs mean \
                     something; `sluice install` it into a folder without them",
                    shim.display()
                )
            })?;
        Ok(match present {
            Some(others) if !others.is_empty() => format!("{shim}:{others}"),
            _ => shim.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_goes_before_what_is_preloaded_already() {
        let libraries = Libraries(PathBuf::from("/opt/sluice"));
        let alone = libraries.preload(None).expect("a plain path");
        assert_eq!(alone, "/opt/sluice/libsluice.so");
        let both = libraries
            .preload(Some("liba.so libb.so"))
            .expect("a plain path");
        assert_eq!(both, "/opt/sluice/libsluice.so:liba.so libb.so");
        assert_eq!(libraries.preload(Some("")).expect("a plain path"), alone);
    }

    #[test]
    fn a_folder_that_the_loader_would_misread_is_refused() {
        for folder in ["/opt/my sluice", "/opt/a:b", "/opt/$ORIGIN"] {
            let error = Libraries(PathBuf::from(folder))
                .preload(None)
                .expect_err(folder);
            assert!(error.to_string().contains(folder), "{error}");
        }
    }
}
