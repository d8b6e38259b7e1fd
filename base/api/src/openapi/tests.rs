use std::collections::BTreeSet;

use super::*;

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, root: &Value, seen: &mut usize) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let pointer = reference.strip_prefix('#').expect("references stay in the document");
                    assert!(root.pointer(pointer).is_some(), "{reference} leads nowhere");
                    *seen += 1;
                }
                map.values().for_each(|inner| walk(inner, root, seen));
            }
            Value::Array(items) => items.iter().for_each(|inner| walk(inner, root, seen)),
            _ => {}
        }
    }
    let document = openapi();
    let mut seen = 0;
    walk(&document, &document, &mut seen);
    assert!(seen > METHODS.len(), "only {seen} references");
}

#[test]
fn every_method_is_an_operation_with_its_errors() {
    let document = openapi();
    let paths = document["paths"].as_object().expect("paths are an object");
    assert_eq!(paths.len(), METHODS.len() + 1);
    let operations: BTreeSet<&str> = paths
        .values()
        .filter_map(|path| path["post"]["operationId"].as_str().or(path["get"]["operationId"].as_str()))
        .collect();
    assert_eq!(operations.len(), paths.len());
    let create = &document["paths"]["/api/compute/reservations/create"]["post"];
    assert_eq!(create["responses"]["429"]["description"], "QUOTA_EXCEEDED, RATE_LIMITED");
    assert_eq!(
        create["requestBody"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/CreateReservation"
    );
}

#[test]
fn types_have_one_name_each() {
    let document = openapi();
    for name in document["components"]["schemas"].as_object().expect("schemas are an object").keys() {
        // schemars tells two types of one name apart by a number.
        assert!(!name.ends_with(|last: char| last.is_ascii_digit()), "two types are called {name}");
    }
}

#[test]
fn an_optional_field_is_absent_and_never_null() {
    let document = openapi();
    let create = &document["components"]["schemas"]["CreateReservation"];
    assert_eq!(create["additionalProperties"], false);
    assert_eq!(create["required"], json!(["pool"]));
    assert_eq!(create["properties"]["gpus"]["type"], "integer");
    assert_eq!(create["properties"]["wait"]["$ref"], "#/components/schemas/Wait");
    assert_eq!(create["properties"]["binding"]["enum"], json!(["hold", "kubernetes"]));
}
