use std::collections::BTreeSet;

use super::*;

#[test]
fn names_actions_and_routes_are_unique_and_agree() {
    let mut seen = BTreeSet::new();
    for row in METHODS {
        assert!(seen.insert(row.name), "{} is there twice", row.name);
        let (group, verb) = row.parts();
        assert_eq!(row.action, format!("compute:{group}:{verb}"));
        assert_eq!(row.path(), format!("/api/compute/{group}/{verb}"));
        assert!(row.resource.starts_with("compute-"), "{}", row.name);
    }
}

#[test]
fn groups_come_in_the_order_of_their_methods() {
    let mut order: Vec<&str> = METHODS.iter().map(|row| row.parts().0).collect();
    order.dedup();
    assert_eq!(order, GROUPS.iter().map(|group| group.name).collect::<Vec<_>>());
}

#[test]
fn a_create_takes_an_idempotency_key_and_nothing_else_does() {
    for row in METHODS {
        let Shape::Object { fields, .. } = request_shape(row) else { panic!("{} takes no object", row.name) };
        let takes = fields.iter().any(|field| field.name == "idempotencyKey");
        assert_eq!(takes, row.idempotency == Idempotency::Key, "{}", row.name);
    }
}

#[test]
fn every_list_pages_alike() {
    for row in METHODS.iter().filter(|row| row.parts().1.starts_with("list")) {
        let Shape::Object { fields, .. } = request_shape(row) else { panic!("{} takes no object", row.name) };
        let limit = fields.iter().find(|field| field.name == "limit").map(|field| &field.shape);
        assert_eq!(limit, Some(&Shape::Integer { min: Some(1), max: Some(200) }), "{}", row.name);
        assert!(fields.iter().any(|field| field.name == "cursor"), "{}", row.name);
        let Shape::Object { fields, .. } = response_shape(row) else {
            panic!("{} answers no object", row.name)
        };
        assert_eq!(fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(), ["cursor", "items"]);
    }
}

#[test]
fn every_request_is_bounded() {
    fn bounded(shape: &Shape, at: &str) {
        match shape {
            Shape::Text { max, pattern, format, .. } => assert!(
                max.is_some() || pattern.is_some() || format.as_deref() == Some("date-time"),
                "{at} is text without a bound"
            ),
            Shape::Integer { min, max } => {
                assert!(min.is_some() && max.is_some(), "{at} is a number without bounds");
            }
            Shape::List { items, max } => {
                assert!(max.is_some(), "{at} is a list without a bound");
                bounded(items, at);
            }
            Shape::Object { fields, .. } => {
                for field in fields {
                    bounded(&field.shape, &format!("{at}.{}", field.name));
                }
            }
            Shape::Map { .. } | Shape::Bool | Shape::Words(_) => {}
            Shape::Any => panic!("{at} may be anything"),
        }
    }
    for row in METHODS {
        bounded(&request_shape(row), row.name);
    }
}
