//! Jobs as a model to be explored ([`semel_testkit::explore`]).

use semel_testkit::explore::Model;

use crate::next::steps;
use crate::scope::Scope;
use crate::state::{Broken, State};
use crate::step::Step;

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
        // Workers differ in nothing but where they stand. A trace names them by their places in
        // this order.
        for (_, to) in found {
            to.workers.sort_unstable();
        }
    }

    fn broken(&self, state: &State, _: &[(Step, State)]) -> Option<Broken> {
        state.broken()
    }

    fn stuck(&self) -> Option<Broken> {
        Some(Broken::Stuck)
    }

    fn is_end(&self, state: &State) -> bool {
        state.is_over()
    }

    /// That a person could end it by force does not help who waits.
    fn leads_on(&self, step: Step) -> bool {
        step != Step::Cancel
    }
}
