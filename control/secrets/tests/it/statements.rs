//! That the database takes each statement as it is written.

#[tokio::test]
async fn every_statement_is_one() {
    testkit::db().await.prepare_all(secrets::sql::ALL).await;
}
