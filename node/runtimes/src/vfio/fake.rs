//! Devices that exist only in memory, with the kernel's rules, which may die between any two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kit::fs::FsError;

use super::{Device, Pci, PciAddress};

#[derive(Debug, Clone)]
struct Slot {
    class: u32,
    /// None without an IOMMU.
    group: Option<u32>,
    /// The driver that takes it when it is probed.
    native: Option<String>,
    driver: Option<String>,
    only: Option<String>,
    /// Its driver does not let go of it.
    is_open: bool,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<PciAddress, Slot>,
    loaded: BTreeSet<String>,
    /// So many changes more are made, and then nothing is.
    left: Option<u32>,
    changes: u32,
}

#[derive(Debug, Default)]
pub struct FakePci(Mutex<State>);

impl FakePci {
    /// A host with these drivers loaded.
    pub fn with_drivers(drivers: &[&str]) -> Self {
        let loaded = drivers.iter().map(|driver| (*driver).to_owned()).collect();
        Self(Mutex::new(State { loaded, ..State::default() }))
    }

    /// Adds a device that its driver has.
    pub fn add(&self, address: &PciAddress, class: u32, group: Option<u32>, native: Option<&str>) {
        let native = native.map(str::to_owned);
        let driver = native.clone();
        let slot = Slot { class, group, native, driver, only: None, is_open: false };
        self.state().slots.insert(address.clone(), slot);
    }

    /// Makes so many changes and then none, until told otherwise by none: as for a daemon that dies there.
    pub fn cut_short(&self, after: Option<u32>) {
        self.state().left = after;
    }

    pub fn changes(&self) -> u32 {
        self.state().changes
    }

    /// Somebody opens it, or closes it.
    pub fn set_open(&self, address: &PciAddress, is_open: bool) {
        if let Some(slot) = self.state().slots.get_mut(address) {
            slot.is_open = is_open;
        }
    }

    /// The machine boots anew: every device is its driver's, and nothing is overridden.
    pub fn reboot(&self) {
        for slot in self.state().slots.values_mut() {
            (slot.driver, slot.only) = (slot.native.clone(), None);
        }
    }

    /// The driver and the override of each device.
    pub fn bindings(&self) -> BTreeMap<String, (Option<String>, Option<String>)> {
        let state = self.state();
        let of = |(address, slot): (&PciAddress, &Slot)| {
            (address.to_string(), (slot.driver.clone(), slot.only.clone()))
        };
        state.slots.iter().map(of).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        doing: &'static str,
        address: &PciAddress,
        change: impl FnOnce(&mut Slot, &BTreeSet<String>) -> Result<(), &'static str>,
    ) -> Result<(), FsError> {
        let failed =
            |why: &str| FsError { doing, path: address.as_str().into(), source: std::io::Error::other(why) };
        let mut state = self.state();
        match &mut state.left {
            Some(0) => return Err(failed("told to fail")),
            Some(left) => *left -= 1,
            None => {}
        }
        state.changes += 1;
        let State { slots, loaded, .. } = &mut *state;
        let slot = slots.get_mut(address).ok_or_else(|| failed("no such device"))?;
        change(slot, loaded).map_err(failed)
    }
}

impl Pci for FakePci {
    fn is_there(&self, device: &PciAddress) -> bool {
        self.state().slots.contains_key(device)
    }

    fn group(&self, device: &PciAddress) -> Result<Option<Vec<Device>>, FsError> {
        let state = self.state();
        let Some(group) = state.slots.get(device).and_then(|slot| slot.group) else { return Ok(None) };
        let of = |(address, slot): (&PciAddress, &Slot)| Device {
            address: address.clone(),
            class: slot.class,
            driver: slot.driver.clone(),
        };
        Ok(Some(state.slots.iter().filter(|(_, slot)| slot.group == Some(group)).map(of).collect()))
    }

    fn driver(&self, device: &PciAddress) -> Result<Option<String>, FsError> {
        Ok(self.state().slots.get(device).and_then(|slot| slot.driver.clone()))
    }

    fn has_driver(&self, driver: &str) -> bool {
        self.state().loaded.contains(driver)
    }

    fn set_override(&self, device: &PciAddress, driver: Option<&str>) -> Result<(), FsError> {
        self.change("override", device, |slot, _| {
            slot.only = driver.map(str::to_owned);
            Ok(())
        })
    }

    fn unbind(&self, device: &PciAddress) -> Result<(), FsError> {
        self.change("unbind", device, |slot, _| match (&slot.driver, slot.is_open) {
            (None, _) => Err("it has no driver"),
            (Some(_), true) => Err("it is open"),
            (Some(_), false) => {
                slot.driver = None;
                Ok(())
            }
        })
    }

    fn probe(&self, device: &PciAddress) -> Result<(), FsError> {
        self.change("probe", device, |slot, loaded| {
            let takes = slot.only.clone().or_else(|| slot.native.clone());
            if slot.driver.is_none() {
                slot.driver = takes.filter(|driver| loaded.contains(driver));
            }
            Ok(())
        })
    }
}
