use super::*;

#[test]
fn a_version_reads_from_what_the_server_says() {
    assert_eq!(parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
    assert_eq!(parse_version("postgres (PostgreSQL) 17beta2"), Some(17));
    assert_eq!(parse_version("mysqld 8.0"), None);
    assert_eq!(parse_version("postgres (PostgreSQL) x"), None);
}

#[test]
fn a_folder_without_the_programs_names_the_package_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let err = find(Some(empty.path()), None, Path::new("/data")).unwrap_err().to_string();
    assert!(err.contains("apt-get install postgresql-15"), "{err}");
    assert!(err.contains(&empty.path().display().to_string()), "{err}");
}
