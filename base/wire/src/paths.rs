//! gRPC method paths of `AgentGateway`, and the protocol versions in use.

pub const SERVICE: &str = "bettercompute.agent.v1.AgentGateway";
pub const JOIN: &str = "/bettercompute.agent.v1.AgentGateway/Join";
pub const RENEW: &str = "/bettercompute.agent.v1.AgentGateway/Renew";
pub const IMAGE: &str = "/bettercompute.agent.v1.AgentGateway/Image";
pub const SESSION: &str = "/bettercompute.agent.v1.AgentGateway/Session";

/// The newest protocol version this code speaks.
pub const PROTOCOL_MAX: u32 = 1;
/// The oldest it still speaks.
pub const PROTOCOL_MIN: u32 = 1;

/// Answered with a busy refusal: how long to wait before the next try, in milliseconds (gRFC A6).
pub const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";
