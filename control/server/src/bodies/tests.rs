use kit::{OsRng, Rng};

use super::*;

fn user() -> UserId {
    (&OsRng as &dyn Rng).id(kernel::testing::now())
}

#[test]
fn large_bodies_have_bounded_room_and_a_user_a_part_of_it() {
    let bodies = Bodies::default();
    const LARGE: usize = 1024 * 1024;
    let mut kept = Vec::new();
    for user in [user(), user(), user(), user()] {
        kept.extend((0..16).map(|_| bodies.room(user, LARGE).expect("there is room").expect("it counts")));
        assert!(bodies.room(user, LARGE).is_err(), "a user has a quarter");
    }
    let another = user();
    let refused = bodies.room(another, LARGE).expect_err("all is taken");
    assert_eq!((refused.code, refused.retry_after), (ErrorCode::Unavailable, Some(1)));
    assert!(bodies.room(another, SMALL_BYTES_MAX).expect("small ones go by").is_none());
    kept.pop();
    assert!(bodies.room(another, LARGE).is_ok(), "room comes back");
    kept.clear();
    assert!(bodies.taken.lock().unwrap().by_user.is_empty());
}
