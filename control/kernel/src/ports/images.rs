//! Images of the control plane's own store: put there by callers of the API, and handed to hosts by gateways.
//!
//! A store knows digests and bytes, and judges nothing else. What is whole has the digest that it is kept by.

use std::io::ErrorKind;

use bytes::Bytes;
use futures::stream::BoxStream;
use model::ImageId;

use crate::BoxFuture;

/// SHA-256 of a whole image.
pub type ImageDigest = [u8; 32];
pub type ImageBytes = BoxStream<'static, std::io::Result<Bytes>>;

#[derive(Debug, thiserror::Error)]
pub enum ImageStoreError {
    /// The bytes that came are another image's. None of them stays.
    #[error("the image's SHA-256 is {found}: its bytes are not those that were announced")]
    OtherDigest { found: String },
    #[error("the image goes on at byte {at}, not at {given}")]
    Offset { at: u64, given: u64 },
    #[error("the image has {announced} bytes, and more came")]
    TooLong { announced: u64 },
    #[error("somebody else sends this image at the moment")]
    Busy,
    /// The sender's line.
    #[error("the image's bytes broke off")]
    BrokenOff(#[source] std::io::Error),
    #[error("the image store has no room: {needed} MiB are needed, and {left} MiB are left for it")]
    Full { needed: u64, left: u64 },
    /// Its disk, while bytes came. Those are gone, so that the disk is as it was.
    #[error("the disk of the image store is full")]
    NoSpace(#[source] std::io::Error),
    #[error("the image store failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<std::io::Error> for ImageStoreError {
    fn from(err: std::io::Error) -> Self {
        match err.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace(err),
            _ => Self::Failed(Box::new(err)),
        }
    }
}

/// What is sent for one image of the catalogue. Two images of one digest are sent apart, so that nobody who knows a digest is in
/// another's way, and that nobody has an image for its digest alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upload {
    pub image_id: ImageId,
    pub digest: ImageDigest,
    pub total_bytes: u64,
    /// Whoever sends it may read an image of this digest and size already: what is there need not come again.
    pub known: bool,
}

/// How much of an image is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Up to this byte, which is where it goes on.
    Part(u64),
    /// All of it, and its digest was found to be right. Of an upload that is not known only once it has come itself.
    Whole(u64),
}

/// An image from some byte on.
pub struct ReadImage {
    pub total_bytes: u64,
    pub bytes: ImageBytes,
}

pub type Stored<'a, T> = BoxFuture<'a, Result<T, ImageStoreError>>;

pub trait ImageStore: Send + Sync + 'static {
    fn received(&self, upload: Upload) -> Stored<'_, Received>;

    /// Takes bytes from `offset` on, which is where the image goes on. What has come stays when they break off.
    fn append(&self, upload: Upload, offset: u64, bytes: ImageBytes) -> Stored<'_, Received>;

    /// Removes what has come of an upload that is not whole. Whoever still sends it begins anew.
    fn drop_part(&self, image_id: ImageId) -> Stored<'_, ()>;

    /// Removes an image, if it is there.
    fn remove(&self, digest: ImageDigest) -> Stored<'_, ()>;

    /// None when it is not there as a whole.
    fn read(&self, digest: ImageDigest, offset: u64) -> Stored<'_, Option<ReadImage>>;
}
