//! Secrets against a real PostgreSQL.

mod broker;
mod keys;
mod methods;
mod statements;
mod world;
