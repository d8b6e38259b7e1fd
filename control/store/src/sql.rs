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
pub struct Op(&'static str);

impl Op {
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    pub const fn name(self) -> &'static str {
        self.0
    }
}
