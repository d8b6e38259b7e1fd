//! Who may do what, through the pipeline, on a real database.

mod bootstrap;
mod decisions;
mod matrix;
mod methods;
mod records;
mod tenants;
mod world;
