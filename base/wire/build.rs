//! Compiles the protocol without an external compiler, and keeps its descriptors for the baseline test.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let descriptors = protox::compile(
        [
            "bettercompute/common/v1/common.proto",
            "bettercompute/agent/v1/agent.proto",
            "bettercompute/agent/v1/command.proto",
            "bettercompute/agent/v1/secret.proto",
            "bettercompute/agent/v1/spec.proto",
            "bettercompute/agent/v1/tunnel.proto",
        ],
        ["../../proto"],
    )?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.binpb"), descriptors.encode_to_vec())?;
    let mut config = prost_build::Config::new();
    // Maps are ordered, so that the same message is the same bytes.
    config.btree_map(["."]);
    config.bytes(["."]);
    config.compile_fds(descriptors)?;
    Ok(())
}
