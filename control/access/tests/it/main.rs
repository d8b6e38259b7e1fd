//! Tunnels against a real PostgreSQL.

mod statements;
