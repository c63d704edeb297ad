//! Who takes part: a table of calls and what they are about, under one API.

use std::pin::Pin;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use serde_json::Value;

use crate::InFlight;
use crate::problem::Problem;
use crate::route::{Answering, Call, Facts, Request, Route, Verb};

/// A part's name, and how it is once it has looked.
pub type Health<'s> = (&'static str, BoxFuture<'s, Result<Value, Problem>>);

type BoxFuture<'s, T> = Pin<Box<dyn Future<Output = T> + Send + 's>>;

/// What the calls of one part share.
pub trait State: Send + Sync + 'static {
    /// Why no call of this verb is served now; nothing when all are. Asked before a body is read.
    fn gate(&self, _verb: Verb) -> Option<Problem> {
        None
    }

    /// What an operator's tools see of it; names without a prefix get none.
    fn metrics(&self, _registry: &mut Registry) {}

    /// How it is, for whoever answers for all parts; nothing when it has nothing to say.
    fn health(&self) -> Option<Health<'_>> {
        None
    }

    /// What its problem documents say besides, for the OpenAPI document; a name that ends in `?`
    /// is one that may be missing, as all of them should be.
    fn problem_fields() -> Vec<(&'static str, Value)>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

/// A table of calls together with what they share.
#[derive(Clone)]
pub struct Part(Arc<dyn Serves>);

impl Part {
    /// A part of an API.
    pub fn new<S: State>(state: Arc<S>, routes: &'static [Route<S>]) -> Self {
        Self(Arc::new(Table { state, routes }))
    }

    /// What its table says of each call, in the table's order.
    pub(crate) fn facts(&self) -> Vec<Facts> {
        self.0.facts()
    }

    pub(crate) fn problem_fields(&self) -> Vec<(&'static str, Value)> {
        self.0.problem_fields()
    }

    pub(crate) fn gate(&self, verb: Verb) -> Option<Problem> {
        self.0.gate(verb)
    }

    pub(crate) fn metrics(&self, registry: &mut Registry) {
        self.0.metrics(registry);
    }

    pub(crate) fn health(&self) -> Option<Health<'_>> {
        self.0.health()
    }

    /// Serves the call of this number in the part's own table.
    pub(crate) fn handle(&self, number: usize, request: Request, place: InFlight) -> Answering {
        self.0.handle(number, request, place)
    }
}

/// A table of any state.
trait Serves: Send + Sync {
    fn facts(&self) -> Vec<Facts>;
    fn problem_fields(&self) -> Vec<(&'static str, Value)>;
    fn gate(&self, verb: Verb) -> Option<Problem>;
    fn metrics(&self, registry: &mut Registry);
    fn health(&self) -> Option<Health<'_>>;
    fn handle(&self, number: usize, request: Request, place: InFlight) -> Answering;
}

struct Table<S: 'static> {
    state: Arc<S>,
    routes: &'static [Route<S>],
}

impl<S: State> Serves for Table<S> {
    fn facts(&self) -> Vec<Facts> {
        self.routes.iter().map(Route::facts).collect()
    }

    fn problem_fields(&self) -> Vec<(&'static str, Value)> {
        S::problem_fields()
    }

    fn gate(&self, verb: Verb) -> Option<Problem> {
        self.state.gate(verb)
    }

    fn metrics(&self, registry: &mut Registry) {
        self.state.metrics(registry);
    }

    fn health(&self) -> Option<Health<'_>> {
        self.state.health()
    }

    fn handle(&self, number: usize, request: Request, place: InFlight) -> Answering {
        (self.routes[number].handle)(Call::new(Arc::clone(&self.state), request, place))
    }
}
