//! Tunnels against a real PostgreSQL.

mod calls;
mod life;
mod rights;
mod ssh;
mod statements;
mod taking;
mod world;
