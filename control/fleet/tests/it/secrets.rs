//! A node asks for a secret: whether it is the node that asks, and that whoever carries the answer can neither read nor make one.

use std::sync::{Arc, Mutex};

use kernel::ports::secrets::{SecretAsk, SecretBroker, SecretOutcome};
use kernel::{BoxFuture, Fault};
use model::{AllocationId, InstanceId, NodeId, SecretId};
use pki::seal::{self, DecryptionKey, EncryptionKey};
use pki::{OsEntropy, Purpose, SigningKey};
use prost::Message;
use store::Tx;
use wire::proto::agent::{SecretAnswer, SecretRequest};
use wire::proto::common::NodeSignature;
use wire::secret::{Answered, Asked};

use crate::machine::Machine;
use crate::world::{TokenIs, World, id, world};

/// Tells every node that asks, and writes down what it hears.
#[derive(Default)]
struct Teller {
    refuses: Mutex<bool>,
    asked: Mutex<Vec<NodeId>>,
    distrusted: Mutex<Vec<(NodeId, &'static str)>>,
}

impl SecretBroker for Teller {
    fn answer<'a>(
        &'a self,
        _: &'a mut Tx<'_>,
        ask: &'a SecretAsk,
    ) -> BoxFuture<'a, Result<SecretOutcome, Fault>> {
        self.asked.lock().unwrap().push(ask.node_id);
        let key = EncryptionKey::from_spki_der(&ask.one_time_key).unwrap();
        let sealed = seal::seal(b"hunter2", &key, &ask.kid, &OsEntropy).unwrap();
        let outcome = match *self.refuses.lock().unwrap() {
            true => SecretOutcome::Refused { reason: "not-named", message: "it names none" },
            false => SecretOutcome::Sealed(sealed),
        };
        Box::pin(async move { Ok(outcome) })
    }

    fn distrusted<'a>(
        &'a self,
        _: &'a mut Tx<'_>,
        node_id: NodeId,
        reason: &'static str,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        self.distrusted.lock().unwrap().push((node_id, reason));
        Box::pin(async { Ok(()) })
    }
}

struct Asking {
    world: World,
    teller: Arc<Teller>,
    machine: Machine,
    one_time: DecryptionKey,
}

async fn asking() -> Asking {
    let world = world().await;
    let teller = Arc::new(Teller::default());
    world.fleet.set_broker(teller.clone());
    let machine = world.joined("host-1", TokenIs::default()).await;
    Asking { world, teller, machine, one_time: DecryptionKey::generate(&OsEntropy) }
}

impl Asking {
    fn asked(&self) -> Asked {
        Asked {
            request_id: [7; 16],
            node_id: self.machine.node_id(),
            instance_id: id::<InstanceId>(),
            allocation_id: id::<AllocationId>(),
            secret_id: id::<SecretId>(),
            one_time_key: self.one_time.encryption_key().spki_der().to_vec(),
            at: self.world.now(),
        }
    }

    fn signed(&self, asked: &Asked, machine: &Machine, purpose: Purpose) -> SecretRequest {
        let body = asked.render();
        let (value, key_sha256) = machine.signed(purpose, &body);
        let signature = NodeSignature { value: value.into(), key_sha256: key_sha256.into() };
        SecretRequest { body: body.into(), signature: Some(signature) }
    }

    async fn ask(&self, request: &SecretRequest, serial: &str) -> Result<SecretAnswer, String> {
        let reply = self.world.ask("secret", &request.encode_to_vec(), Some(serial)).await?;
        Ok(SecretAnswer::decode(reply.as_slice()).unwrap())
    }

    /// As the node asks.
    async fn own(&self, asked: &Asked) -> Result<Answered, String> {
        let request = self.signed(asked, &self.machine, Purpose::SecretRequest);
        let answer = self.ask(&request, &self.machine.serial()).await?;
        let signature = answer.signature.as_ref().map_or(&[][..], |signature| &signature.value);
        let verified = self.world.verifier().verify_bytes(
            Purpose::SecretAnswer,
            &answer.body,
            signature,
            self.world.now(),
        );
        assert_eq!(verified, Ok(()), "a worker signed it");
        Ok(wire::secret::answer(&answer.body, asked).unwrap())
    }

