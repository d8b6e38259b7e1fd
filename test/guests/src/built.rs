//! What is made once and kept below the target folder.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Beside the profiles' folders, which all use the same.
pub fn below_target(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // target/<profile>/deps/<test>
    let deps = test.parent().filter(|deps| deps.ends_with("deps"));
    let target =
        deps.and_then(|deps| deps.ancestors().nth(2)).context("the test lies in no target folder")?;
    Ok(target.join(name))
}

/// The folder of what `recipe` names below `folder`, which holds nothing else. When it is not there, `make` fills `out` below a
/// folder to work in. Whoever else wants it meanwhile waits.
pub fn once(
    folder: &Path,
    recipe: u64,
    make: impl FnOnce(&Path, &Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let made = folder.join(format!("{recipe:016x}"));
    let lock = File::create(folder.join("lock"))?;
    lock.lock().with_context(|| format!("wait for another build in {}", folder.display()))?;
    if made.is_dir() {
        return Ok(made);
    }
    remove_others(folder)?;
    let work = folder.join("building");
    let out = work.join("out");
    std::fs::create_dir_all(&out)?;
    make(&work, &out)?;
    std::fs::rename(&out, &made)?;
    std::fs::remove_dir_all(&work)?;
    Ok(made)
}

/// What was made of older recipes, and what a build that was cut short left.
fn remove_others(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
