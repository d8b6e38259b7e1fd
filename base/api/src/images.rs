//! Images: what the disks of virtual machines begin with. Hosts fetch them by their address, or from the control plane's own
//! store, and check their digest.

use std::fmt;
use std::str::FromStr;

use model::{ImageId, TenantId};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::listing::is_false;
use crate::method::method;
use crate::scalar::shown;
use crate::words::words;
use crate::{Cursor, Id, IdempotencyKey, Int, InvalidRequest, Limit, Name, Named, Ref, Text, Time, Word};

/// Larger than any system's image; what is larger is a mistake.
pub const IMAGE_BYTES_MAX: u64 = 256 << 30;

words! {
    ImageState, "image state" {
        /// Instances can be made of it.
        Ready = "ready",
        /// It was announced, and its bytes have not all come: see `PUT /api/compute/images/<id>/content`.
        Awaited = "awaited",
        /// Nothing is made of it any more, and its name is free.
        Deleted = "deleted",
    }
}

words! {
    ImageFormat, "image format" {
        Qcow2 = "qcow2",
        Raw = "raw",
        /// A disc to install from, beside an empty disk.
        Iso = "iso",
    }
}

/// SHA-256 of a file, as 64 lowercase hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            || format!("{:?} is no SHA-256: 64 digits of 0-9 and a-f, as sha256sum writes them", shown(text));
        let digits = text.as_bytes();
        let plain = |digit: &u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit);
        if digits.len() != 64 || !digits.iter().all(plain) {
            return Err(refused());
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| refused())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| refused())?;
        }
        Ok(Self(digest))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Digest {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 64, "maxLength": 64, "pattern": "^[0-9a-f]{64}$" })
    }
}

/// A user of a guest: 1 to 32 of a-z, 0-9, '_' and '-', the first a letter or '_', as useradd(8) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginUser(String);

impl LoginUser {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LoginUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        match first && text.len() <= 32 && text.bytes().all(rest) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{:?} is no user's name: 1 to 32 of a-z, 0-9, '_' and '-'", shown(text))),
        }
    }
}

impl Serialize for LoginUser {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LoginUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for LoginUser {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LoginUser".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 32, "pattern": "^[a-z_][a-z0-9_-]{0,31}$" })
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    pub id: Id<ImageId>,
    pub name: String,
    pub tenant: Named<TenantId>,
    pub state: Word<ImageState>,
    /// From where hosts fetch it; absent for an image of the control plane's own store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// As it was announced, for an image of the own store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    pub sha256: Digest,
    pub format: Word<ImageFormat>,
    /// Tenants below its own may use it too.
    pub shared: bool,
    /// Whoever made it stands by what is in it: what policies may ask for.
    pub verified: bool,
    /// Whom it lets SSH keys log in as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_user: Option<String>,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Time>,
    pub age_seconds: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateImage {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Unique in its tenant.
    pub name: Name,
    /// https, without a name and password in it. Whoever may use the image sees it.
    pub url: Text<1, 2048>,
    /// Of the file at that address. A host that gets another file refuses it.
    pub sha256: Digest,
    pub format: Word<ImageFormat>,
    /// Tenants below may use it too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// Stands by what is in it, for policies that ask for that.
    #[serde(default, skip_serializing_if = "is_false")]
    pub verified: bool,
    /// Whom it lets SSH keys log in as, like `debian`: what `better-compute ssh` takes when it is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_user: Option<LoginUser>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImportImage {
    /// The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Unique in its tenant.
    pub name: Name,
    /// Of the file that comes.
    pub sha256: Digest,
    pub size_bytes: Int<1, IMAGE_BYTES_MAX>,
    pub format: Word<ImageFormat>,
    /// Tenants below may use it too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// Stands by what is in it, for policies that ask for that.
    #[serde(default, skip_serializing_if = "is_false")]
    pub verified: bool,
    /// Whom it lets SSH keys log in as, like `debian`: what `better-compute ssh` takes when it is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_user: Option<LoginUser>,
    /// Makes a repeated call find what the first one made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<IdempotencyKey>,
}

/// What has come of an image: the answer to its bytes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageContent {
    pub image: Image,
    /// The next byte that is waited for.
    pub received_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetImage {
    pub id: Id<ImageId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListImages {
    /// Its own and those it may use of tenants above. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
    /// Also those that were deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub include_deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeleteImage {
    /// One that no instance is made of, in whatever tenant.
    pub image: Ref<ImageId>,
    /// Whose image has the name. The caller's tenant when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Id<TenantId>>,
}

fn check_create(request: &CreateImage) -> Result<(), InvalidRequest> {
    let url = request.url.as_str();
    let rest = url.strip_prefix("https://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    let named = !authority.is_empty() && !authority.starts_with(':');
    if !named || authority.contains('@') || !plain {
        let message = "an image is fetched by https, from an address without a name and password in it";
        return Err(InvalidRequest::new("/url", message));
    }
    Ok(())
}

method!(Create, "images"."create", Key, "compute-image", CreateImage => Image, [NotFound, Conflict], "Names a disk image, by its address and its digest.", check = check_create);
method!(Import, "images"."import", Key, "compute-image", ImportImage => Image, [NotFound, Conflict, InvalidState, QuotaExceeded, CapacityUnavailable], "Announces an image for the control plane's own store. Its bytes follow by PUT /api/compute/images/ID/content?offset=N, which answers with how many there are.");
method!(Get, "images"."get", Read, "compute-image", GetImage => Image, [NotFound], "Shows an image.");
method!(List, "images"."list", Read, "compute-image", ListImages => crate::List<Image>, [NotFound], "Lists the images that a tenant may use.");
method!(Delete, "images"."delete", Natural, "compute-image", DeleteImage => Image, [NotFound, InvalidState], "Deletes an image that no instance uses.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_what_sha256sum_writes() {
        let text = "0123456789abcdef".repeat(4);
        let digest: Digest = text.parse().unwrap();
        assert_eq!((digest.to_string(), digest.0[1]), (text.clone(), 0x23));
        for bad in [
            text.to_uppercase(),
            text[1..].to_owned(),
            format!("{text}0"),
            format!("+{}", &text[1..]),
            "é".repeat(32),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_image_comes_by_https_alone() {
        let of = |url: &str| CreateImage {
            tenant: None,
            name: "debian".parse().unwrap(),
            url: Text::parse(url).unwrap(),
            sha256: Digest([7; 32]),
            format: Word(ImageFormat::Qcow2),
            shared: false,
            verified: false,
            login_user: None,
            idempotency_key: None,
        };
        for good in [
            "https://cloud.example.com/debian.qcow2",
            "https://10.0.0.5:8443/x?token=a@b",
            "https://[2001:db8::1]/x",
        ] {
            assert!(check_create(&of(good)).is_ok(), "{good}");
        }
        assert!(Text::<1, 2048>::parse(&format!("https://a.example/{}", "x".repeat(2048))).is_err());
        for bad in [
            "http://a.example/x",
            "https://",
            "https:///x",
            "https://:443/x",
            "https://?x",
            "https://me:pw@a.example/x",
            "https://me@a.example/x",
            "https://a.example\\@b.example/x",
            "HTTPS://me@a.example/x",
            "file:///etc/passwd",
            "https://a.example/a b",
        ] {
            assert!(check_create(&of(bad)).is_err(), "{bad}");
        }
    }
}
