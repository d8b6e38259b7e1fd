use proptest::prelude::*;

use super::*;
use crate::SeededEntropy;

fn api_token() -> ApiToken {
    let id = format!("tok_{:0>26}", 7).parse().unwrap();
    ApiToken::generate(id, &SeededEntropy::new(1))
}

#[test]
fn a_token_survives_its_text_form() {
    let token = api_token();
    let text = token.reveal();
    assert_eq!(text.len(), "bct_tok_".len() + 26 + 1 + SECRET_CHARS);
    let read: ApiToken = text.parse().unwrap();
    assert_eq!((read.id(), read.hash()), (token.id(), token.hash()));
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    assert_eq!(token.hash(), TokenHash::from_bytes(hash));
}

#[test]
fn another_secret_has_another_hash() {
    let token = api_token();
    assert_ne!(token.hash(), ApiToken::generate(token.id(), &SeededEntropy::new(2)).hash());
}

#[test]
fn a_secret_with_underscores_is_read_whole() {
    let id = api_token().id();
    let text = format!("bct_{id}_{}", "_".repeat(42) + "8");
    assert_eq!(text.parse::<ApiToken>().unwrap().reveal().as_str(), text);
}

#[test]
fn near_misses_are_refused_without_echoing_them() {
    let text = api_token().reveal().to_string();
    let secret = text[text.len() - SECRET_CHARS..].to_owned();
    for bad in [
        text[..text.len() - 1].to_owned(),
        format!("{text}A"),
        format!(" {text}"),
        format!("{text}\n"),
        text.replacen("bct_", "bcjt_", 1),
        text.replacen("tok_", "jt_", 1),
        format!("{}é", &text[..text.len() - 2]),
        String::new(),
        "bct_".to_owned(),
    ] {
        let error = bad.parse::<ApiToken>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&secret[..10]), "{error}");
    }
    assert!(text.parse::<JoinToken>().is_err());
}

#[test]
fn debug_hides_the_secret() {
    let token = api_token();
    assert_eq!(format!("{token:?}"), format!("bct_{}_[secret]", token.id()));
}

proptest! {
    #[test]
    fn parsing_never_panics(text in ".{0,100}", secret in "[A-Za-z0-9_-]{40,46}") {
        let _ = text.parse::<ApiToken>();
        let _ = format!("bct_{text}").parse::<ApiToken>();
        let _ = format!("bcjt_jt_00000000000000000000000001_{secret}").parse::<JoinToken>();
    }
}
