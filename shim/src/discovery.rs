//! Where the real libraries may be.
//!
//! In this order: the path that a variable names (then nothing else counts), `LD_LIBRARY_PATH`, the
//! loader's cache, and the folders of distributions and container toolkits. Always absolute paths.

use crate::real::Library;
use ffi::wire::{ENV_LIBCUDA, ENV_LIBNVML};
use std::env;
use std::path::{Path, PathBuf};

/// Where drivers are put where neither the search path nor the cache tells: Debian's and Fedora's
/// library folders, the container toolkit's, WSL's, NixOS's.
const FOLDERS: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// The loader's cache.
const CACHE: &str = "/etc/ld.so.cache";

/// Paths to try, best first; each exists.
pub(crate) fn candidates(library: Library) -> Vec<PathBuf> {
    let variable = match library {
        Library::Driver => ENV_LIBCUDA,
        Library::Nvml => ENV_LIBNVML,
    };
    if let Some(path) = env::var_os(variable).map(PathBuf::from)
        && path.is_absolute()
    {
        return vec![path];
    }
    let name = library.soname();
    let search_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut paths: Vec<PathBuf> = env::split_paths(&search_path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .collect();
    if let Ok(cache) = std::fs::read(CACHE) {
        paths.extend(cached(&cache, name));
    }
    paths.extend(FOLDERS.iter().map(|folder| Path::new(folder).join(name)));
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        if path.exists() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// Kind of library in the cache: for glibc, this machine, 64 bits.
///
/// Source: glibc `sysdeps/generic/ldconfig.h`, `FLAG_ELF_LIBC6` with `FLAG_X8664_LIB64` or
/// `FLAG_AARCH64_LIB64`.
#[cfg(target_arch = "x86_64")]
const CACHE_FLAGS: u32 = 0x0303;
#[cfg(target_arch = "aarch64")]
const CACHE_FLAGS: u32 = 0x0a03;

/// Paths that the loader's cache has for `name`.
///
/// Source: glibc `sysdeps/generic/dl-cache.h`, `struct cache_file_new`: a magic of 20 bytes, the
/// number of entries, and after 48 bytes entries of 24 bytes (flags, key, value, then what we do not
/// need); key and value are offsets of strings from the beginning of the header.
fn cached(cache: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    let Some(start) = cache
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)
    else {
        return Vec::new();
    };
    let Some(file) = cache.get(start..) else {
        return Vec::new();
    };
    let count = word(file, 20).unwrap_or(0);
    (0..count as usize)
        .map_while(|index| {
            let entry = 48 + index * 24;
            Some((
                word(file, entry)?,
                word(file, entry + 4)? as usize,
                word(file, entry + 8)? as usize,
            ))
        })
        .filter(|(flags, key, _)| *flags == CACHE_FLAGS && text(file, *key) == Some(name))
        .filter_map(|(_, _, value)| text(file, value).map(PathBuf::from))
        .collect()
}

fn word(file: &[u8], at: usize) -> Option<u32> {
    let bytes = file.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn text(file: &[u8], at: usize) -> Option<&str> {
    let rest = file.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_with(entries: &[(u32, &str, &str)]) -> Vec<u8> {
        let mut file = b"glibc-ld.so.cache1.1".to_vec();
        file.extend((entries.len() as u32).to_ne_bytes());
        file.resize(48, 0);
        let mut strings = Vec::new();
        let base = 48 + entries.len() * 24;
        for (flags, key, value) in entries {
            let key_at = (base + strings.len()) as u32;
            strings.extend(key.bytes().chain([0]));
            let value_at = (base + strings.len()) as u32;
            strings.extend(value.bytes().chain([0]));
            file.extend(flags.to_ne_bytes());
            file.extend(key_at.to_ne_bytes());
            file.extend(value_at.to_ne_bytes());
            file.extend([0; 12]);
        }
        file.extend(strings);
        file
    }

    #[test]
    fn the_loader_s_cache_gives_the_library_of_this_machine() {
        let cache = cache_with(&[
            (CACHE_FLAGS, "libc.so.6", "/lib/libc.so.6"),
            (3, "libcuda.so.1", "/lib32/libcuda.so.1"),
            (CACHE_FLAGS, "libcuda.so.1", "/opt/driver/libcuda.so.1"),
        ]);
        assert_eq!(
            cached(&cache, "libcuda.so.1"),
            [PathBuf::from("/opt/driver/libcuda.so.1")]
        );
    }

    #[test]
    fn a_cache_cut_off_anywhere_gives_what_is_whole_and_no_more() {
        let cache = cache_with(&[(CACHE_FLAGS, "libcuda.so.1", "/opt/driver/libcuda.so.1")]);
        for end in 0..cache.len() {
            assert!(cached(&cache[..end], "libcuda.so.1").is_empty());
        }
    }

    #[test]
    fn this_machine_s_own_cache_knows_its_libc() {
        let cache = std::fs::read(CACHE).expect("glibc machines have a loader cache");
        assert!(!cached(&cache, "libc.so.6").is_empty());
    }
}
