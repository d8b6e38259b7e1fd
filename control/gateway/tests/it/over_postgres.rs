//! The store over PostgreSQL keeps the rules, under the role a gateway has and no other.

use crate::postgres::Postgres;

gateway::conformance_tests!(Postgres::under(Some("bc_gateway")));

#[tokio::test]
async fn every_statement_is_one_that_the_schema_takes() {
    testkit::db().await.prepare_all(fleet::delivery::sql::STATEMENTS).await;
}
