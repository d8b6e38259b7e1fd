//! `cargo xtask tiny-image`: a guest to try instances with, for who has no image at hand.

use std::path::PathBuf;

use anyhow::Context;

use crate::packages;

#[derive(clap::Args)]
pub struct Args {
    /// Copies the disk here. Without it, its place in the target folder is printed.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    packages::ensure(&packages::TINY_IMAGE)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let disk = guests::Tiny::built_in(&PathBuf::from(target).join("tiny"))?.disk();
    let path = match &args.out {
        None => disk,
        Some(out) => {
            std::fs::copy(&disk, out).with_context(|| format!("copy the disk to {}", out.display()))?;
            out.clone()
        }
    };
    println!("{}", path.display());
    Ok(())
}
