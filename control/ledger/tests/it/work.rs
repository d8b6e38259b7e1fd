use serde_json::json;

use crate::world::World;

async fn park(world: &World, queue: &str, count: u32) {
    for n in 0..count {
        let text = format!(
            "INSERT INTO work (work_id, queue, key, state, run_at, attempts, attempts_max, last_error, parked_at)
             VALUES (gen_random_uuid(), '{queue}', 'k{n}', 'parked', compute_now(), 9, 9, 'why', compute_now())"
        );
        world.db.batch(&text).await;
    }
}

#[tokio::test]
async fn parked_work_is_listed_and_woken_one_by_one_or_by_queue() {
    let world = World::new().await;
    park(&world, "specs", 3).await;
    park(&world, "drains", 1).await;
    let list = world.does("work.listParked", json!({"queue": "specs", "limit": 2})).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!(list["items"][0]["lastError"], "why");
    let rest = world.does("work.listParked", json!({"queue": "specs", "cursor": list["cursor"]})).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 1);
    assert_eq!(world.does("system.info", json!({})).await["workParked"], 4);

    let one = json!({"id": list["items"][0]["id"]});
    assert_eq!(world.does("work.requeue", one.clone()).await["requeued"], 1);
    assert_eq!(
        world.call(&world.admin, "work.requeue", one).await.code(),
        "NOT_FOUND",
        "it is not parked any more"
    );
    let dry = world.does("work.requeue", json!({"queue": "specs", "dryRun": true})).await;
    assert_eq!((dry["requeued"].as_u64(), dry["dryRun"].as_bool()), (Some(2), Some(true)));
    assert_eq!(world.does("work.requeue", json!({"queue": "specs"})).await["requeued"], 2);
    assert_eq!(world.db.scalar_i64("SELECT count(*) FROM work WHERE state = 'parked'").await, 1);
}
