//! `tunnels.close`: takes back what was let in. Its gateway cuts it within a few seconds.

use std::sync::Arc;

use api::Method;
use api::tunnels::{GetTunnel, Tunnel};
use kernel::module::wake;
use kernel::{Call, Fault};
use store::Op;

use crate::watch::{QUEUE, tunnel_key};
use crate::{Access, read, sql};

const TUNNEL_CLOSE: Op = Op::new("tunnel_close");

pub(crate) async fn close(access: Access, call: Arc<Call>, request: GetTunnel) -> Result<Tunnel, Fault> {
    let id = request.id.get();
    read::visible(&access, &call, api::tunnels::Close::ACTION, id).await?;
    call.about(format!("tunnel/{id}"));
    call.tx(access.store(), TUNNEL_CLOSE, |tx| {
        Box::pin(async move {
            tx.execute(&sql::TUNNEL_REVOKE, &[&id.uuid(), &"closed-by-call"]).await?;
            Ok::<_, Fault>(wake(tx, QUEUE, &tunnel_key(id)).await?)
        })
    })
    .await?;
    read::one(&access, id).await
}
