//! Registrations as a model to be explored ([`semel_testkit::explore`]).

use semel_testkit::explore::Model;

use crate::next::{Scope, Step, steps};
use crate::state::{Broken, State};

impl Model for Scope {
    type State = State;
    type Key = State;
    type Step = Step;
    type Broken = Broken;

    fn start(&self) -> State {
        State::default()
    }

    fn key(&self, state: &State) -> State {
        *state
    }

    fn steps(&self, state: &State, found: &mut Vec<(Step, State)>) {
        steps(state, self, found);
    }

    fn broken(&self, state: &State, _: &[(Step, State)]) -> Option<Broken> {
        state.broken()
    }
}
