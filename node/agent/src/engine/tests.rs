mod commands;
mod crash;
mod frames;
mod rig;
mod scenario;
mod secrets;
