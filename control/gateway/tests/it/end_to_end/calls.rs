//! Joining and renewing.

use super::*;

#[tokio::test]
async fn a_machine_joins_through_a_worker() {
    let bench = Bench::new().await;
    let mut client = dial(&bench.lab, bench.gateway.address, None).await;
    let accepted =
        JoinReply { outcome: Some(Outcome::Accepted(SignedJoinResponse { value: vec![5; 100].into() })) };
    let worker = async {
        let item = bench.store.next_request().await;
        assert_eq!(item.request.kind, InboxKind::Join);
        assert_eq!(JoinRequest::decode(item.request.request.as_slice()).unwrap(), join_request());
        assert_eq!((item.request.source_ip.as_str(), &item.request.peer_serial), ("127.0.0.1", &None));
        item.answer(InboxAnswer::Reply(accepted.encode_to_vec()));
    };
    let (reply, ()) = tokio::join!(join(&mut client, join_request()), worker);
    assert_eq!(reply.unwrap(), accepted);

    let worker = async {
        bench.store.next_request().await.answer(InboxAnswer::Refused("the join token is spent".to_owned()));
    };
    let (reply, ()) = tokio::join!(join(&mut client, join_request()), worker);
    let status = reply.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "the join token is spent"));

    let mut large = join_request();
    large.csr_der = vec![0; 5000].into();
    assert_eq!(join(&mut client, large).await.unwrap_err().code(), Code::InvalidArgument);
    let mut larger = join_request();
    larger.sealed_token = "x".repeat(64 * 1024);
    assert_eq!(join(&mut client, larger).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn too_many_joins_of_one_address_are_told_to_wait() {
    let bench = Bench::new().await;
    let mut client = dial(&bench.lab, bench.gateway.address, None).await;
    // The burst, and then some: they come faster than they are let in.
    for _ in 0..2_000 {
        // Refused before anything is asked, so that no worker is needed.
        let mut request = join_request();
        request.csr_der = Vec::new().into();
        let status = join(&mut client, request).await.unwrap_err();
        if status.code() == Code::Unavailable {
            let wait = status.metadata().get(RETRY_PUSHBACK).expect("it says how long");
            assert!(wait.to_str().unwrap().parse::<u64>().unwrap() > 0);
            return;
        }
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    panic!("nobody was told to wait");
}

#[tokio::test]
async fn a_certificate_is_renewed_by_its_holder_and_nobody_else() {
    let bench = Bench::new().await;
    let machine = bench.machine();
    let request = RenewRequest { csr_der: vec![1; 300].into(), proof: vec![2; 200].into() };
    let mut stranger = dial(&bench.lab, bench.gateway.address, None).await;
    assert_eq!(renew(&mut stranger, request.clone()).await.unwrap_err().code(), Code::Unauthenticated);

    let mut client = dial(&bench.lab, bench.gateway.address, Some(&machine)).await;
    let renewed = RenewReply { renewed: Some(SignedJoinResponse { value: vec![6; 10].into() }) };
    let worker = async {
        let item = bench.store.next_request().await;
        assert_eq!(item.request.kind, InboxKind::Renew);
        assert_eq!(item.request.peer_serial.as_deref(), Some(machine.serial.as_str()));
        item.answer(InboxAnswer::Reply(renewed.encode_to_vec()));
    };
    let (reply, ()) = tokio::join!(renew(&mut client, request.clone()), worker);
    assert_eq!(reply.unwrap(), renewed);

    bench.store.revoke_certificate(&machine.serial);
    assert_eq!(renew(&mut client, request).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_join_that_is_half_sent_is_answered_late() {
    let bench = Bench::new().await;
    let mut client = dial(&bench.lab, bench.gateway.address, None).await;
    assert_eq!(half_join(&mut client).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn strangers_leave_places_for_nodes() {
    let lab = Lab::new();
    let store = MemoryDelivery::new(lab.clock.clone());
    let gateway = lab.gateway_with(Arc::new(store.clone()), |config| config.connections_max = 8).await;
    // Refused before anything is asked, so that no worker is needed.
    let request = JoinRequest { csr_der: Vec::new().into(), ..join_request() };
    let first = dial(&lab, gateway.address, None).await;
    // In TLS 1.3 a client hears that it is cut only with what it reads next.
    if let Ok(mut second) = try_dial(&lab, gateway.address, None).await {
        let status = join(&mut second, request.clone()).await.unwrap_err();
        assert_ne!(status.code(), Code::InvalidArgument, "it was heard: {status}");
    }
    let machine = lab.machine();
    store.add_node(machine.node_id, &machine.serial);
    greet(&lab, gateway.address, &machine, hello(&machine)).await.welcome().await;
    drop(first);
    testkit::eventually(BOUND, || async {
        let mut next = try_dial(&lab, gateway.address, None).await?;
        let status = join(&mut next, request.clone()).await.unwrap_err();
        if status.code() == Code::InvalidArgument { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
}
