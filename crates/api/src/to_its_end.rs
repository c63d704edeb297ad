//! What has begun to be done is done to its end (traps.md 49).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use semel_core::code::Code;
use tokio::runtime::Handle;

use crate::problem::Problem;
use crate::route::{Answering, Reply};

/// A call that goes on where its caller waits for it, and in a task of its own once the caller went
/// away: hyper drops us then.
pub(crate) struct ToItsEnd(Option<Answering>);

impl ToItsEnd {
    pub(crate) const fn new(answering: Answering) -> Self {
        Self(Some(answering))
    }
}

impl Future for ToItsEnd {
    type Output = Result<Reply, Problem>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // It may have written before it ended.
        let cut_short = || Err(Problem::new(Code::OutcomeUnknown, "the call was cut short"));
        let Some(answering) = &mut self.0 else { return Poll::Ready(cut_short()) };
        // Sound: what panicked is not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context)));
        let reply = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(reply)) => reply,
            Err(_) => cut_short(),
        };
        self.0 = None;
        Poll::Ready(reply)
    }
}

impl Drop for ToItsEnd {
    fn drop(&mut self) {
        // Without a runtime everything ends.
        if let (Some(answering), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(answering));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_a_call_that_panicked_nobody_says_that_it_failed() {
        let said = ToItsEnd::new(Box::pin(async { panic!("after its commit") })).await;
        assert_eq!(said.err().map(|problem| problem.code), Some(Code::OutcomeUnknown));
    }
}
