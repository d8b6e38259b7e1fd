mod crash;
mod frames;
mod rig;
mod scenario;