    fn distrusted(&self) -> Vec<&'static str> {
        self.teller.distrusted.lock().unwrap().drain(..).map(|(_, reason)| reason).collect()
    }

    fn nobody_was_told(&self) {
        assert_eq!(*self.teller.asked.lock().unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_answered_by_a_worker_for_its_own_key_alone() {
    let asking = asking().await;
    let asked = asking.asked();
    let Answered::Sealed(sealed) = asking.own(&asked).await.unwrap() else { panic!("it was refused") };
    let kid = wire::secret::kid(&asked.request_id);
    assert_eq!(seal::open(&sealed, &asking.one_time, &kid).unwrap().as_slice(), b"hunter2");
    let another = DecryptionKey::generate(&OsEntropy);
    assert!(seal::open(&sealed, &another, &kid).is_err());
    *asking.teller.refuses.lock().unwrap() = true;
    let refusal = Answered::Refused { reason: "not-named".into(), message: "it names none".into() };
    assert_eq!(asking.own(&asking.asked()).await, Ok(refusal), "a refusal is signed too");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_the_node_gets_no_answer() {
    let asking = asking().await;
    let other = asking.world.joined("host-2", TokenIs::default()).await;
    let (asked, serial) = (asking.asked(), asking.machine.serial());
    let good = asking.signed(&asked, &asking.machine, Purpose::SecretRequest);

    // A gateway that makes a request of its own, with a key of its own.
    let gateways = Asked {
        one_time_key: DecryptionKey::generate(&OsEntropy).encryption_key().spki_der().to_vec(),
        ..asked.clone()
    };
    let changed = SecretRequest { body: gateways.render().into(), ..good.clone() };
    assert!(asking.ask(&changed, &serial).await.is_err());
    let unsigned = SecretRequest { signature: None, ..good.clone() };
    assert!(asking.ask(&unsigned, &serial).await.is_err());
    let for_another_purpose = asking.signed(&asked, &asking.machine, Purpose::AttestedReport);
    assert!(asking.ask(&for_another_purpose, &serial).await.is_err());
    let stranger = Machine { key: SigningKey::generate(&OsEntropy), ..Machine::new("stranger") };
    assert!(asking.ask(&asking.signed(&asked, &stranger, Purpose::SecretRequest), &serial).await.is_err());
    // Another node in this one's name, with its own good key.
    assert!(asking.ask(&asking.signed(&asked, &other, Purpose::SecretRequest), &serial).await.is_err());
    assert_eq!(asking.distrusted(), ["bad-signature"; 5]);
    // The node's own request over another's connection.
    assert!(asking.ask(&good, &other.serial()).await.is_err());
    assert_eq!(asking.distrusted(), ["other-node"]);
    assert!(asking.ask(&good, "0123456789abcdef0123456789abcdef").await.is_err());
    assert!(asking.world.ask("secret", &[0xff, 1, 2], Some(&serial)).await.is_err());
    asking.nobody_was_told();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_agent_a_revoked_node_and_one_in_quarantine_are_told_nothing() {
    let asking = asking().await;
    let site = asking.world.joined("site-1", TokenIs::default()).await;
    let id = site.node_id().uuid();
    asking.world.run("UPDATE nodes SET role = 'site' WHERE node_id = $1", &[&id]).await;
    let asked = Asked { node_id: site.node_id(), ..asking.asked() };
    let request = asking.signed(&asked, &site, Purpose::SecretRequest);
    assert!(asking.ask(&request, &site.serial()).await.is_err());
    assert_eq!(asking.distrusted(), ["role"]);

    let node = asking.machine.node_id().uuid();
    asking.world.run("UPDATE nodes SET quarantined_at = compute_now() WHERE node_id = $1", &[&node]).await;
    let waits = Answered::Later { reason: "quarantined".into() };
    assert_eq!(asking.own(&asking.asked()).await, Ok(waits));
    asking
        .world
        .run("UPDATE nodes SET quarantined_at = NULL, state = 'revoked' WHERE node_id = $1", &[&node])
        .await;
    assert!(asking.own(&asking.asked()).await.is_err());
    asking.world.run("UPDATE nodes SET state = 'ready' WHERE node_id = $1", &[&node]).await;
    asking.world.run("UPDATE node_certs SET revoked_at = compute_now() WHERE node_id = $1", &[&node]).await;
    assert!(asking.own(&asking.asked()).await.is_err());
    asking.nobody_was_told();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_request_and_one_of_the_future_are_asked_again() {
    let asking = asking().await;
    let asked = asking.asked();
    asking.world.pass(11 * 60);
    let waits = Ok(Answered::Later { reason: "clock".into() });
    assert_eq!(asking.own(&asked).await, waits);
    let future = asking.world.now().saturating_add(std::time::Duration::from_secs(11 * 60));
    assert_eq!(asking.own(&Asked { at: future, ..asking.asked() }).await, waits);
    asking.nobody_was_told();
    assert!(matches!(asking.own(&asking.asked()).await, Ok(Answered::Sealed(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_deployment_only_observes_and_without_a_broker_nobody_is_answered() {
    let asking = asking().await;
    let observes =
        "UPDATE deployment SET observe_only = true, observe_reason = 'a test', observe_since = compute_now()";
    asking.world.run(observes, &[]).await;
    assert!(asking.own(&asking.asked()).await.is_err());
    asking.nobody_was_told();
    let world = world().await;
    let machine = world.joined("host-1", TokenIs::default()).await;
    assert!(
        world.ask("secret", &[], Some(&machine.serial())).await.unwrap_err().contains("tells no secrets")
    );
}
