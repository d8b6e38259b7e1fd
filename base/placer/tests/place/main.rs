//! Placement from outside: what is chosen, what is refused and why, and that the index and a plain scan agree.

mod booking;
mod choosing;
mod differential;
mod explaining;
mod fixture;
mod naive;
