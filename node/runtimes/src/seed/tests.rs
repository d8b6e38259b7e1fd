use super::*;
use crate::conformance::{SSH_KEY, sample};

#[test]
fn user_data_is_bounded_and_never_shown() {
    let largest = UserData::new(vec![b'x'; USER_DATA_BYTES_MAX]).expect("it is not too long");
    assert_eq!(format!("{largest:?}"), "UserData(65536 bytes)");
    let over = UserData::new(vec![b'x'; USER_DATA_BYTES_MAX + 1]);
    assert_eq!(over, Err(SeedError::UserDataTooLong { given: USER_DATA_BYTES_MAX + 1 }));
    assert_eq!(UserData::new(Vec::new()), Ok(UserData::none()));
}

#[test]
fn a_guest_is_told_who_it_is_and_who_may_log_in() {
    let instance = sample(1);
    let expected =
        format!("instance-id: {}\nlocal-hostname: tiny-1\npublic-keys:\n  - \"{SSH_KEY}\"\n", instance.id);
    assert_eq!(meta_data(&instance), expected);
}

#[test]
fn a_keys_comment_is_text_to_yaml_whatever_it_holds() {
    let mut instance = sample(1);
    let odd = format!("{SSH_KEY}\"]: {{#");
    instance.ssh_keys =
        vec![crate::instance::AuthorizedKey::parse(&odd).expect("a comment may hold anything")];
    let text = meta_data(&instance);
    let line = text.lines().last().and_then(|line| line.strip_prefix("  - ")).expect("a list of keys");
    assert_eq!(serde_json::from_str::<String>(line).expect("a string"), odd);
}

#[test]
fn equal_instances_have_equal_seeds() {
    let user_data = UserData::new(b"#cloud-config\n".to_vec()).expect("short");
    assert_eq!(render(&sample(1), &user_data), render(&sample(1), &user_data));
    assert_ne!(render(&sample(1), &user_data), render(&sample(2), &user_data));
    assert_ne!(render(&sample(1), &user_data), render(&sample(1), &UserData::none()));
}
