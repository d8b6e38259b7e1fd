use super::*;

const ONE: Migration = Migration { version: 1, name: "one", text: "SELECT 1" };
const TWO: Migration = Migration { version: 2, name: "two", text: "SELECT 2" };

fn applied(migration: &Migration) -> Applied {
    Applied { version: migration.version, name: migration.name.to_owned(), sha256: digest(migration) }
}

fn refused(known: &[Migration], found: &[Applied]) -> ErrorKind {
    compare(known, found).expect_err("the two do not belong together").kind().clone()
}

#[test]
fn what_is_missing_is_counted() {
    assert_eq!(compare(&[ONE, TWO], &[]).unwrap(), SchemaState::Behind(2));
    assert_eq!(compare(&[ONE, TWO], &[applied(&ONE)]).unwrap(), SchemaState::Behind(1));
    assert_eq!(compare(&[ONE, TWO], &[applied(&ONE), applied(&TWO)]).unwrap(), SchemaState::Current);
}

#[test]
fn a_newer_database_is_refused() {
    let kind = refused(&[ONE], &[applied(&ONE), applied(&TWO)]);
    assert_eq!(kind, ErrorKind::SchemaTooNew { found: 2, known: 1 });
}

#[test]
fn an_edited_a_renamed_and_a_late_file_are_refused() {
    let edited = Migration { text: "SELECT 3", ..ONE };
    let renamed = Migration { name: "uno", ..ONE };
    for (known, why) in [(edited, "its text changed"), (renamed, "its name changed")] {
        assert_eq!(refused(&[known], &[applied(&ONE)]), ErrorKind::MigrationChanged { version: 1, why });
    }
    let late = refused(&[ONE, TWO], &[applied(&TWO)]);
    assert!(matches!(late, ErrorKind::MigrationChanged { version: 1, .. }), "{late:?}");
}

#[test]
fn the_embedded_files_are_in_order_and_say_nothing_of_now() {
    for pair in embedded().windows(2) {
        assert!(pair[0].version < pair[1].version);
    }
    for migration in embedded() {
        assert!(!migration.text.replace("compute_now()", "").contains("now()"), "{}", migration.name);
    }
}
