//! `/proc/cpuinfo`, whose keys differ by architecture.

use std::collections::BTreeSet;

use crate::text::clean;

/// The flags that decide what can run on a machine: virtualization, vector units, confidential computing, crypto.
pub const FLAGS_THAT_MATTER: &[&str] = &[
    "aes",
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "asimd",
    "atomics",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512f",
    "bf16",
    "bti",
    "ept",
    "fma",
    "hypervisor",
    "i8mm",
    "la57",
    "lm",
    "npt",
    "paca",
    "pcid",
    "pdpe1gb",
    "sev",
    "sev_es",
    "sev_snp",
    "sgx",
    "sha2",
    "sha_ni",
    "sse4_2",
    "svebf16",
    "sve",
    "sve2",
    "svm",
    "tdx_guest",
    "tdx_host_platform",
    "vmx",
    "x2apic",
];

/// More threads than the kernel supports are not read.
const THREADS_MAX: u32 = wire::inventory::CPUS_MAX;

/// What the file says of the first CPU, and counts over all. Counts are absent where the file does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuInfo {
    pub model: Option<String>,
    pub vendor: Option<String>,
    pub threads: u32,
    pub sockets: Option<u32>,
    pub cores: Option<u32>,
    /// Sorted.
    pub flags: Vec<String>,
}

/// Names of the server cores that name themselves only by numbers: implementer, part, name.
const ARM_PARTS: &[(u32, u32, &str)] = &[
    (0x41, 0xd03, "Cortex-A53"),
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd0c, "Neoverse-N1"),
    (0x41, 0xd40, "Neoverse-V1"),
    (0x41, 0xd49, "Neoverse-N2"),
    (0x41, 0xd4f, "Neoverse-V2"),
    (0x41, 0xd84, "Neoverse-V3"),
    (0x41, 0xd8e, "Neoverse-N3"),
    (0x48, 0xd01, "Kunpeng-920"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1a"),
];

const ARM_IMPLEMENTERS: &[(u32, &str)] = &[
    (0x41, "ARM"),
    (0x42, "Broadcom"),
    (0x43, "Cavium"),
    (0x46, "Fujitsu"),
    (0x48, "HiSilicon"),
    (0x4e, "NVIDIA"),
    (0x50, "APM"),
    (0x51, "Qualcomm"),
    (0x61, "Apple"),
    (0x6d, "Microsoft"),
    (0xc0, "Ampere"),
];

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[derive(Default)]
struct Seen {
    info: CpuInfo,
    package: Option<u32>,
    packages: BTreeSet<u32>,
    cores: BTreeSet<(u32, u32)>,
    implementer: Option<u32>,
    part: Option<u32>,
}

impl Seen {
    fn line(&mut self, key: &str, value: &str) {
        match key {
            "processor" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.info.threads = (self.info.threads + 1).min(THREADS_MAX);
                self.package = None;
            }
            "model name" | "cpu" | "Processor" => {
                self.info.model = self.info.model.take().or_else(|| clean(value))
            }
            "vendor_id" => self.info.vendor = self.info.vendor.take().or_else(|| clean(value)),
            "physical id" => {
                self.package = value.parse().ok();
                self.packages.extend(self.package);
            }
            "core id" => {
                if let (Some(package), Ok(core)) = (self.package, value.parse()) {
                    self.cores.insert((package, core));
                }
            }
            "flags" | "Features" if self.info.flags.is_empty() => {
                let flags: BTreeSet<&str> =
                    value.split_whitespace().filter(|flag| FLAGS_THAT_MATTER.contains(flag)).collect();
                self.info.flags = flags.into_iter().map(str::to_owned).collect();
            }
            "CPU implementer" => self.implementer = self.implementer.or_else(|| hex(value)),
            "CPU part" => self.part = self.part.or_else(|| hex(value)),
            _ => {}
        }
    }

    fn finish(mut self) -> CpuInfo {
        let count = |len: usize| u32::try_from(len).ok().filter(|count| *count > 0);
        self.info.sockets = count(self.packages.len());
        self.info.cores = count(self.cores.len());
        if let Some(implementer) = self.implementer {
            let named = |found: Option<&str>| found.map(str::to_owned);
            self.info.vendor = self.info.vendor.take().or_else(|| {
                named(ARM_IMPLEMENTERS.iter().find(|known| known.0 == implementer).map(|known| known.1))
            });
            self.info.model = self.info.model.take().or_else(|| {
                let known =
                    ARM_PARTS.iter().find(|known| (known.0, Some(known.1)) == (implementer, self.part));
                named(known.map(|known| known.2))
            });
        }
        self.info
    }
}

pub fn parse(text: &str) -> CpuInfo {
    let mut seen = Seen::default();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once(':') {
            seen.line(key.trim(), value.trim());
        }
    }
    seen.finish()
}
