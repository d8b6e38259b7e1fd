//! `bcd hardware`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use hw::{Hardware, HostCommands, HostHardware, Root, report::HardwareReport};

#[derive(Args)]
pub struct HardwareArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub async fn run(args: HardwareArgs) -> anyhow::Result<ExitCode> {
    let host = HostHardware::new(Root::host(), Arc::new(HostCommands::default()));
    let report = HardwareReport::new(host.inventory().await, host.gpu_samples().await);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}
