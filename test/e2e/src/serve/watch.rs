//! Who wrote which row: triggers in the database itself, which fire only for rows that a statement touched.

use anyhow::Context;
use serde_json::Value;

use super::Cloud;

/// As the login that a process has, whatever role it took on; what is signed and long is left out.
const INSTALL: &str = "
CREATE TABLE e2e_writes (
  n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, who text NOT NULL, relation text NOT NULL,
  was jsonb, became jsonb);
CREATE FUNCTION e2e_note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  INSERT INTO e2e_writes (at, who, relation, was, became) VALUES (clock_timestamp(), session_user, TG_TABLE_NAME,
    to_jsonb(OLD) - '{body,signature,result,content,report}'::text[],
    to_jsonb(NEW) - '{body,signature,result,content,report}'::text[]);
  RETURN NULL;
END $$;
";
const WATCHED: [&str; 6] =
    ["gateways", "node_sessions", "node_status", "node_inventory", "node_events", "commands"];

/// A row that was written.
#[derive(Debug)]
pub struct Written {
    pub who: String,
    pub relation: String,
    pub was: Value,
    pub became: Value,
}

impl Cloud {
    /// From here on every write to the fleet's rows is noted.
    pub async fn watch(&self) {
        self.db.batch(INSTALL).await;
        for table in WATCHED {
            let name = format!("e2e_{table}");
            self.db
                .batch(&format!(
                    "CREATE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION e2e_note()"
                ))
                .await;
        }
    }

    /// A login of its own for one gateway, with the rights of any gateway. Gives the URL.
    pub async fn gateway_login(
        &self,
        name: &str,
        at: Option<std::net::SocketAddr>,
    ) -> anyhow::Result<(String, String)> {
        // Roles belong to the whole server, which other tests share.
        let login = format!("{}_{name}", self.db.name());
        self.db
            .batch(&format!("CREATE ROLE {login} LOGIN PASSWORD 'for-this-test' IN ROLE bc_gateway"))
            .await;
        let url = self.url(Some((&login, "for-this-test")), at)?;
        Ok((login, url))
    }

    /// The number of the last write that was noted.
    pub async fn written_until(&self) -> i64 {
        self.db.scalar_i64("SELECT coalesce(max(n), 0) FROM e2e_writes").await
    }

    /// What was written after that one, in order.
    pub async fn written_since(&self, n: i64) -> anyhow::Result<Vec<Written>> {
        let text = self
            .db
            .scalar_text(&format!(
                "SELECT coalesce(jsonb_agg(jsonb_build_array(who, relation, was, became) ORDER BY n), '[]')::text
                 FROM e2e_writes WHERE n > {n}"
            ))
            .await;
        let rows: Vec<(String, String, Value, Value)> =
            serde_json::from_str(&text).context("the notes of the triggers")?;
        Ok(rows
            .into_iter()
            .map(|(who, relation, was, became)| Written { who, relation, was, became })
            .collect())
    }
}
