//! Sections of a NodeSpec this daemon converges, each in its folder: `plan` decides and looks at nothing, `observe`
//! looks, `apply` acts.

pub mod access;
pub mod devices;
pub mod instances;
