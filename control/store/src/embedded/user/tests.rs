use super::*;

const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:PostgreSQL:/var/lib/postgresql:/bin/bash\nbad:x:y\n";

#[test]
fn a_user_is_found_by_its_whole_name_and_never_as_root() {
    assert_eq!(lookup(PASSWD, "postgres"), Some(Ids { uid: 101, gid: 104 }));
    for absent in ["post", "root", "bad", "x"] {
        assert_eq!(lookup(PASSWD, absent), None, "{absent}");
    }
}
