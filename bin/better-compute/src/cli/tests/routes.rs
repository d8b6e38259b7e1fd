//! Every method has its command, and what goes over the wire is what the table says.

use super::*;

#[test]
fn the_commands_are_sound() {
    crate::root().debug_assert();
}

#[test]
fn every_method_has_a_command_with_help() {
    let root = crate::root();
    for row in api::METHODS {
        let (group, verb) = row.cli();
        let command = root
            .find_subcommand(&group)
            .and_then(|group| group.find_subcommand(&verb))
            .unwrap_or_else(|| panic!("{} has no command", row.name));
        assert!(command.get_about().is_some_and(|about| !about.to_string().is_empty()), "{}", row.name);
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{}: --{} says nothing", row.name, argument.get_id());
        }
    }
}

#[test]
fn every_field_of_every_request_has_a_flag() {
    for row in api::METHODS {
        let api::Shape::Object { fields, .. } = api::request_shape(row) else { panic!("{}", row.name) };
        let flags = flags::flags(row);
        for field in fields.iter().filter(|field| field.name != "wait") {
            let there = flags.iter().any(|flag| flag.path.split('.').next() == Some(&field.name));
            assert!(there, "{}: {} has no flag", row.name, field.name);
        }
        let mut longs: Vec<&str> = flags.iter().map(|flag| flag.long.as_str()).collect();
        longs.sort_unstable();
        let count = longs.len();
        longs.dedup();
        assert_eq!(longs.len(), count, "{}: two fields share a flag", row.name);
    }
}

#[test]
fn every_method_can_be_called_by_json_alone() {
    for row in api::METHODS {
        let stub = Stub::script(vec![Answer::json(json!({"items": []}))]);
        let (group, verb) = row.cli();
        let mut words: Vec<&str> = vec![&group, &verb, "--set", "{\"colour\": 1}"];
        // Whose request is mostly what its file says.
        words.extend(
            (row.name == "images.import").then_some(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")),
        );
        let outcome = Person::at(&stub).run_words(&words);
        // The request went through clap to the table's own check, and no further.
        assert_eq!(outcome.code, 2, "{}: {}", row.name, outcome.err);
        if row.name != "system.confirmRestore" {
            assert!(outcome.err.contains("unknown field `colour`"), "{}: {}", row.name, outcome.err);
        }
        assert!(stub.asked().is_empty(), "{}", row.name);
    }
}

#[test]
fn every_list_shows_columns() {
    for row in api::METHODS.iter().filter(|row| row.parts().1.starts_with("list")) {
        assert!(columns::of(row.name).is_some_and(|columns| !columns.is_empty()), "{}", row.name);
    }
}

#[test]
fn flags_become_the_request() {
    let stub = Stub::script(vec![Answer::json(reservation("scheduling"))]);
    let outcome = Person::at(&stub).run(
        "reservations create --pool gpu --gpus 4 --memory-gib 256 --selector tier=gold --selector zone=a --whole-node",
    );
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let asked = &stub.asked()[0];
    assert_eq!(asked.line, "POST /api/compute/reservations/create");
    assert_eq!(asked.header("authorization"), Some("Bearer bct_testtesttest"));
    let mut body = asked.body.clone();
    let key = body
        .as_object_mut()
        .and_then(|body| body.remove("idempotencyKey"))
        .expect("a create carries its key");
    assert!(key.as_str().is_some_and(|key| key.starts_with("cli-")), "{key}");
    let wanted = json!({"pool": "gpu", "gpus": 4, "memoryGiB": 256, "selector": {"tier": "gold", "zone": "a"}, "wholeNode": true});
    assert_eq!(body, wanted);
}

#[test]
fn nested_fields_have_flags_of_their_own() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    let person = Person::at(&stub);
    person
        .run("pools create gpu --class gpu --placement spread --host-reserve-vcpu 4 --lost-after-minutes 30");
    person.run("commands create sim-0 gpu.reset --gpus GPU-1,GPU-2 --yes");
    person.run("nodes update sim-0 --label tier=gold --label old-");
    person.run("flavors create fast --pool vps --vcpu 8 --memory-gib 32 --disk-gib 100 --numa-affine --pinned --hugepages 1Gi");
    let asked = stub.asked();
    let policy = json!({"placement": "spread", "hostReserve": {"vcpu": 4}, "lostAfterMinutes": 30});
    assert_eq!(asked[0].body["policy"], policy);
    assert_eq!(asked[1].body["payload"], json!({"gpus": ["GPU-1", "GPU-2"]}));
    assert_eq!(asked[1].body["confirm"], "sim-0");
    assert_eq!(asked[2].body["labels"], json!({"tier": "gold", "old": null}));
    let placement = json!({"numaAffine": true, "pinned": true, "hugepages": "1Gi"});
    assert_eq!(asked[3].body["placement"], placement);
}

