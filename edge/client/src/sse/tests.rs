use proptest::prelude::*;

use super::*;

fn frame(id: Option<&str>, event: &str, data: &str) -> Frame {
    Frame { id: id.map(str::to_owned), event: event.to_owned(), data: data.to_owned() }
}

#[test]
fn an_event_ends_with_an_empty_line() {
    let mut parser = Parser::default();
    assert_eq!(parser.feed(b"id: 7\nevent: node.ready\ndata: {\"a\":1}\n"), Ok(vec![]));
    assert_eq!(parser.feed(b"\n"), Ok(vec![frame(Some("7"), "node.ready", "{\"a\":1}")]));
}

#[test]
fn comments_and_unknown_fields_say_nothing() {
    let mut parser = Parser::default();
    assert_eq!(parser.feed(b": heartbeat\n\nretry: 5\nfoo: bar\n\n"), Ok(vec![]));
}

#[test]
fn data_of_several_lines_is_joined_whatever_ends_them() {
    let mut parser = Parser::default();
    assert_eq!(parser.feed(b"data: a\r\ndata:b\rdata\n\n"), Ok(vec![frame(None, "", "a\nb\n")]));
}

#[test]
fn an_endless_event_is_refused() {
    let mut parser = Parser::default();
    let chunk = vec![b'x'; 64 * 1024];
    assert!((0..32).any(|_| parser.feed(&chunk).is_err()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn where_the_network_cuts_changes_nothing(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), any::<u8>(), Just(b'd')], 0..200),
        cuts in prop::collection::vec(0usize..200, 0..6),
    ) {
        let whole = Parser::default().feed(&bytes);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut parser = Parser::default();
        let mut frames = Vec::new();
        let mut failed = false;
        for pair in cuts.windows(2) {
            match parser.feed(&bytes[pair[0]..pair[1]]) {
                Ok(more) => frames.extend(more),
                Err(_) => { failed = true; break }
            }
        }
        match whole {
            Ok(whole) => prop_assert_eq!(whole, frames),
            Err(_) => prop_assert!(failed),
        }
    }
}
