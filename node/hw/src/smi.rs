//! `nvidia-smi`: what it prints, parsed, and what its failures mean.
//!
//! The XML of `-q -x` carries nearly everything; MIG UUIDs, placements, compute capability and link counts come from
//! other calls. All drivers since 418 are read with the same code: fields have moved and changed names, so each fact is
//! looked for in every place it has had.

mod error;
mod list;
mod tables;
mod topology;
mod tree;
mod value;
mod xml;

pub use error::{SmiError, classify, command_failed};
pub use list::{Listed, ListedGpu, ListedMig, compute_capabilities, parse as list};
pub use tables::{
    ComputeInstance, GpuInstance, InstanceProfile, compute_instances, gpu_instances, instance_profiles,
};
pub use topology::{TopologyRow, nvlinks_up, topology};
pub use value::gpu_uuid;
pub use xml::{SmiGpu, SmiLog, parse as log};

use crate::commands::{CommandOutput, Commands};

/// The program, found on the commands' path.
pub const PROGRAM: &str = "nvidia-smi";

/// Runs `nvidia-smi` and gives its standard output. A failure becomes the reason it printed.
pub async fn run(commands: &dyn Commands, args: &[&str]) -> Result<String, SmiError> {
    let output = commands.run(PROGRAM, args).await.map_err(|error| command_failed(&error))?;
    accept(&output)
}

fn accept(output: &CommandOutput) -> Result<String, SmiError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.success() {
        return Ok(stdout.into_owned());
    }
    let text = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    Err(classify(&text).unwrap_or_else(|| SmiError::failed(output.code, &text)))
}

/// Collects and parses `-q -x`. The driver may print that a GPU is unreachable and still describe the others: then both
/// come back.
pub async fn query(commands: &dyn Commands) -> Result<SmiLog, SmiError> {
    let output = commands.run(PROGRAM, &["-q", "-x"]).await.map_err(|error| command_failed(&error))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = format!("{}\n{}", before_xml(&stdout), String::from_utf8_lossy(&output.stderr));
    match xml::parse(&stdout) {
        Ok(mut log) => {
            log.problem = log.problem.take().or_else(|| classify(&said));
            if !output.success() && log.problem.is_none() {
                log.problem = Some(SmiError::failed(output.code, &said));
            }
            Ok(log)
        }
        Err(unparsable) => Err(accept(&output).err().or_else(|| classify(&said)).unwrap_or(unparsable)),
    }
}

fn before_xml(stdout: &str) -> &str {
    stdout.find("<?xml").or_else(|| stdout.find("<nvidia_smi_log")).map_or(stdout, |at| &stdout[..at])
}

#[cfg(test)]
mod tests;
