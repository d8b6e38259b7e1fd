//! Health and metrics on a listener of their own: for a process that serves no API, and for those who keep them off the
//! API's address.
//!
//! It answers reads alone, knows no caller, and holds no secret, so it speaks plain HTTP on whatever address it is given.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use kernel::run::Running;
use kit::TaskKind;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::answer::plain;
use crate::routes::Peer;
use crate::serve::{ACCEPT_PAUSE, ServerError, http};
use crate::vitals::{Vitals, healthy};
use crate::{Cidr, address};

const ACCEPT: TaskKind = TaskKind::fatal("ops_accept");
const CONNECTION: TaskKind = TaskKind::isolated("ops_connection");
/// A few collectors and balancers.
const CONNECTIONS_MAX: usize = 64;

/// How the listener is reached.
#[derive(Debug, Clone)]
pub struct OpsConfig {
    pub listen: SocketAddr,
    /// Who may read `/metrics`, beside the machine itself.
    pub metrics_from: Vec<Cidr>,
}

struct Shared {
    vitals: Arc<Vitals>,
    metrics_from: Vec<Cidr>,
}

/// Listens and answers until the supervisor of `running` stops. Gives where it listens.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve_ops(
    config: OpsConfig,
    vitals: Arc<Vitals>,
    running: &Running,
) -> Result<SocketAddr, ServerError> {
    let failed = |source| ServerError::Listen { address: config.listen, source };
    let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let shared = Arc::new(Shared { vitals, metrics_from: config.metrics_from });
    let router = Router::new()
        .route("/healthz", get(|| async { healthy() }))
        .route(
            "/readyz",
            get(|State(shared): State<Arc<Shared>>| async move { shared.vitals.readyz().await }),
        )
        .route("/metrics", get(metrics))
        .with_state(shared);
    let (supervisor, clock) = (running.supervisor.clone(), running.clock.clone());
    running.supervisor.spawn(ACCEPT, move |cancel| async move {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Cancel-safe: what was accepted is returned, and a permit that was not used comes back.
            let next = cancel.run_until_cancelled(async {
                let permit = room.clone().acquire_owned().await.expect("it is never closed");
                (permit, listener.accept().await)
            });
            match next.await {
                None => return Ok::<(), Infallible>(()),
                Some((permit, Ok((socket, peer)))) => {
                    let router = router.clone();
                    supervisor.spawn(CONNECTION, move |cancel| async move {
                        let _permit = permit;
                        http(socket, router, Peer(peer), cancel).await;
                        Ok::<(), Infallible>(())
                    });
                }
                Some((_, Err(err))) => {
                    tracing::warn!(err = %err, "failed to accept a connection");
                    clock.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(address)
}

async fn metrics(State(shared): State<Arc<Shared>>, Extension(peer): Extension<Peer>) -> Response {
    match crate::vitals::may_read(address::canonical(peer.0.ip()), &shared.metrics_from) {
        true => shared.vitals.metrics(),
        false => {
            plain(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "nothing is here for this address\n")
        }
    }
}
