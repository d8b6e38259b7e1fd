//! What a signature is for. Every signed message is framed by its purpose, so that no signature made for one thing
//! can be shown as a signature over another.

use std::fmt;

/// What every framed message starts with. The version names the framing, not a body's format.
pub const FRAME_PREFIX: &[u8] = b"better-compute/v1/";

macro_rules! purposes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The closed set of things this project signs. The text is part of the signed bytes: it never changes once used.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Purpose { $($(#[$doc])* $name,)* }

        impl Purpose {
            pub const ALL: &'static [Purpose] = &[$(Purpose::$name),*];

            /// The stable text inside the frame: `[a-z0-9-]`, and no text is used twice.
            pub const fn text(self) -> &'static str {
                match self { $(Purpose::$name => $text),* }
            }
        }
    };
}

purposes! {
    /// A command body, signed by a worker key.
    Command = "command",
    /// A full node spec of one generation, signed by a worker key.
    DesiredState = "desired-state",
    /// The answer to a join or a renewal, signed by the join-signing key.
    JoinResponse = "join-response",
    /// A trust bundle, signed by the join-signing key.
    TrustBundle = "trust-bundle",
    /// A worker key's certificate, signed by a command-signing root key.
    WorkerKey = "worker-key",
    /// A command's result, signed by the node's key.
    AttestedResult = "attested-result",
    /// A report about an allocation, signed by the node's key.
    AttestedReport = "attested-report",
    /// A renewal's proof of possession, signed by the key being replaced.
    RenewProof = "renew-proof",
    /// The deployment's epoch, signed by a worker key.
    DeploymentEpoch = "deployment-epoch",
    /// A node asking for a secret's value, signed by the node's key.
    SecretRequest = "secret-request",
    /// The answer to a node's request for a secret's value, signed by a worker key.
    SecretAnswer = "secret-answer",
    /// A node asking for a workload identity token, signed by the node's key.
    WorkloadTokenRequest = "workload-token-request",
    /// Permission to open one tunnel, signed by a worker key.
    ExecTicket = "exec-ticket",
    /// A node's proof to a gateway where TLS client certificates cannot reach it, signed by the node's key.
    SessionProof = "session-proof",
    /// A gateway's proof to a node in the same place, signed by the gateway's serving key.
    GatewayProof = "gateway-proof",
    /// The boot server's statement about a machine it served, signed by the site agent's key.
    DiscoveryAssertion = "discovery-assertion",
    /// An operator's approval of a destructive batch.
    BatchApproval = "batch-approval",
    /// A change of the operators who approve, signed by the current ones.
    ApproverSet = "approver-set",
    /// A release manifest for self-update, signed by a release key.
    ReleaseManifest = "release-manifest",
    /// An entry of the audit chain.
    AuditHead = "audit-head",
}

impl Purpose {
    /// The bytes that precede the body: `better-compute/v1/` + purpose + 0x00. The purpose text holds no zero byte,
    /// so the frame splits in one way only.
    pub(crate) fn frame(self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(FRAME_PREFIX.len() + self.text().len() + 1);
        frame.extend_from_slice(FRAME_PREFIX);
        frame.extend_from_slice(self.text().as_bytes());
        frame.push(0);
        frame
    }

    /// The exact bytes a signature under this purpose covers, for a signer outside this crate, such as a TPM.
    pub fn message(self, body: &[u8]) -> Vec<u8> {
        let mut message = self.frame();
        message.extend_from_slice(body);
        message
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests;
