//! True, false or unknown: Kleene's logic, in which false settles an "and" and true settles an "or".

/// What became of a resource match or a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    /// Cannot be told. Counts as false in an allow statement and as true in a deny statement.
    Unknown(Unknown),
}

/// Why something is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// The attribute is absent or null.
    Missing,
    /// The attribute's value, or an element of it, is of a type the operator does not compare.
    WrongType,
    /// A variable names an attribute that is absent, empty or not text.
    Variable,
}

impl Truth {
    pub(crate) fn not(self) -> Self {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown(why) => Truth::Unknown(why),
        }
    }

    /// True if any is true, else unknown if any is unknown, else false. Stops at the first true.
    pub(crate) fn any(all: impl IntoIterator<Item = Truth>) -> Self {
        let mut sum = Truth::False;
        for one in all {
            match one {
                Truth::True => return Truth::True,
                Truth::False => {}
                Truth::Unknown(_) => {
                    if sum == Truth::False {
                        sum = one;
                    }
                }
            }
        }
        sum
    }

    /// False if any is false, else unknown if any is unknown, else true. Stops at the first false.
    pub(crate) fn all(all: impl IntoIterator<Item = Truth>) -> Self {
        Truth::any(all.into_iter().map(Truth::not)).not()
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Truth::True } else { Truth::False }
    }
}

#[cfg(test)]
mod tests;
