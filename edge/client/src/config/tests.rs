use super::*;

#[test]
fn plain_http_goes_to_this_machine_only() {
    for good in ["http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:8080/", "https://a.example"] {
        assert!(base(good).is_ok(), "{good}");
    }
    for bad in ["http://10.0.0.1", "http://localhost.example.com", "http://127.0.0.1.example.com"] {
        assert!(matches!(base(bad), Err(ConfigError::PlainHttp { .. })), "{bad}");
    }
}

#[test]
fn a_url_with_more_than_a_host_is_refused() {
    for bad in
        ["", "a.example", "ftp://a", "https://u:p@a", "https://a/path", "https://a?x=1", "file:///etc/passwd"]
    {
        assert!(matches!(base(bad), Err(ConfigError::Url { .. })), "{bad}");
    }
}

#[test]
fn debug_does_not_tell_the_token() {
    let shown = format!("{:?}", Config::new("https://a").token("bct_secret"));
    assert!(!shown.contains("bct_"), "{shown}");
}
