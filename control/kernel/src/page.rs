//! Pages of lists: newest first by id, which is by time of making since ids are UUIDs of version 7.

use api::{Cursor, Limit};
use model::Id;
use uuid::Uuid;

use crate::fault::ApiError;

/// Which page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Entries have lower ids than this one. For `id < $n`: without a cursor it is above every id.
    pub before: Uuid,
    limit: u32,
}

impl Page {
    /// INVALID_INPUT for a cursor that no list of `I` gave.
    pub fn of<I: Id>(limit: Option<Limit>, cursor: Option<&Cursor>) -> Result<Self, ApiError> {
        let before = match cursor {
            None => Uuid::max(),
            Some(cursor) => match cursor.as_str().parse::<I>() {
                Ok(id) => id.uuid(),
                Err(_) => {
                    return Err(ApiError::invalid("/cursor", "the cursor is not one that this list gave"));
                }
            },
        };
        Ok(Self { before, limit: api::limit_or_default(limit) })
    }

    /// For `LIMIT $n`: one more than the page holds, to know whether there is another page.
    pub fn fetch(self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// Cuts what was fetched to the page and names where the next one begins. Filter what the caller may see afterwards,
    /// so that a hidden entry does not end the list.
    pub fn cut<T, I: Id>(self, mut items: Vec<T>, id: impl Fn(&T) -> I) -> (Vec<T>, Option<Cursor>) {
        let limit = self.limit as usize;
        if items.len() <= limit {
            return (items, None);
        }
        items.truncate(limit);
        let last = items.last().map(|item| id(item).to_string());
        (items, last.and_then(|last| Cursor::parse(&last).ok()))
    }
}

#[cfg(test)]
mod tests {
    use model::{NodeId, PoolId};

    use super::*;

    fn id(n: u128) -> NodeId {
        NodeId::from_uuid(Uuid::from_u128(n))
    }

    #[test]
    fn a_cursor_names_the_last_entry_of_a_page_that_has_more() {
        let page = Page::of::<NodeId>(Limit::new(2), None).expect("no cursor");
        assert_eq!((page.before, page.fetch()), (Uuid::max(), 3));
        let (items, cursor) = page.cut(vec![id(9), id(8), id(7)], |id| *id);
        assert_eq!(items, [id(9), id(8)]);
        let cursor = cursor.expect("there is more");
        let next = Page::of::<NodeId>(Limit::new(2), Some(&cursor)).expect("our own cursor");
        assert_eq!(next.before, id(8).uuid());
        assert_eq!(next.cut(vec![id(7)], |id| *id), (vec![id(7)], None));
        assert!(Page::of::<PoolId>(None, Some(&cursor)).is_err(), "another list's cursor");
    }
}
