use std::path::PathBuf;

use super::*;

fn recorded_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("surface.json")
}

/// Set to `additions` to record what is new; to `breaking` to record also what callers will not survive.
const RECORD: &str = "BETTER_COMPUTE_RECORD_SURFACE";

#[test]
fn nothing_that_was_served_breaks() {
    let now = surface();
    let wish = std::env::var(RECORD).unwrap_or_default();
    let recorded: Surface = match std::fs::read_to_string(recorded_path()) {
        Ok(text) => serde_json::from_str(&text).expect("the recorded surface is well formed"),
        Err(_) => Surface { methods: BTreeMap::new(), routes: BTreeMap::new() },
    };
    let changes = compare(&recorded, &now);
    let breaks = changes.iter().any(|change| matches!(change, SurfaceChange::Breaks(_)));
    if wish == "breaking" || (wish == "additions" && !breaks) {
        std::fs::write(recorded_path(), written(&now)).expect("the crate's folder can be written");
        return;
    }
    assert!(
        changes.is_empty(),
        "the API changed:\n{}\nrecord additions with {RECORD}=additions cargo test -p api surface; \
         a change that breaks callers needs {RECORD}=breaking and a line in the release notes",
        changes.iter().map(|change| format!("  {change:?}\n")).collect::<String>()
    );
}

/// JSON with one field a line, so that a change reads as one line.
fn written(surface: &Surface) -> String {
    let json = |value: &dyn erased::Json| value.text();
    let mut out = format!("{{\n\"routes\": {},\n\"methods\": {{\n", json(&surface.routes));
    for (index, (name, method)) in surface.methods.iter().enumerate() {
        out.push_str(&format!(
            "{}{}: {{\n\"action\": {}, \"resource\": {}, \"idempotency\": {}, \"since\": {},\n\"errors\": {},\n",
            if index == 0 { "" } else { ",\n" },
            json(name),
            json(&method.action),
            json(&method.resource),
            json(&method.idempotency),
            json(&method.since),
            json(&method.errors)
        ));
        for (side, fields, end) in [("request", &method.request, ",\n"), ("response", &method.response, "}")]
        {
            let lines: Vec<String> =
                fields.iter().map(|(path, field)| format!("{}: {}", json(path), json(field))).collect();
            out.push_str(&format!("\"{side}\": {{\n{}\n}}{end}", lines.join(",\n")));
        }
    }
    out + "\n}}\n"
}

mod erased {
    pub trait Json {
        fn text(&self) -> String;
    }

    impl<T: serde::Serialize> Json for T {
        fn text(&self) -> String {
            serde_json::to_string(self).expect("a surface is plain data")
        }
    }
}

fn one() -> Surface {
    let mut only = surface();
    only.methods.retain(|name, _| name == "reservations.create");
    only
}

fn changes(edit: impl FnOnce(&mut MethodSurface)) -> Vec<SurfaceChange> {
    let before = one();
    let mut after = before.clone();
    edit(after.methods.get_mut("reservations.create").expect("it was kept"));
    compare(&before, &after)
}

fn breaks(changes: &[SurfaceChange]) -> bool {
    changes.iter().any(|change| matches!(change, SurfaceChange::Breaks(_)))
}

#[test]
fn what_takes_something_from_callers_breaks() {
    type Edit = fn(&mut MethodSurface);
    let edits: [(&str, Edit); 7] = [
        ("removed field", |m| drop(m.request.remove("gpus"))),
        ("removed answer", |m| drop(m.response.remove("state"))),
        ("newly required", |m| m.request.get_mut("gpus").expect("there").required = true),
        ("no longer sure", |m| m.response.get_mut("state").expect("there").required = false),
        ("other type", |m| m.request.get_mut("gpus").expect("there").kind = "string".to_owned()),
        ("narrower", |m| m.request.get_mut("gpus").expect("there").max = Some(8)),
        ("removed error", |m| m.errors.retain(|code| code != "QUOTA_EXCEEDED")),
    ];
    for (what, edit) in edits {
        assert!(breaks(&changes(edit)), "{what}");
    }
    let nothing = Surface { methods: BTreeMap::new(), routes: BTreeMap::new() };
    assert!(breaks(&compare(&one(), &nothing)), "removed method");
}

#[test]
fn what_only_adds_does_not_break() {
    type Edit = fn(&mut MethodSurface);
    let new =
        |required| FieldSurface { kind: "string".to_owned(), required, min: None, max: None, words: vec![] };
    let edits: [(&str, Edit); 3] = [
        ("wider", |m| m.request.get_mut("gpus").expect("there").max = Some(1 << 20)),
        ("no longer required", |m| m.request.get_mut("pool").expect("there").required = false),
        ("new error", |m| m.errors.push("SPEND_LIMIT_REACHED".to_owned())),
    ];
    for (what, edit) in edits {
        let changes = changes(edit);
        assert!(!changes.is_empty() && !breaks(&changes), "{what}");
    }
    assert!(!breaks(&changes(|m| drop(m.request.insert("colour".to_owned(), new(false))))));
    assert!(breaks(&changes(|m| drop(m.request.insert("colour".to_owned(), new(true))))));
    assert!(!breaks(&changes(|m| drop(m.response.insert("colour".to_owned(), new(true))))));
}

#[test]
fn a_name_where_an_id_was_taken_adds_and_one_where_an_id_was_answered_breaks() {
    let field = |kind: &str| FieldSurface {
        kind: kind.to_owned(),
        required: true,
        min: None,
        max: None,
        words: vec![],
    };
    let becomes = |side, before: &str, after: &str| {
        let of = |kind| BTreeMap::from([("id".to_owned(), field(kind))]);
        let mut changes = Vec::new();
        compare_fields("here", side, &of(before), &of(after), &mut changes);
        assert_eq!(changes.len(), 1, "{changes:?}");
        breaks(&changes)
    };
    assert!(!becomes(Side::Request, "string (instance-id)", "string (instance-ref)"));
    assert!(becomes(Side::Request, "string (instance-ref)", "string (instance-id)"));
    assert!(becomes(Side::Request, "string (instance-id)", "string (image-ref)"));
    assert!(becomes(Side::Request, "string", "string (instance-ref)"));
    assert!(becomes(Side::Response, "string (instance-id)", "string (instance-ref)"));
}
