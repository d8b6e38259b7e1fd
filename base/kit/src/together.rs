//! Questions that come while others are being asked are asked together after them.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::{Clock, Pace};

/// Asks many at once what each would have asked alone. The first asks at once, and who comes while it does is in the next
/// question; where many come, that is asked a little later, with more. Whoever gives up leaves the rest as they were.
pub struct Together<Q, A> {
    waiting: Mutex<Vec<(Q, oneshot::Sender<A>)>>,
    turn: tokio::sync::Mutex<Pace>,
    at_once: usize,
    clock: Arc<dyn Clock>,
}

impl<Q: Clone, A> Together<Q, A> {
    /// `at_once` questions at most go together, and no fewer than one.
    pub fn new(at_once: usize, pace: Pace, clock: Arc<dyn Clock>) -> Self {
        Self {
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::new(pace),
            at_once: at_once.max(1),
            clock,
        }
    }

    /// The answer to `question`, out of `all`, which answers each of what it is given, in that order.
    ///
    /// # Errors
    /// Those of `all` for this question: one that was asked together with others and failed is asked again alone.
    pub async fn ask<E, F, Fut>(&self, question: Q, all: F) -> Result<A, E>
    where
        F: Fn(Vec<Q>) -> Fut,
        Fut: Future<Output = Result<Vec<A>, E>>,
    {
        let (tell, mut told) = oneshot::channel();
        self.waiting.lock().expect("no holder of this lock panics").push((question.clone(), tell));
        let answer = tokio::select! {
            biased;
            answer = &mut told => answer.ok(),
            mut pace = self.turn.lock() => loop {
                match told.try_recv() {
                    Ok(answer) => break Some(answer),
                    Err(oneshot::error::TryRecvError::Closed) => break None,
                    Err(oneshot::error::TryRecvError::Empty) => self.ask_next(&mut pace, &all).await,
                }
            },
        };
        match answer {
            Some(answer) => Ok(answer),
            None => Ok(all(vec![question]).await?.pop().expect("one answer to one question")),
        }
    }

    /// Those whose question failed hear nothing, and see that they were dropped.
    async fn ask_next<E, F, Fut>(&self, pace: &mut Pace, all: &F)
    where
        F: Fn(Vec<Q>) -> Fut,
        Fut: Future<Output = Result<Vec<A>, E>>,
    {
        pace.wait(&*self.clock).await;
        let (questions, tells): (Vec<Q>, Vec<oneshot::Sender<A>>) = {
            let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
            let count = waiting.len().min(self.at_once);
            // Whoever gave up while waiting is not asked for.
            waiting.drain(..count).filter(|(_, tell)| !tell.is_closed()).unzip()
        };
        pace.took(self.clock.monotonic(), questions.len());
        if let Ok(answers) = all(questions).await {
            for (tell, answer) in tells.into_iter().zip(answers) {
                // Whoever asked may be gone by now.
                let _ = tell.send(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
