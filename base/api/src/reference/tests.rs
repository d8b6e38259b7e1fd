use std::path::PathBuf;

use model::ErrorCode;

use super::*;

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn the_reference_page_says_what_the_table_says() {
    let path = docs().join("api.md");
    let page = reference();
    if std::env::var_os("BETTER_COMPUTE_RECORD_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let first = page.lines().zip(written.lines()).position(|(new, old)| new != old);
    assert!(
        page == written,
        "docs/api.md is out of date (line {first:?}): BETTER_COMPUTE_RECORD_DOCS=1 cargo test -p api reference writes it"
    );
}

#[test]
fn every_error_code_has_a_page_and_no_page_is_left_over() {
    let folder = docs().join("errors");
    for code in ErrorCode::ALL {
        let path = docs().join("..").join(crate::docs_path(code));
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page.starts_with(&format!("# {}\n", code.name())),
            "{} does not begin with its code",
            path.display()
        );
        for section in ["## Causes", "## What to do"] {
            assert!(page.contains(section), "{} has no {section}", code.name());
        }
        let status = format!("HTTP {}", code.http_status());
        assert!(page.contains(&status), "{} does not say {status}", code.name());
        let again = if code.retryable() {
            "The same call may succeed later."
        } else {
            "The same call will fail again."
        };
        assert!(page.contains(again), "{} does not say: {again}", code.name());
    }
    for entry in std::fs::read_dir(folder).expect("docs/errors is there") {
        let name = entry.expect("it can be read").file_name().into_string().expect("page names are UTF-8");
        let known = name == "README.md" || name.strip_suffix(".md").and_then(ErrorCode::parse).is_some();
        assert!(known, "docs/errors/{name} is about no code");
    }
}

#[test]
fn every_method_says_something_about_itself() {
    for row in METHODS {
        assert!(row.summary.ends_with('.') && row.summary.split(" ").count() >= 2, "{}", row.name);
        assert!(reference().contains(&format!("### {}\n", row.name)), "{}", row.name);
    }
}
