use super::*;

const PIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn minimal() -> String {
    format!(
        "[gateway]\nurl = \"https://gw.example.com\"\nserving_ca_pins = [\"{PIN}\"]\njoin_signing_pins = [\"{PIN}\"]\n\
         join_encryption_key_pin = \"{PIN}\"\n"
    )
}

fn read(text: &str) -> Result<Config, ConfigError> {
    parse(text, Path::new("/etc/bcd/config.toml"))
}

#[test]
fn what_is_required_is_enough_and_the_rest_has_defaults() {
    let config = read(&minimal()).unwrap();
    assert_eq!(config.gateway.host, "gw.example.com");
    assert_eq!((config.gateway.port, config.gateway.server_name.as_str()), (443, "gw.example.com"));
    assert_eq!(config.data_dir, Path::new(DATA_DIR));
    assert_eq!(config.socket_path, Path::new(SOCKET_PATH));
    assert_eq!((config.journal_file_bytes_max, config.journal_events_max), (FILE_BYTES_MAX, EVENTS_MAX));
    assert_eq!((config.log_format, config.log_level), (LogFormat::Text, LogLevel::Info));
}

#[test]
fn every_key_can_be_set() {
    let text = format!(
        "data_dir = \"/data\"\nsocket_path = \"/run/x.sock\"\nsite = \"fsn1\"\n{}server_name = \"gw\"\n\
         tunnel_hosts = [\"gw-2.example.net\", \"10.0.0.7\"]\n\
         [journal]\nmax_bytes = 40000000\nmax_events = 500\n[log]\nformat = \"json\"\nlevel = \"debug\"\n\
         [instances]\naccel = \"tcg\"\nnat_bridge = \"\"\nlibvirt_uri = \"qemu:///x\"\ndir = \"/vm\"\n\
         network_namespace = \"/run/netns/x\"\nimage_networks = [\"10.0.0.0/8\", \"fd00::7/128\"]\n",
        minimal()
    );
    let config = read(&text).unwrap();
    assert_eq!(config.site.as_deref(), Some("fsn1"));
    assert_eq!(config.tunnel_hosts, ["gw-2.example.net", "10.0.0.7"]);
    for bad in ["tunnel_hosts = [\"gw:443\"]", "tunnel_hosts = [\"\"]", "tunnel_hosts = [\"a b\"]"] {
        assert!(read(&format!("{}{bad}\n", minimal())).is_err(), "{bad}");
    }
    assert_eq!((config.journal_file_bytes_max, config.journal_events_max), (40_000_000, 500));
    assert_eq!((config.log_format, config.log_level), (LogFormat::Json, LogLevel::Debug));
    let instances = InstancesConfig {
        accel: InstancesAccel::Tcg,
        dir: Some("/vm".into()),
        nat_bridge: None,
        libvirt_uri: Some("qemu:///x".to_owned()),
        network_namespace: Some("/run/netns/x".into()),
        image_networks: vec!["10.0.0.0/8".parse().unwrap(), "fd00::7/128".parse().unwrap()],
    };
    assert_eq!(config.instances, instances);
    for (key, _) in KEYS {
        let last = key.rsplit('.').next().unwrap();
        assert!(text.contains(last), "this test sets every key: {key}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    for (line, near) in [
        ("data_dri = \"/x\"", Some("data_dir")),
        ("[journal]\nmax_event = 5", Some("journal.max_events")),
        ("[log]\nlevels = \"info\"", Some("log.level")),
        ("completely_different_thing = 1", None),
    ] {
        let text = if line.starts_with('[') {
            format!("{}{line}", minimal())
        } else {
            format!("{line}\n{}", minimal())
        };
        match read(&text).unwrap_err() {
            ConfigError::UnknownKey { nearest, .. } => assert_eq!(nearest, near, "{line}"),
            other => panic!("{line}: {other}"),
        }
    }
    let err = read(&format!("data_dri = \"/x\"\n{}", minimal())).unwrap_err();
    assert!(err.to_string().ends_with("did you mean \"data_dir\"?"), "{err}");
}

#[test]
fn limits_are_lowered_and_never_raised() {
    for (line, key) in [
        ("[journal]\nmax_bytes = 67108865", "journal.max_bytes"),
        ("[journal]\nmax_bytes = 1000", "journal.max_bytes"),
        ("[journal]\nmax_events = 10001", "journal.max_events"),
        ("[log]\nlevel = \"loud\"", "log.level"),
        ("[log]\nformat = \"xml\"", "log.format"),
    ] {
        match read(&format!("{}{line}", minimal())).unwrap_err() {
            ConfigError::Value { key: named, .. } => assert_eq!(named, key),
            other => panic!("{line}: {other}"),
        }
    }
}

#[test]
fn a_required_value_that_is_missing_or_wrong_is_named() {
    let cases = [
        ("url = \"https://gw.example.com\"\n", "", "gateway.url"),
        ("https://gw", "http://gw", "gateway.url"),
        (&format!("serving_ca_pins = [\"{PIN}\"]\n")[..], "", "gateway.serving_ca_pins"),
        (
            &format!("join_encryption_key_pin = \"{PIN}\"")[..],
            "join_encryption_key_pin = \"AB\"",
            "gateway.join_encryption_key_pin",
        ),
    ];
    for (from, to, key) in cases {
        let text = minimal().replacen(from, to, 1);
        assert!(read(&text).unwrap_err().to_string().contains(key), "{key}");
    }
    assert!(read("gateway = 1\n").unwrap_err().to_string().contains("[gateway]"));
    assert!(
        read(&format!("data_dir = \"relative\"\n{}", minimal()))
            .unwrap_err()
            .to_string()
            .contains("data_dir")
    );
}

#[test]
fn urls_are_a_host_and_a_port_and_nothing_else() {
    let address = |url| parse_url(url).map(|address| (address.host, address.port));
    assert_eq!(address("https://gw.example.com"), Ok(("gw.example.com".into(), 443)));
    assert_eq!(address("https://gw:8443/"), Ok(("gw".into(), 8443)));
    assert_eq!(address("https://[2001:db8::1]:9"), Ok(("2001:db8::1".into(), 9)));
    assert_eq!(address("https://[::1]"), Ok(("::1".into(), 443)));
    for wrong in [
        "",
        "gw",
        "https://",
        "https://gw/path",
        "https://gw:0",
        "https://gw:65536",
        "https://gw:+1",
        "https://u@gw",
        "https://gw?x",
        "https://[::1",
        "https://[::1]x",
        "https://[nope]:1",
        "https://gw:1:2",
    ] {
        assert!(address(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_network_is_its_first_address_and_a_length() {
    let network = |text: &str| text.parse::<Network>();
    let within = |text: &str, address: &str| network(text).unwrap().contains(address.parse().unwrap());
    for (text, inside, outside) in [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("192.168.1.7/32", "192.168.1.7", "192.168.1.6"),
        ("0.0.0.0/0", "255.255.255.255", "::"),
        ("fd00::/8", "fdff::1", "fc00::1"),
        ("::/0", "ffff::", "10.0.0.1"),
        ("2001:db8::1/128", "2001:db8::1", "2001:db8::2"),
    ] {
        assert!(within(text, inside) && !within(text, outside), "{text}");
        assert_eq!(network(text).unwrap().to_string(), text);
    }
    assert!(network("10.0.0.1/32").unwrap().is_single() && network("::1/128").unwrap().is_single());
    assert!(!network("10.0.0.0/31").unwrap().is_single());
    for wrong in ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "10.0.0/8", "x/8"] {
        assert!(network(wrong).unwrap_err().contains("is no network"), "{wrong}");
    }
    let told = read(&format!("{}[instances]\nimage_networks = [\"10.1.0.0/8\"]", minimal())).unwrap_err();
    assert!(
        told.to_string()
            .ends_with(r#"instances.image_networks names "10.1.0.0/8"; the network is written 10.0.0.0/8"#),
        "{told}"
    );
    let many = format!("{}[instances]\nimage_networks = {:?}", minimal(), ["10.0.0.0/8"; 65]);
    assert!(read(&many).unwrap_err().to_string().contains("at most 64"));
}

#[test]
fn what_is_written_reads_back() {
    let mut config = read(&minimal()).unwrap();
    config.gateway = Address { host: "2001:db8::1".into(), port: 8443, server_name: "gw.example.com".into() };
    config.data_dir = "/srv/bc \"d\"".into();
    assert_eq!(read(&render(&config)).unwrap(), config);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]
    #[test]
    fn no_text_panics(text in ".{0,300}", url in "https://.{0,60}") {
        let _ = read(&text);
        let _ = read(&format!("{}{text}", minimal()));
        let _ = parse_url(&url);
    }
}
