//! Bounds of everything that crosses the session, with the reason for each.

/// A frame in either direction. A full spec is the largest thing that travels, plus its envelope.
pub const FRAME_BYTES_MAX: usize = SPEC_BODY_BYTES_MAX + 64 * 1024;
/// A command's signed body: enough for a list of every device of a rack.
pub const COMMAND_BODY_BYTES_MAX: usize = 1 << 20;
/// A spec's signed body: some thousand instances.
pub const SPEC_BODY_BYTES_MAX: usize = 4 << 20;
/// A command's result: a log bundle without an upload URL is cut to 256 KiB, and the rest is small.
pub const RESULT_BYTES_MAX: usize = 512 * 1024;
/// One event's report.
pub const REPORT_BYTES_MAX: usize = 64 * 1024;
/// Events of one batch: what one database statement stores comfortably.
pub const EVENTS_PER_BATCH_MAX: usize = 256;
/// One inventory section as JSON: eight GPUs take 20 KiB, a chassis of drives 100 KiB.
pub const INVENTORY_SECTION_BYTES_MAX: usize = 1 << 20;
/// A certificate request for a P-256 key is 300 to 600 bytes.
pub const CSR_BYTES_MAX: usize = 4096;
/// A sealed join payload.
pub const SEALED_TOKEN_BYTES_MAX: usize = 8192;
/// Conditions of one node: a few for each of 16 GPUs and 64 disks.
pub const CONDITIONS_MAX: usize = 512;
/// Unsettled results and in-flight commands in one Hello; the lanes admit 22 at once, acks lag at worst by a few minutes.
pub const HELLO_COMMANDS_MAX: usize = 1024;
/// The data of one chunk of an image: enough that its frame costs nothing beside it.
pub const IMAGE_CHUNK_BYTES_MAX: usize = 256 * 1024;
/// An exec ticket: ids, a digest and times.
pub const TICKET_BYTES_MAX: usize = 2 * 1024;
/// A ticket with a worker's signature and certificate.
pub const SIGNED_TICKET_BYTES_MAX: usize = TICKET_BYTES_MAX + 4 * 1024;
/// The first message of an end of a tunnel, and what answers it.
pub const TUNNEL_MESSAGE_BYTES_MAX: usize = SIGNED_TICKET_BYTES_MAX + 256;
/// A secret's value: user data is the longest, and cloud-init takes no more from some clouds either.
pub const SECRET_VALUE_BYTES_MAX: usize = 64 * 1024;
/// The signed body of a node's request for a secret: ids, a key and a time.
pub const SECRET_BODY_BYTES_MAX: usize = 2 * 1024;
/// Such a request with its signature.
pub const SECRET_REQUEST_BYTES_MAX: usize = SECRET_BODY_BYTES_MAX + 1024;
/// The signed body of an answer: a sealed value in base64url.
pub const SECRET_ANSWER_BODY_BYTES_MAX: usize = SECRET_VALUE_BYTES_MAX / 3 * 4 + 8 * 1024;
/// Such an answer with a worker's signature and certificate.
pub const SECRET_ANSWER_BYTES_MAX: usize = SECRET_ANSWER_BODY_BYTES_MAX + 4 * 1024;
/// Requests for secrets that a node has under way at once: each is a worker's for a moment.
pub const SECRETS_AT_ONCE_MAX: usize = 8;
/// Any name or short text a node reports.
pub const TEXT_BYTES_MAX: usize = 1024;
/// One instance of a spec: with keys and addresses at their most.
pub const INSTANCE_BYTES_MAX: usize = 256 * 1024;
/// Instances of one report: with their words at their longest they fit one event.
pub const INSTANCES_PER_REPORT_MAX: usize = 64;
/// One stable word on an instance.
pub const INSTANCE_REASON_BYTES_MAX: usize = 64;
/// What is told of an instance.
pub const INSTANCE_TEXT_BYTES_MAX: usize = 512;
