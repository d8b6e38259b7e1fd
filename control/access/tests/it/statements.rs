//! That the database takes each statement as it is written.

#[tokio::test]
async fn every_statement_is_one() {
    testkit::db().await.prepare_all(access::sql::ALL).await;
}
