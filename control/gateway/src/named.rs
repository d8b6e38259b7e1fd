//! Which images of the own store a node may fetch: those that its current spec names for what is to be there.
//!
//! The spec is asked for at each fetch, and read only when it is another than it was: a digest that somebody knows, or that the
//! node was told once, is not enough.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kernel::ports::delivery::{CurrentSpec, DeliveryError, DeliveryStore};
use model::NodeId;
use wire::limits::FRAME_BYTES_MAX;
use wire::proto::agent::{DesiredInstance, DesiredStateBody};

/// Nodes whose specs are remembered. Those of more are read at each fetch.
const NODES_MAX: usize = 4096;

type Digest = [u8; 32];

#[derive(Debug, Clone, Default)]
struct Names {
    generation: u64,
    digests: BTreeSet<Digest>,
}

#[derive(Debug, Default)]
pub(crate) struct Named(Mutex<HashMap<NodeId, Names>>);

impl Named {
    /// Whether the node's spec names an image of this digest.
    pub(crate) async fn names(
        &self,
        store: &dyn DeliveryStore,
        node_id: NodeId,
        digest: &Digest,
    ) -> Result<bool, DeliveryError> {
        let known = self.locked(|named| named.get(&node_id).cloned());
        let generation = known.as_ref().map_or(0, |names| names.generation);
        let names = match store.current_spec(node_id, generation).await? {
            CurrentSpec::Known => known.unwrap_or_default(),
            CurrentSpec::None => {
                self.locked(|named| named.remove(&node_id));
                return Ok(false);
            }
            CurrentSpec::Newer(spec) => {
                let names = Names { generation: spec.generation, digests: digests(&spec.body) };
                self.locked(|named| {
                    if named.len() >= NODES_MAX {
                        named.clear();
                    }
                    named.insert(node_id, names.clone());
                });
                names
            }
        };
        Ok(names.digests.contains(digest))
    }

    fn locked<T>(&self, work: impl FnOnce(&mut HashMap<NodeId, Names>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Of the own store, for instances that are not to go. What cannot be read names nothing.
fn digests(body: &[u8]) -> BTreeSet<Digest> {
    let body: DesiredStateBody = match wire::decode("desired state", body, FRAME_BYTES_MAX) {
        Ok(body) => body,
        Err(err) => {
            tracing::error!(err = %err, "a stored spec does not decode");
            return BTreeSet::new();
        }
    };
    let section = body.spec.and_then(|spec| spec.instances).unwrap_or_default();
    wire::instance::instances(&section)
        .into_iter()
        .flatten()
        .filter(|instance| instance.desired() != DesiredInstance::Deleted)
        .filter_map(|instance| instance.image)
        .filter(|image| image.url.is_empty())
        .filter_map(|image| hex::decode(image.sha256).ok()?.try_into().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use wire::proto::agent::{InstanceImage, InstanceSpec, NodeSpec};

    use super::*;

    fn instance(id: &str, desired: DesiredInstance, url: &str, byte: u8) -> InstanceSpec {
        let image =
            InstanceImage { url: url.into(), sha256: hex::encode([byte; 32]), ..InstanceImage::default() };
        let image = Some(image);
        InstanceSpec { instance_id: id.into(), desired: desired.into(), image, ..InstanceSpec::default() }
    }

    #[test]
    fn a_spec_names_the_images_of_the_store_that_its_instances_are_to_have() {
        let mut broken = instance("d", DesiredInstance::Running, "", 4);
        broken.image.get_or_insert_default().sha256 = "no digest".into();
        let section = wire::instance::section(vec![
            instance("a", DesiredInstance::Running, "", 1),
            instance("b", DesiredInstance::Stopped, "https://a.example/x", 2),
            instance("c", DesiredInstance::Deleted, "", 3),
            broken,
        ]);
        let spec = NodeSpec { instances: Some(section), ..NodeSpec::default() };
        let body = DesiredStateBody { spec: Some(spec), ..DesiredStateBody::default() };
        assert_eq!(digests(&body.encode_to_vec()), BTreeSet::from([[1; 32]]));
        assert_eq!(digests(b"\xff\xff"), BTreeSet::new());
    }
}
