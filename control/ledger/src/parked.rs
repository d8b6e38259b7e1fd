//! `work.listParked` and `work.requeue`: work that failed too often and waits for a person. It is the installation's, so it
//! is decided in the root tenant.

use std::sync::Arc;

use api::work::{ListParkedWork, ParkedWork, RequeueWork, RequeuedWork};
use kernel::page::Page;
use kernel::ports::iam::Resource;
use kernel::{ApiError, Call, Fault};
use model::{Timestamp, WorkId};
use store::{Op, Row, RowExt, work};

use crate::{Ledger, sql};

const OP_REQUEUE: Op = Op::new("work_requeue");

/// Items woken by one call: more than anybody parks without noticing; call again for the rest.
const REQUEUE_MAX: i64 = 10_000;

fn view(row: &Row, now: Timestamp) -> ParkedWork {
    let parked_at = row.ts("parked_at");
    ParkedWork {
        id: row.id::<WorkId>("work_id").into(),
        queue: row.get("queue"),
        key: row.get("key"),
        attempts: u32::try_from(row.get::<_, i32>("attempts")).unwrap_or_default(),
        last_error: row.get("last_error"),
        parked_at: parked_at.into(),
        parked_seconds: now.since(parked_at).as_secs(),
    }
}

impl Ledger {
    async fn work(&self) -> Result<Resource, Fault> {
        Ok(Resource::any("compute-work", self.reader.root_tenant().await?))
    }
}

pub(crate) async fn list(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    request: ListParkedWork,
) -> Result<api::List<ParkedWork>, Fault> {
    call.require("compute:work:listParked", &ledger.work().await?).await?;
    let page = Page::of::<WorkId>(request.limit, request.cursor.as_ref())?;
    let queue = request.queue.as_ref().map(api::Text::as_str);
    let rows = ledger.store.read(&sql::PARKED_LIST, &[&queue, &page.before, &page.fetch()]).await?;
    let (rows, cursor) = page.cut(rows, |row| row.id::<WorkId>("work_id"));
    Ok(api::List::new(rows.iter().map(|row| view(row, call.now)).collect(), cursor))
}

pub(crate) async fn requeue(
    ledger: Arc<Ledger>,
    call: Arc<Call>,
    request: RequeueWork,
) -> Result<RequeuedWork, Fault> {
    call.require("compute:work:requeue", &ledger.work().await?).await?;
    let work_id = request.id.map(api::Id::get);
    let queue = request.queue.as_ref().map(api::Text::as_str);
    call.about(match (work_id, queue) {
        (Some(work_id), _) => format!("work/{work_id}"),
        (None, queue) => format!("work/{}", queue.unwrap_or("*")),
    });
    let (one, dry_run) = (work_id.map(WorkId::uuid), request.dry_run);
    let requeued = call.tx(&ledger.store, OP_REQUEUE, |tx| {
        Box::pin(async move {
            let parked = tx.query(&sql::PARKED_IDS, &[&one, &queue, &REQUEUE_MAX]).await?;
            let mut requeued = 0;
            for row in &parked {
                if dry_run || work::requeue(tx, row.id("work_id")).await? {
                    requeued += 1;
                }
            }
            Ok::<u64, Fault>(requeued)
        })
    });
    let requeued = requeued.await?;
    if let (Some(work_id), 0) = (work_id, requeued) {
        return Err(ApiError::not_found("parked work item", work_id).into());
    }
    Ok(RequeuedWork { requeued, dry_run })
}
