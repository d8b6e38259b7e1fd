//! Named statements and named operations. The names are metric labels.

/// One statement with the name it has in metrics and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sql {
    pub name: &'static str,
    pub text: &'static str,
}

/// Names a statement: `pub const NODE_LIST: Sql = sql("node_list", "SELECT …");`
pub const fn sql(name: &'static str, text: &'static str) -> Sql {
    Sql { name, text }
}

/// A named transaction: `pub const RESERVATION_CREATE: Op = Op::new("reservation_create");`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Op {
    name: &'static str,
    by_keys: bool,
}

impl Op {
    pub const fn new(name: &'static str) -> Self {
        Self { name, by_keys: false }
    }

    /// Every statement finds its rows by keys that are parameters. Each is planned once a session, for keys in general:
    /// PostgreSQL would plan one over `unnest($1)` anew at each call, since a list of one key looks cheaper than lists do,
    /// and takes longer to plan it than to run it. Nothing for statements whose filters may be absent.
    pub const fn by_keys(self) -> Self {
        Self { by_keys: true, ..self }
    }

    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The text that begins it.
    pub(crate) const fn begin(self) -> &'static str {
        if self.by_keys {
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL plan_cache_mode = force_generic_plan"
        } else {
            "BEGIN ISOLATION LEVEL READ COMMITTED"
        }
    }
}
