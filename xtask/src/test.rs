//! `cargo xtask test`: everything that the tests need, then all of them.

use crate::{packages, run};

pub fn run(args: &[String]) -> anyhow::Result<()> {
    let mut needed = vec![
        packages::POSTGRESQL,
        packages::OPENSSH_CLIENT,
        packages::OPENSSH_SERVER,
        packages::IPROUTE,
        packages::NFTABLES,
        packages::MMDEBSTRAP,
    ];
    needed.extend(packages::LIBVIRT);
    needed.extend(packages::TINY_IMAGE);
    packages::ensure(&needed)?;
    if args.is_empty() {
        // End-to-end tests start the real programs.
        run::must(run::cargo().args(["build", "--workspace", "--bins", "--locked"]))?;
        return run::must(run::cargo().args(["test", "--workspace", "--locked", "--no-fail-fast"]));
    }
    run::must(run::cargo().args(["build", "--bins", "--locked"]))?;
    run::must(run::cargo().arg("test").args(args))
}
