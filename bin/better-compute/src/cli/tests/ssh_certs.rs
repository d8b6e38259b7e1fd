//! SSH certificates on the command line.

use super::*;

fn issued() -> Value {
    json!({
        "cert": {
            "serial": "77", "account": "root", "validBefore": "2026-03-01T12:00:00Z",
            "node": { "id": "node_01k5w0000000000000000000000", "name": "gpu-7" },
        },
        "certificate": "ssh-ed25519-cert-v01@openssh.com AAAA",
        "hostname": "gpu-7.example.test",
    })
}

const PUBLIC: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti ada";

#[test]
fn a_certificate_is_put_beside_its_key_where_ssh_looks_for_it() {
    let stub = Stub::script(vec![Answer::json(issued()), Answer::json(issued()), Answer::json(issued())]);
    let person = Person::at(&stub);
    let key = person.home.path().join("id_ed25519.pub");
    std::fs::write(&key, format!("{PUBLIC}\n")).expect("it can be written");
    let key = key.display().to_string();
    let words = ["nodes", "ssh-cert", "gpu-7", "--account", "root", "--reason", "disk full", "--key", &key];
    let outcome = person.run_words(&words);
    assert_eq!(outcome.code, 0, "{}", outcome.err);
    let asked = &stub.asked()[0];
    assert_eq!(asked.line, "POST /api/compute/nodes/issueSshCert");
    let wanted = json!({ "node": "gpu-7", "account": "root", "reason": "disk full", "publicKey": PUBLIC });
    assert_eq!(asked.body, wanted);
    let beside = person.home.path().join("id_ed25519-cert.pub");
    let certificate = std::fs::read_to_string(&beside).expect("it was written");
    assert_eq!(certificate, "ssh-ed25519-cert-v01@openssh.com AAAA\n");
    let private = person.home.path().join("id_ed25519").display().to_string();
    assert_eq!(outcome.out, format!("ssh -i '{private}' root@gpu-7.example.test\n"));
    assert!(outcome.err.contains("serial 77"), "{}", outcome.err);

    let elsewhere = person.home.path().join("other-cert.pub").display().to_string();
    let outcome = person.run_words(&[&words[..], &["--out", &elsewhere]].concat());
    assert!(outcome.out.contains(&format!("CertificateFile='{elsewhere}'")), "{}", outcome.out);
    let outcome = person.run_words(&[&words[..], &["--output", "json"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&outcome.out).expect("it is JSON"), issued());
}

#[test]
fn a_private_key_and_a_file_of_several_go_nowhere() {
    let stub = Stub::script(vec![]);
    let person = Person::at(&stub);
    let (private, several) = (person.home.path().join("id"), person.home.path().join("two.pub"));
    std::fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").expect("it can be written");
    std::fs::write(&several, format!("{PUBLIC}\n{PUBLIC}\n")).expect("it can be written");
    for (file, said) in [(private, "private key"), (several, "several")] {
        let file = file.display().to_string();
        let words = ["nodes", "ssh-cert", "gpu-7", "--account", "root", "--reason", "x", "--key", &file];
        let outcome = person.run_words(&words);
        assert_eq!(outcome.code, 2, "{}", outcome.err);
        assert!(outcome.err.contains(said) && stub.asked().is_empty(), "{}", outcome.err);
    }
}

#[test]
fn a_revocation_is_asked_for_by_its_serial() {
    let stub = Stub::script(vec![Answer::json(issued()["cert"].clone())]);
    let person = Person::at(&stub);
    let unasked = person.run("nodes revoke-ssh-cert 77");
    assert_eq!(unasked.code, 2, "{}", unasked.err);
    assert_eq!(person.run("nodes revoke-ssh-cert 77 --yes").code, 0);
    assert_eq!(stub.asked()[0].body, json!({ "serial": "77" }));
}
