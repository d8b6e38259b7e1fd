//! Threads for connections alone. A fleet that comes back at one instant is some hundred handshakes that can all go on: on shared
//! threads, whatever waits for the database would stand behind all of them each time the database answers, the lease's renewal too.

use tokio::runtime::{Builder, EnterGuard, Runtime};

pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    /// As many as there are processors. A system that gives none has connections share the caller's.
    pub(crate) fn start() -> Self {
        match Builder::new_multi_thread().thread_name("gateway-connections").enable_all().build() {
            Ok(runtime) => Self(Some(runtime)),
            Err(err) => {
                tracing::warn!(err = %err, "connections have no threads of their own");
                Self(None)
            }
        }
    }

    /// What is spawned while this is held runs there, and what that spawns.
    pub(crate) fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Whatever connection is left ends where it is.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
