use proptest::prelude::*;

use super::*;
use crate::{SeededEntropy, SigningKey};

fn token() -> String {
    let id = format!("tok_{:0>26}", 7).parse().unwrap();
    ApiToken::generate(id, &SeededEntropy::new(1)).reveal().to_string()
}

fn secret() -> String {
    token()[token().len() - 43..].to_owned()
}

const JWT: &str = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJlLWhlcmU";

#[test]
fn a_token_keeps_its_id_and_loses_its_secret() {
    let shown = redact(&format!("used {} twice, {}", token(), token()));
    assert_eq!(
        shown,
        format!("used bct_tok_{0}_[redacted] twice, bct_tok_{0}_[redacted]", format_args!("{:0>26}", 7))
    );
    assert_eq!(redact("bcjt_jt_short"), "bcjt_[redacted]");
    assert_eq!(
        redact(&format!("x={},y", &token()[..60])).matches(REDACTED).count(),
        1,
        "a cut token goes too"
    );
}

#[test]
fn every_secret_shape_is_taken_out() {
    let pem = SigningKey::generate(&SeededEntropy::new(1)).to_pkcs8_pem();
    let body = pem.lines().nth(1).unwrap();
    let cases: Vec<(String, &str)> = vec![
        (format!("jwt {JWT} end"), "c2lnbmF0"),
        (format!("key:\n{}after", *pem), body),
        (format!("json \"{}\"", pem.replace('\n', "\\n")), body),
        (format!("n{}", *pem), body),
        (pem[..80].to_owned(), &body[..20]),
        ("postgres://user:hunter2@db.test/x".to_owned(), "hunter2"),
        ("https://ghp_hunter2@git.test/x".to_owned(), "hunter2"),
        ("https://u:a@b:hunter2@host/".to_owned(), "hunter2"),
        ("Authorization: Bearer hunter2hunter2hunter2".to_owned(), "hunter2"),
        ("authorization: Basic aHVudGVyMg==".to_owned(), "aHVudGVyMg"),
        ("{\"Authorization\":\"Bearer hunter2\"}".to_owned(), "hunter2"),
        ("{\\\"password\\\":\\\"hunter2\\\"}".to_owned(), "hunter2"),
        ("sent bearer abcdefghijklmnopqrst+/=".to_owned(), "qrst"),
        ("password=hunter2&x=1".to_owned(), "hunter2"),
        ("PGPASSWORD=hunter2 psql".to_owned(), "hunter2"),
        ("AWS_SECRET_ACCESS_KEY='hunter2 x'".to_owned(), "hunter2"),
        ("password: hunter2".to_owned(), "hunter2"),
        ("\"clientSecret\": \"hunter2\"".to_owned(), "hunter2"),
        ("https://s3.test/k?X-Amz-Signature=hunter2&X-Amz-Date=1".to_owned(), "hunter2"),
    ];
    for (text, secret) in cases {
        assert!(text.contains(secret), "the case holds its secret: {text}");
        let shown = redact(&text);
        assert!(!shown.contains(secret), "{text} -> {shown}");
        assert!(shown.contains(REDACTED), "{shown}");
        assert_eq!(redact(&shown), shown, "redacting again adds nothing");
    }
}

#[test]
fn what_surrounds_a_secret_stays() {
    assert_eq!(redact("postgres://user:pw@db.test/x?y"), "postgres://user:[redacted]@db.test/x?y");
    assert_eq!(redact("a password=pw&x=1 b"), "a password=[redacted]&x=1 b");
    assert_eq!(redact(&format!("a {JWT} b")), "a [redacted] b");
    assert_eq!(redact("{\"password\":\"pw\",\"n\":1}"), "{\"password\":\"[redacted]\",\"n\":1}");
    assert_eq!(redact("Authorization: Bearer abc\nHost: x"), "Authorization: [redacted]\nHost: x");
}

#[test]
fn plain_text_stays_as_it_is() {
    for text in [
        "node_00000000000000000000000001 joined at 10.0.0.1:443",
        "https://host.test/path?x=1@2",
        "mail user@host.test about the token: it expired",
        "the bearer of this and basic things",
        "eyJhbGci is not a token, nor is a.b.c",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA user@host",
        "héllo wörld ✓",
        "",
    ] {
        assert_eq!(redact(text), text);
    }
}

#[test]
fn pasted_secrets_are_recognised() {
    let pem = SigningKey::generate(&SeededEntropy::new(1)).to_pkcs8_pem();
    for secret in [token().as_str(), "bcjt_jt_01...", JWT, &pem, &format!(" {}\n", token())] {
        assert!(looks_like_secret(secret), "{secret}");
    }
    for plain in
        ["node_00000000000000000000000001", "", "eyJ", "a.b.c", "file.pem", "tok_00000000000000000000000007"]
    {
        assert!(!looks_like_secret(plain), "{plain}");
    }
}

#[test]
fn hostile_text_takes_linear_time() {
    // Each would take minutes if any rule looked ahead from every position.
    for unit in [
        "eyJ-",
        "bct",
        "://",
        "://a@",
        "-----BEGIN PRIVATE KEY",
        "bearer ",
        "password",
        "token=",
        "\\\"",
        "a:",
    ] {
        let text = unit.repeat(1_000_000 / unit.len());
        assert!(redact(&text).len() <= text.len() * 11);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn a_token_in_any_text_is_taken_out(before in ".{0,40}", after in ".{0,40}") {
        let shown = redact(&format!("{before}{}{after}", token()));
        prop_assert!(!shown.contains(&secret()), "{shown}");
    }

    #[test]
    fn a_url_password_in_any_text_is_taken_out(before in ".{0,40}", after in ".{0,40}") {
        let shown = redact(&format!("{before} http://u:hunter2hunter2@h/ {after}"));
        prop_assert!(!shown.contains("hunter2hunter2"), "{shown}");
    }

    #[test]
    fn broken_shapes_never_panic(
        parts in prop::collection::vec(prop::sample::select(vec![
            "password", "=", ":", "\"", "'", "\\", " ", "bearer ", "://", "@", "a", "bct_", "eyJ", ".", "-----BEGIN PRIVATE KEY-----",
            "-----END PRIVATE KEY-----", "\n", "&", "token", "é", "Authorization", "abcdefghijklmnopqrstuvwxyz",
        ]), 0..20),
    ) {
        let text = parts.concat();
        prop_assert!(redact(&text).len() <= text.len() * 11);
        let _ = looks_like_secret(&text);
    }
}
