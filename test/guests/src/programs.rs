//! Programs of the system's.

use std::path::PathBuf;

use anyhow::bail;

pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Names, all at once, the packages of the programs that are missing.
pub fn check(tools: &[(&str, &str)]) -> anyhow::Result<()> {
    let missing = tools.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package);
    let mut packages: Vec<&str> = missing.collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    bail!(
        "virtual machines need more packages; run this, then try again:\n\n  \
         sudo apt-get install -y --no-install-recommends {}\n",
        packages.join(" ")
    )
}

/// With the folders in it that users' paths may lack.
pub fn path_with_sbin() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}
