//! Tunnels against a real PostgreSQL.

mod calls;
mod life;
mod rights;
mod statements;
mod taking;
mod world;
