//! A migrated database per test, copied from a template.
//!
//! One private server per test process, started by the first test that asks and gone with the process. Where
//! `BC_TEST_DATABASE_URL` is set (a superuser's, or one that may create databases and roles), that server is used.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use store::embedded::{Embedded, EmbeddedConfig};
use store::{Op, Secret, Sql, Store, StoreConfig, StoreError, migrate};
use tokio::sync::{Notify, OnceCell, Semaphore};

/// Copies of the template made at once: they contend for the same disk.
static COPYING: Semaphore = Semaphore::const_new(2);
static SERVER: OnceCell<Server> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Databases whose test is over, dropped when the next one is made: a destructor cannot wait.
static FINISHED: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Sessions a test may have at once.
const POOL_SIZE: usize = 8;
/// Room for the pools of as many tests as run at once on a large machine.
const CONNECTIONS_MAX: u32 = 400;
const MEET: Op = Op::new("test_meet");

enum Server {
    Private { embedded: Embedded, template: String },
    Given { url: String, template: String },
}

/// A database of one test. It is dropped after the test.
pub struct TestDb {
    /// As the owner of everything.
    pub store: Store,
    /// The same database for another process or another [`StoreConfig`]; it holds a password.
    pub url: String,
    name: String,
}

/// Makes a database with this program's schema and nothing else in it.
pub async fn db() -> TestDb {
    let server = SERVER.get_or_init(Server::start).await;
    let name = format!("bc_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let template = server.template();
    let admin = server.admin().await;
    {
        let _permit = COPYING.acquire().await.expect("it is never closed");
        let finished = std::mem::take(&mut *FINISHED.lock().expect("no holder of this lock panics"));
        for old in finished {
            run(&admin, &format!("DROP DATABASE IF EXISTS {old} WITH (FORCE)")).await;
        }
        let how = server.copying();
        run(&admin, &format!("CREATE DATABASE {name} TEMPLATE {template} {how}")).await;
    }
    admin.close();
    let url = server.url(&name);
    let store = Store::open(config(&url)).await.expect("the new database takes connections");
    TestDb { store, url: url.reveal().to_owned(), name }
}

impl TestDb {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration of [`TestDb::store`], to change and open again: another role, another clock.
    pub fn config(&self) -> StoreConfig {
        config(&Secret::new(self.url.clone()))
    }

    /// A second, independent pool on the same database.
    pub async fn open(&self, config: StoreConfig) -> Store {
        Store::open(config).await.expect("the database takes connections")
    }

    /// Runs statements without parameters, one after another.
    ///
    /// # Panics
    /// When one fails.
    pub async fn batch(&self, text: &str) {
        for statement in migrate::statements(text) {
            run(&self.store, statement).await;
        }
    }

    /// The one text that a statement answers.
    pub async fn scalar_text(&self, text: &str) -> String {
        let row = self.store.read_one(&leaked(text), &[]).await.expect("the statement of the test is right");
        row.get(0)
    }

    /// The one bigint that a statement answers.
    pub async fn scalar_i64(&self, text: &str) -> i64 {
        let row = self.store.read_one(&leaked(text), &[]).await.expect("the statement of the test is right");
        row.get(0)
    }

    /// Runs what comes when these statements have run and are not committed; they are once it waits for them.
    ///
    /// # Panics
    /// When one fails, or nobody waits.
    pub async fn meet<T>(&self, statements: &[&str], second: impl Future<Output = T>) -> T {
        let (ran, waits) = (&Notify::new(), &Notify::new());
        let statements: &Vec<Sql> = &statements.iter().map(|text| leaked(text)).collect();
        let first = self.store.tx(MEET, |tx| {
            Box::pin(async move {
                for statement in statements {
                    tx.execute(statement, &[]).await?;
                }
                ran.notify_one();
                waits.notified().await;
                Ok::<_, StoreError>(())
            })
        });
        let second = async {
            ran.notified().await;
            second.await
        };
        let look = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            crate::eventually(Duration::from_secs(20), async || {
                (self.scalar_i64(waiting).await > 0).then_some(()).ok_or("nobody waits")
            })
            .await;
            waits.notify_one();
        };
        let (first, told, ()) = tokio::join!(first, second, look);
        first.expect("the statements of the test are right");
        told
    }

    /// The plan of a statement for these literals, in the order of its parameters.
    pub async fn explain(&self, sql: &Sql, literals: &[&str]) -> String {
        let mut text = format!("EXPLAIN {}", sql.text);
        // From the last, so that $1 does not match in $10.
        for (index, literal) in literals.iter().enumerate().rev() {
            text = text.replace(&format!("${}", index + 1), literal);
        }
        let rows = self.store.read(&leaked(&text), &[]).await.expect("the statement of the test is right");
        rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
    }

    /// Prepares statements, which finds every missing table, column and type in them.
    ///
    /// # Panics
    /// With all that are wrong.
    pub async fn prepare_all(&self, statements: &[Sql]) {
        let mut wrong = Vec::new();
        for statement in statements {
            if let Err(err) = self.store.prepare(statement).await {
                wrong.push(format!("{}: {err}", statement.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        self.store.close();
        if let Ok(mut finished) = FINISHED.lock() {
            finished.push(std::mem::take(&mut self.name));
        }
    }
}

impl Server {
    async fn start() -> Self {
        let template = format!("bc_template_{}", &migrate::fingerprint()[..12]);
        let server = match std::env::var("BC_TEST_DATABASE_URL") {
            Ok(url) => Self::Given { url, template },
            Err(_) => {
                let config = EmbeddedConfig { connections_max: CONNECTIONS_MAX, ..EmbeddedConfig::memory() };
                let embedded = Embedded::start(config).await.expect("a private database starts");
                Self::Private { embedded, template }
            }
        };
        if let Self::Given { .. } = server {
            server.sweep().await;
        }
        server.make_template().await;
        server
    }

    /// Drops what ended processes of this machine left on a given server.
    async fn sweep(&self) {
        let admin = self.admin().await;
        let names = leaked("SELECT datname::text FROM pg_database WHERE datname LIKE 'bc\\_test\\_%'");
        let rows = admin.read(&names, &[]).await.expect("the catalog can be read");
        for name in rows.iter().map(|row| row.get::<_, String>(0)) {
            let process = name.trim_start_matches("bc_test_").split('_').next().unwrap_or_default();
            if !process.is_empty() && !std::path::Path::new("/proc").join(process).exists() {
                run(&admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
            }
        }
        admin.close();
    }

    fn template(&self) -> &str {
        match self {
            Self::Private { template, .. } | Self::Given { template, .. } => template,
        }
    }

    /// Copying files costs two checkpoints, which are nothing where nothing is fsynced.
    fn copying(&self) -> &'static str {
        match self {
            Self::Private { .. } => "STRATEGY FILE_COPY",
            Self::Given { .. } => "",
        }
    }

    fn url(&self, database: &str) -> Secret {
        match self {
            Self::Private { embedded, .. } => embedded.url(database),
            Self::Given { url, .. } => {
                let (before, options) =
                    url.split_once('?').map_or((url.as_str(), None), |(a, b)| (a, Some(b)));
                let authority = before.find("://").map_or(0, |at| at + 3);
                let end = before[authority..].find('/').map_or(before.len(), |at| authority + at);
                let options = options.map(|options| format!("?{options}")).unwrap_or_default();
                Secret::new(format!("{}/{database}{options}", &before[..end]))
            }
        }
    }

    async fn admin(&self) -> Store {
        let url = match self {
            Self::Private { embedded, .. } => embedded.url(Embedded::DATABASE),
            Self::Given { url, .. } => Secret::new(url.clone()),
        };
        Store::open(StoreConfig { pool_size: 1, ..config(&url) }).await.expect("the server takes connections")
    }

    /// On a given server the template outlives the process and several may want it at once: it is made under
    /// another name and renamed when it is whole.
    async fn make_template(&self) {
        let admin = self.admin().await;
        let template = self.template();
        let exists = format!("SELECT count(*) FROM pg_database WHERE datname = '{template}'");
        let found: i64 = admin.read_one(&leaked(&exists), &[]).await.expect("the catalog can be read").get(0);
        if found > 0 {
            return;
        }
        let draft = format!("{template}_{}", std::process::id());
        run(&admin, &format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await;
        run(&admin, &format!("CREATE DATABASE {draft} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C.UTF-8'"))
            .await;
        let store = Store::open(config(&self.url(&draft))).await.expect("the template takes connections");
        migrate::run(&store).await.expect("the migrations apply");
        store.close();
        drop(store);
        let renamed = leaked(&format!("ALTER DATABASE {draft} RENAME TO {template}"));
        crate::eventually(Duration::from_secs(10), || async {
            let done = admin.execute(&renamed, &[]).await;
            // Either our own last session is just ending, or another process was first.
            let taken: i64 =
                admin.read_one(&leaked(&exists), &[]).await.expect("the catalog can be read").get(0);
            if taken > 0 { Ok(()) } else { Err(done.err().map_or_else(String::new, |err| err.to_string())) }
        })
        .await;
        run(&admin, &format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)")).await;
        admin.close();
    }
}

fn config(url: &Secret) -> StoreConfig {
    StoreConfig {
        pool_size: POOL_SIZE,
        application_name: "bc-test".to_owned(),
        ..StoreConfig::new(url.clone())
    }
}

async fn run(store: &Store, text: &str) {
    if let Err(err) = store.execute(&leaked(text), &[]).await {
        panic!("{text}: {err}");
    }
}

/// Statements are static in the program; a test's few made-up ones live as long as its process.
fn leaked(text: &str) -> Sql {
    store::sql("test", Box::leak(text.to_owned().into_boxed_str()))
}
