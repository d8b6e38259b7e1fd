//! Memory pressure and stolen CPU time, with hysteresis: what is raised clears only well below where it was raised.

use agent::converge::Fact;
use model::condition::Severity;
use wire::inventory::PressureReport;
use wire::proto::agent::Pressure;

/// In hundredths of a percent. Memory: every task waited, over a minute. Steal: over one period.
const MEMORY_RAISED: u32 = 10_00;
const MEMORY_CLEARED: u32 = 2_00;
const STEAL_RAISED: u32 = 20_00;
const STEAL_CLEARED: u32 = 5_00;

#[derive(Debug, Default)]
pub struct Judge {
    memory: bool,
    steal: bool,
}

impl Judge {
    /// One reading a period.
    pub fn take(&mut self, report: &PressureReport) {
        let memory = report.memory.and_then(|memory| memory.full).map(|full| full.avg60_centi_percent);
        if let Some(level) = memory {
            self.memory = level >= if self.memory { MEMORY_CLEARED } else { MEMORY_RAISED };
        }
        if let Some(level) = report.steal_centi_percent {
            self.steal = level >= if self.steal { STEAL_CLEARED } else { STEAL_RAISED };
        }
    }

    pub fn facts(&self) -> Vec<Fact> {
        let fact = |kind: &str, message: &str| Fact {
            kind: kind.into(),
            severity: Severity::Warning,
            device: String::new(),
            reason: "High".into(),
            message: message.into(),
            age: None,
        };
        let memory = self.memory.then(|| {
            fact(
                "MemoryPressure",
                "everything on this host waits for memory a tenth of the time; clears below 2%",
            )
        });
        let steal = self.steal.then(|| {
            fact("CpuSteal", "this host's own hypervisor takes a fifth of its CPU time; clears below 5%")
        });
        memory.into_iter().chain(steal).collect()
    }
}

/// For a status report. What could not be read counts as none.
pub fn render(report: &PressureReport) -> Pressure {
    let of = |pressure: Option<wire::inventory::Pressure>| {
        let pressure = pressure.unwrap_or_default();
        let avg10 =
            |line: Option<wire::inventory::PressureLine>| line.map_or(0, |line| line.avg10_centi_percent);
        (avg10(pressure.some), avg10(pressure.full))
    };
    let (cpu_some_avg10, _) = of(report.cpu);
    let (memory_some_avg10, memory_full_avg10) = of(report.memory);
    let (io_some_avg10, io_full_avg10) = of(report.io);
    Pressure {
        cpu_some_avg10,
        memory_some_avg10,
        memory_full_avg10,
        io_some_avg10,
        io_full_avg10,
        steal: report.steal_centi_percent.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
