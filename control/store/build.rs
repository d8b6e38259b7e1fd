//! Lists `migrations/NNNN_name.sql` so that a new file needs no line of code.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../migrations");
    let root = root.canonicalize().expect("the migrations folder is part of the source tree");
    println!("cargo::rerun-if-changed={}", root.display());

    let mut files: Vec<(u32, String, String)> = Vec::new();
    for entry in fs::read_dir(&root).expect("the migrations folder can be listed") {
        let path = entry.expect("the migrations folder can be listed").path();
        let file =
            path.file_name().and_then(|name| name.to_str()).expect("migration names are ASCII").to_owned();
        println!("cargo::rerun-if-changed={}", path.display());
        let Some(stem) = file.strip_suffix(".sql") else { continue };
        // The grants are not a migration: they are applied again after every run.
        if stem == "grants" {
            continue;
        }
        let (version, name) = stem
            .split_once('_')
            .filter(|(digits, _)| digits.len() == 4)
            .and_then(|(digits, name)| Some((digits.parse().ok()?, name.to_owned())))
            .unwrap_or_else(|| panic!("{file} is not named NNNN_name.sql"));
        files.push((version, name, path.display().to_string()));
    }
    files.sort();
    for pair in files.windows(2) {
        assert!(pair[0].0 != pair[1].0, "two migrations have the number {:04}", pair[0].0);
    }

    let mut code = String::from("pub(crate) static EMBEDDED: &[Migration] = &[\n");
    for (version, name, path) in &files {
        writeln!(
            code,
            "    Migration {{ version: {version}, name: {name:?}, text: include_str!({path:?}) }},"
        )
        .expect("writing to a string");
    }
    code.push_str("];\n");
    writeln!(
        code,
        "pub(crate) static GRANTS: &str = include_str!({:?});",
        root.join("grants.sql").display().to_string()
    )
    .expect("writing to a string");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("migrations.rs");
    fs::write(out, code).expect("the build folder can be written");
}