#[test]
fn instances_are_named_by_their_id_or_their_name() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    let (person, id, tenant) = (Person::at(&stub), id::<model::InstanceId>(1), id::<model::TenantId>(2));
    let resize = format!("instances resize web --flavor larger --tenant {tenant}");
    for (line, body) in [
        (format!("instances get {id}"), json!({"id": id})),
        ("instances stop web".to_owned(), json!({"id": "web"})),
        ("instances force-release web --yes".to_owned(), json!({"id": "web"})),
        (resize, json!({"id": "web", "flavor": "larger", "tenant": tenant})),
    ] {
        let outcome = person.run(&line);
        assert_eq!(outcome.code, 0, "{line}: {}", outcome.err);
        assert_eq!(stub.asked().pop().expect("it was sent").body, body, "{line}");
    }
    let help = person.run("instances stop --help").err;
    assert!(help.contains("[INSTANCE]") && help.contains("or its name"), "{help}");
}

#[test]
fn ssh_keys_come_from_files_and_a_private_one_goes_nowhere() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    let person = Person::at(&stub);
    let file = person.home.path().join("keys.pub");
    std::fs::write(&file, "# ours\nssh-ed25519 AAAA ada\n\nssh-rsa BBBB bob\n").expect("it can be written");
    let private = person.home.path().join("id_ed25519");
    std::fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").expect("it can be written");
    let (file, private) = (file.display().to_string(), private.display().to_string());
    let create =
        ["instances", "create", "--pool", "vps", "--flavor", "small", "--image", "debian", "--ssh-key"];
    let refused = person.run_words(&[&create[..], &[private.as_str()]].concat());
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("private key") && stub.asked().is_empty(), "{}", refused.err);
    let words = [&create[..], &[file.as_str(), "--ssh-key", "ssh-ed25519 CCCC eve"]].concat();
    assert_eq!(person.run_words(&words).code, 0);
    let keys = json!(["ssh-ed25519 AAAA ada", "ssh-rsa BBBB bob", "ssh-ed25519 CCCC eve"]);
    assert_eq!(stub.asked()[0].body["sshKeys"], keys);
}

#[test]
fn a_request_comes_from_a_file_with_flags_over_it_and_json_over_both() {
    let stub = Stub::script(vec![Answer::json(reservation("scheduling"))]);
    let person = Person::at(&stub).typing("{\"pool\": \"cpu\", \"gpus\": 1, \"hours\": 2}");
    let outcome = person.run_words(&[
        "reservations",
        "create",
        "--request",
        "-",
        "--pool",
        "gpu",
        "--set",
        "{\"hours\": 3}",
    ]);
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let body = &stub.asked()[0].body;
    assert_eq!((&body["pool"], &body["gpus"], &body["hours"]), (&json!("gpu"), &json!(1), &json!(3)));
}

#[test]
fn a_policy_comes_from_its_file() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    let person = Person::at(&stub);
    let file = person.home.path().join("policy.json");
    std::fs::write(&file, "{\"statements\": []}").expect("it can be written");
    let outcome = person.run_words(&["policies", "put", "readers", "--file", &file.display().to_string()]);
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert_eq!(stub.asked()[0].body, json!({"name": "readers", "document": {"statements": []}}));
}

