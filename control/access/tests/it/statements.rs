//! That the database takes each statement as it is written.

#[tokio::test]
async fn every_statement_is_one() {
    let all = [access::sql::ALL, access::sql::ssh::ALL].concat();
    testkit::db().await.prepare_all(&all).await;
}
