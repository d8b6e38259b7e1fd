//! iam
