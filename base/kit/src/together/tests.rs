use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures::FutureExt;
use futures::future::{join_all, join3};

use model::Timestamp;

use super::*;
use crate::ManualClock;

const LATER: std::time::Duration = std::time::Duration::from_millis(20);

/// Answers after a turn of the executor, twice what it was asked, and keeps what was asked together.
struct Asked(RefCell<Vec<Vec<u32>>>, Cell<bool>);

impl Asked {
    fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::default(), Cell::new(false)))
    }

    async fn all(self: Rc<Self>, questions: Vec<u32>) -> Result<Vec<u32>, &'static str> {
        tokio::task::yield_now().await;
        let answers = questions.iter().map(|question| question * 2).collect();
        self.0.borrow_mut().push(questions);
        if self.1.get() && self.0.borrow().last().is_some_and(|last| last.contains(&3)) {
            return Err("three is refused");
        }
        Ok(answers)
    }
}

fn together() -> Together<u32, u32> {
    Together::new(8, Pace::new(8, LATER), Arc::new(ManualClock::at(Timestamp::from_millis(0))))
}

#[tokio::test]
async fn who_comes_while_others_are_asked_for_goes_together_after_them() {
    let (together, asked) = (together(), Asked::new());
    let ask = |question| together.ask(question, |all| asked.clone().all(all));
    let answers = join_all((0..10).map(ask)).await;
    assert_eq!(answers, (0..10).map(|question| Ok(question * 2)).collect::<Vec<_>>());
    let sizes: Vec<usize> = asked.0.borrow().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 8, 1], "the first asks at once, and nine came meanwhile");
    assert_eq!(together.clock.monotonic(), LATER, "after a crowd the next question is asked later");
    assert_eq!(ask(7).await, Ok(14));
    assert_eq!(together.clock.monotonic(), LATER, "nobody waits for others where few come");
}

#[tokio::test]
async fn a_question_that_fails_spoils_no_other() {
    let (together, asked) = (together(), Asked::new());
    asked.1.set(true);
    let ask = |question| together.ask(question, |all| asked.clone().all(all));
    let (two, three, four) = join3(ask(2), ask(3), ask(4)).await;
    assert_eq!((two, three, four), (Ok(4), Err("three is refused"), Ok(8)));
}

#[tokio::test]
async fn whoever_gives_up_leaves_the_others_an_answer() {
    let (together, asked) = (together(), Asked::new());
    let ask = |question| together.ask(question, |all| asked.clone().all(all));
    let mut first = Box::pin(ask(1));
    assert!(first.as_mut().now_or_never().is_none(), "it has begun to ask");
    let mut second = Box::pin(ask(2));
    assert!(second.as_mut().now_or_never().is_none());
    drop(first);
    assert_eq!(second.await, Ok(4));
    assert_eq!(asked.0.borrow().last(), Some(&vec![2]));
}
