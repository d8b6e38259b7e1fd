//! A link that can be slow or cut.

use std::sync::Arc;
use std::time::Duration;

use agent::link::{Connection, Credentials, Link, LinkError};
use futures::StreamExt;
use futures::future::BoxFuture;
use kit::Clock;
use tokio::sync::watch;
use wire::proto::agent::{JoinReply, JoinRequest, RenewReply, RenewRequest};

/// What a slow link adds to each frame that comes in.
const DELAY: Duration = Duration::from_millis(800);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    slow: bool,
    cut: bool,
}

pub struct SimLink {
    inner: Arc<dyn Link>,
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
}

impl SimLink {
    pub fn new(inner: Arc<dyn Link>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, state: watch::Sender::new(State::default()) }
    }

    pub fn set_slow(&self, on: bool) {
        self.state.send_modify(|state| state.slow = on);
    }

    pub fn set_partitioned(&self, on: bool) {
        self.state.send_modify(|state| state.cut = on);
    }
}

fn cut() -> LinkError {
    LinkError::new("reach the gateway", "the simulated network is cut")
}

impl Link for SimLink {
    fn connect(&self, credentials: &Credentials) -> BoxFuture<'static, Result<Connection, LinkError>> {
        let connecting = self.inner.connect(credentials);
        let (mut state, clock) = (self.state.subscribe(), self.clock.clone());
        Box::pin(async move {
            if state.borrow().cut {
                return Err(cut());
            }
            let Connection { outgoing, incoming } = connecting.await?;
            let delays = state.clone();
            let slowed = incoming.then(move |frame| {
                let pause = delays.borrow().slow.then(|| clock.sleep(DELAY));
                async move {
                    if let Some(pause) = pause {
                        pause.await;
                    }
                    frame
                }
            });
            // A cut ends the session for good, as a dead connection does once it is noticed.
            let until_cut = async move {
                let _ = state.wait_for(|state| state.cut).await;
            };
            let ended = futures::stream::once(async { Err(cut()) });
            let incoming = slowed.take_until(until_cut).chain(ended).boxed();
            Ok(Connection { outgoing, incoming })
        })
    }

    fn join(&self, request: JoinRequest) -> BoxFuture<'static, Result<JoinReply, LinkError>> {
        self.inner.join(request)
    }

    fn renew(
        &self,
        credentials: &Credentials,
        request: RenewRequest,
    ) -> BoxFuture<'static, Result<RenewReply, LinkError>> {
        match self.state.borrow().cut {
            true => Box::pin(futures::future::ready(Err(cut()))),
            false => self.inner.renew(credentials, request),
        }
    }
}
