//! How large a policy may be. Policies are written by tenants and evaluated on every request, so each dimension that
//! costs memory or decision time is bounded.

/// Bytes of one document. Ten times a long hand-written policy; also bounds what the JSON reader may build.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024;
/// Statements of one document.
pub const STATEMENTS_MAX: usize = 128;
/// Actions of one statement. More than any service has, so a list never needs splitting.
pub const ACTIONS_MAX: usize = 128;
/// Resources of one statement.
pub const RESOURCES_MAX: usize = 128;
/// Conditions of one statement: pairs of an operator and an attribute.
pub const CONDITIONS_MAX: usize = 64;
/// Values of one condition. They are compared one after another.
pub const VALUES_MAX: usize = 128;
/// Bytes of one action, resource or text value. Matching costs at most the product of pattern and text, so this
/// is the largest factor a policy can put on a request's length.
pub const PATTERN_BYTES_MAX: usize = 512;
/// Bytes of a statement id: it is quoted in audit records and error details.
pub const SID_BYTES_MAX: usize = 64;
/// Bytes of an attribute name with its namespace. Fits `resource.labels.` and a Kubernetes label key of usual length.
pub const ATTRIBUTE_BYTES_MAX: usize = 128;

/// Attributes of one request read from JSON ([`crate::Attributes::from_json`]).
pub const ATTRIBUTES_MAX: usize = 256;
/// Elements of one list attribute read from JSON.
pub const ATTRIBUTE_ELEMENTS_MAX: usize = 256;
/// Bytes of one text attribute read from JSON.
pub const ATTRIBUTE_TEXT_BYTES_MAX: usize = 4096;

/// Bytes of foreign text quoted in an error, so that an error is never as large as its input.
pub(crate) const QUOTE_CHARS_MAX: usize = 64;