#[test]
fn an_id_of_another_kind_never_leaves_this_machine() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    let pool = id::<model::PoolId>(1);
    for line in [
        format!("nodes get {pool}"),
        format!("reservations get {pool}"),
        format!("nodes list --pool {}", id::<model::NodeId>(1)),
        format!("instances stop {pool}"),
    ] {
        let outcome = Person::at(&stub).run(&line);
        assert_eq!(outcome.code, 2, "{line}: {}", outcome.err);
    }
    let outcome = Person::at(&stub).run(&format!("nodes get {pool}"));
    assert!(outcome.err.starts_with("error: NODE: "), "{}", outcome.err);
    assert!(outcome.err.contains("is the id of a pool, not of a node"), "{}", outcome.err);
    let outcome = Person::at(&stub).run(&format!("instances stop {pool}"));
    assert!(outcome.err.starts_with("error: INSTANCE: "), "{}", outcome.err);
    assert!(outcome.err.contains("is the id of a pool, not of an instance"), "{}", outcome.err);
    assert!(stub.asked().is_empty());
}

#[test]
fn bounds_are_usage_errors() {
    let stub = Stub::script(vec![Answer::json(json!({}))]);
    for line in [
        "reservations create --pool gpu --gpus 5000",
        "reservations create --pool gpu",
        "nodes list --limit 0",
        "nodes list --state happy",
    ] {
        assert_eq!(Person::at(&stub).run(line).code, 2, "{line}");
    }
    assert!(stub.asked().is_empty());
}

#[test]
fn manual_pages_and_completions_cover_the_commands() {
    let person = Person::new();
    let folder = person.home.path().join("man");
    assert_eq!(person.run(&format!("man {}", folder.display())).code, 0);
    let pages = std::fs::read_dir(&folder).expect("it was made").count();
    assert!(pages > api::METHODS.len(), "{pages} pages");
    let script = person.run("completions bash").out;
    assert!(script.contains("join-tokens"), "{}", &script[..200]);
}

#[test]
fn the_install_script_asks_the_server_what_a_machine_must_know() {
    let join = json!({
        "gatewayUrl": "https://gw.example.com:8443", "serverName": "gateway", "servingCaPin": "a".repeat(64),
        "joinSigningPin": "c".repeat(64), "joinEncryptionPin": "d".repeat(64),
        "joinEncryptionKey": "{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"eA\",\"y\":\"eQ\"}",
    });
    let stub = Stub::script(vec![Answer::json(json!({ "join": join }))]);
    let outcome = Person::at(&stub).run("daemon install-script --binary ./bcd --site fsn1");
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    assert!(
        outcome.out.contains("url = \"https://gw.example.com:8443\"\nserver_name = \"gateway\"\n"),
        "{}",
        outcome.out
    );
    assert!(!outcome.out.contains("bct_"), "the caller's own token is not in it");

    let mut evil = join.clone();
    evil["gatewayUrl"] = "https://gw\nEND_OF_CONFIG\nrm -rf /".into();
    let stub = Stub::script(vec![Answer::json(json!({ "join": evil }))]);
    let outcome = Person::at(&stub).run("daemon install-script --binary ./bcd");
    assert_eq!((outcome.code, outcome.out.as_str()), (1, ""), "{}", outcome.err);
}

#[test]
fn an_install_script_needs_pins_with_its_gateway_and_a_hash_with_its_url() {
    let person = Person::new();
    for line in [
        "daemon install-script --binary ./bcd --gateway https://gw.example.com",
        "daemon install-script --url https://a.example/bcd",
        "daemon install-script --url http://a.example/bcd --sha256 0",
        "daemon install-script",
    ] {
        assert_eq!(person.run(line).code, 2, "{line}");
    }
}
