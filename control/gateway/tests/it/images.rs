//! Images of the own store, which a node has by its spec and not by their digest.

use std::sync::Arc;

use futures::StreamExt;
use gateway::memory::MemoryDelivery;
use kernel::ports::delivery::StoredSpec;
use kernel::ports::images::{ImageBytes, ImageDigest, ImageStore, ReadImage, Received, Stored, Upload};
use model::{ImageId, NodeId};
use prost::Message;
use tonic::Code;
use wire::proto::agent::{DesiredInstance, DesiredStateBody, InstanceImage, InstanceSpec, NodeSpec};

use crate::client;
use crate::lab::Lab;

/// Has an image of every digest: its bytes are the digest's.
struct Everything;

impl ImageStore for Everything {
    fn received(&self, _upload: Upload) -> Stored<'_, Received> {
        Box::pin(async { Ok(Received::Part(0)) })
    }

    fn append(&self, _upload: Upload, _offset: u64, _bytes: ImageBytes) -> Stored<'_, Received> {
        Box::pin(async { Ok(Received::Part(0)) })
    }

    fn drop_part(&self, _image_id: ImageId) -> Stored<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn remove(&self, _digest: ImageDigest) -> Stored<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn read(&self, digest: ImageDigest, offset: u64) -> Stored<'_, Option<ReadImage>> {
        let from = usize::try_from(offset).unwrap_or(32).min(32);
        let bytes = bytes::Bytes::copy_from_slice(&digest[from..]);
        let bytes = futures::stream::iter([Ok(bytes)]).boxed();
        Box::pin(async { Ok(Some(ReadImage { total_bytes: 32, bytes })) })
    }
}

/// A spec of one instance, made of this image.
fn spec(node_id: NodeId, generation: u64, desired: DesiredInstance, digest: [u8; 32]) -> StoredSpec {
    let image = InstanceImage { sha256: hex::encode(digest), ..InstanceImage::default() };
    let instance = InstanceSpec { desired: desired.into(), image: Some(image), ..InstanceSpec::default() };
    let spec = NodeSpec { instances: Some(wire::instance::section(vec![instance])), ..NodeSpec::default() };
    let body = DesiredStateBody { spec: Some(spec), generation, ..DesiredStateBody::default() };
    StoredSpec { node_id, generation, body: body.encode_to_vec(), signature: Vec::new() }
}

#[tokio::test]
async fn a_node_has_the_images_that_its_spec_names_and_no_others() {
    let lab = Lab::new();
    let store = MemoryDelivery::new(lab.clock.clone());
    let running = lab.gateway_with_images(Arc::new(store.clone()), Arc::new(Everything)).await;
    let (one, two) = (lab.machine(), lab.machine());
    store.add_node(one.node_id, &one.serial);
    store.add_node(two.node_id, &two.serial);
    let mut client = client::dial(&lab, running.address, Some(&one)).await;
    let mut other = client::dial(&lab, running.address, Some(&two)).await;
    let (own, others) = ([1; 32], [2; 32]);
    let refused = client::image(&mut client, own, 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "it has no spec yet: {refused}");

    store.put_spec(spec(one.node_id, 1, DesiredInstance::Running, own));
    store.put_spec(spec(two.node_id, 1, DesiredInstance::Running, others));
    for offset in [0, 30] {
        assert_eq!(client::image(&mut client, own, offset).await.unwrap(), vec![1; 32 - offset as usize]);
    }
    assert!(client::image(&mut client, others, 0).await.is_err(), "it knows the digest alone");
    assert_eq!(client::image(&mut other, others, 0).await.unwrap(), [2; 32]);

    // What it was told before counts for nothing.
    store.put_spec(spec(one.node_id, 2, DesiredInstance::Running, others));
    assert!(client::image(&mut client, own, 0).await.is_err());
    assert_eq!(client::image(&mut client, others, 0).await.unwrap(), [2; 32]);
    store.put_spec(spec(one.node_id, 3, DesiredInstance::Deleted, others));
    assert!(client::image(&mut client, others, 0).await.is_err());
    store.quarantine(two.node_id);
    assert!(client::image(&mut other, others, 0).await.is_err(), "it is trusted with nothing");
    running.stop.cancel();
}
