//! The gateway against real sockets and TLS, and both delivery stores against the rules they share.

mod client;
mod deployed;
mod end_to_end;
mod images;
mod in_memory;
mod lab;
mod over_postgres;
mod postgres;
mod rights;
mod tunnels;
