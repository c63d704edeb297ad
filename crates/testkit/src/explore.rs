//! Every state that a model can come to, nearest first, so that the first one that breaks a promise
//! has a shortest trace; then backwards from the ends, so that what never ends is found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is explored.
pub trait Model {
    /// Where everything stands.
    type State: Copy;
    /// What tells states apart: the state itself, or the same packed more tightly.
    type Key: Eq + Hash;
    /// What leads from one to the next.
    type Step: Copy;
    /// A promise.
    type Broken;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// The key of a state.
    fn key(&self, state: &Self::State) -> Self::Key;

    /// Everything that can happen in a state, in the place of what `found` has had.
    fn steps(&self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>);

    /// What a state breaks that has these steps.
    fn broken(
        &self,
        state: &Self::State,
        steps: &[(Self::Step, Self::State)],
    ) -> Option<Self::Broken>;

    /// What a state breaks from which no end can be reached, if the model promises an end.
    fn stuck(&self) -> Option<Self::Broken> {
        None
    }

    /// Whether a state is an end.
    fn is_end(&self, _: &Self::State) -> bool {
        false
    }

    /// Whether a step is a way to an end, and not only what a person could do by force.
    fn leads_on(&self, _: Self::Step) -> bool {
        true
    }
}

/// How an exploration ended.
#[derive(Debug)]
pub struct Explored<Step, Broken> {
    /// Distinct states that were reached.
    pub states: usize,
    /// Steps that were taken out of them.
    pub steps: usize,
    /// The longest shortest path.
    pub depth: usize,
    /// What was broken, and a shortest way there.
    pub violation: Option<(Broken, Vec<Step>)>,
}

/// Explores everything, or stops at the first state that breaks a promise.
pub fn explore<M: Model>(model: &M) -> Explored<M::Step, M::Broken> {
    let start = model.start();
    let mut search = Search { model, numbers: HashMap::default(), parents: Vec::new() };
    search.enter(0, &start);
    let (mut layer, mut found) = (vec![(0, start)], Vec::new());
    let (mut ends, mut edges) = (Vec::new(), Vec::new());
    let mut explored = Explored { states: 1, steps: 0, depth: 0, violation: None };
    loop {
        let mut below = Vec::new();
        for (number, state) in &layer {
            model.steps(state, &mut found);
            explored.steps += found.len();
            if let Some(broken) = model.broken(state, &found) {
                explored.states = search.parents.len();
                explored.violation = Some((broken, search.trace(*number)));
                return explored;
            }
            ends.push(model.is_end(state));
            for (step, to) in &found {
                let (child, is_new) = search.enter(*number, to);
                if is_new {
                    below.push((child, *to));
                }
                if model.stuck().is_some() && model.leads_on(*step) {
                    edges.push((child, *number));
                }
            }
        }
        if below.is_empty() {
            break;
        }
        explored.depth += 1;
        layer = below;
    }
    explored.states = search.parents.len();
    if let Some(broken) = model.stuck()
        && let Some(number) = first_stuck(edges, ends)
    {
        explored.violation = Some((broken, search.trace(number)));
    }
    explored
}

/// The states seen, each with a number and the number of the state that it was first seen from.
/// States are looked at in the order of their numbers.
struct Search<'a, M: Model> {
    model: &'a M,
    numbers: HashMap<M::Key, u32, BuildHasherDefault<Mixer>>,
    parents: Vec<u32>,
}

impl<M: Model> Search<'_, M> {
    /// The state's number, and whether it was given just now.
    fn enter(&mut self, parent: u32, state: &M::State) -> (u32, bool) {
        match self.numbers.entry(self.model.key(state)) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(place) => {
                let number = u32::try_from(self.parents.len()).expect("fewer states than numbers");
                place.insert(number);
                self.parents.push(parent);
                (number, true)
            }
        }
    }

    /// The steps from the start to a state. They are not kept, but found again by going from state
    /// to state.
    fn trace(&self, last: u32) -> Vec<M::Step> {
        let mut way = vec![last];
        while let Some(&number) = way.last().filter(|number| **number != 0) {
            way.push(self.parents[number as usize]);
        }
        let (mut state, mut trace, mut found) = (self.model.start(), Vec::new(), Vec::new());
        for wanted in way.iter().rev().skip(1) {
            self.model.steps(&state, &mut found);
            let leads_there = |(_, to): &&(M::Step, M::State)| {
                self.numbers.get(&self.model.key(to)) == Some(wanted)
            };
            let (step, to) = found.iter().find(leads_there).expect("a parent leads to its child");
            trace.push(*step);
            state = *to;
        }
        trace
    }
}

/// The first state from which no end can be reached. An edge is (to, from).
fn first_stuck(mut edges: Vec<(u32, u32)>, mut ends: Vec<bool>) -> Option<u32> {
    edges.sort_unstable();
    let number = |place: usize| u32::try_from(place).expect("fewer states than numbers");
    let is_end = ends.iter().enumerate().filter(|(_, is_end)| **is_end);
    let mut todo: Vec<u32> = is_end.map(|(place, _)| number(place)).collect();
    while let Some(state) = todo.pop() {
        let first = edges.partition_point(|(to, _)| *to < state);
        for (_, from) in edges[first..].iter().take_while(|(to, _)| *to == state) {
            if !std::mem::replace(&mut ends[*from as usize], true) {
                todo.push(*from);
            }
        }
    }
    ends.iter().position(|ends| !*ends).map(number)
}

/// Keys are dense bits, so two multiplications spread them well enough; the standard hasher takes
/// most of the time of a debug build.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    /// Lengths of arrays, which are the same in all states.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that may be doubled or raised by one, up to a bound.
    struct Counter {
        wanted: u8,
        never: u8,
        may_stop: bool,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        Raise,
        Double,
    }

    impl Model for Counter {
        type State = u8;
        type Key = u8;
        type Step = Step;
        type Broken = &'static str;

        fn start(&self) -> u8 {
            1
        }

        fn key(&self, state: &u8) -> u8 {
            *state
        }

        fn steps(&self, state: &u8, found: &mut Vec<(Step, u8)>) {
            found.clear();
            if *state < 20 && !(self.may_stop && *state == 7) {
                found.extend([(Step::Raise, state + 1), (Step::Double, state * 2)]);
            }
        }

        fn broken(&self, state: &u8, _: &[(Step, u8)]) -> Option<&'static str> {
            (*state == self.never).then_some("never")
        }

        fn stuck(&self) -> Option<&'static str> {
            Some("stuck")
        }

        fn is_end(&self, state: &u8) -> bool {
            *state >= self.wanted
        }
    }

    #[test]
    fn the_shortest_way_to_what_is_broken_is_found() {
        let explored = explore(&Counter { wanted: 20, never: 9, may_stop: false });
        let (broken, steps) = explored.violation.expect("9 can be reached");
        let by_doubling = [Step::Raise, Step::Double, Step::Double, Step::Raise];
        assert_eq!((broken, steps.as_slice()), ("never", by_doubling.as_slice()));
    }

    #[test]
    fn what_leads_to_no_end_is_stuck() {
        let explored = explore(&Counter { wanted: 20, never: 0, may_stop: true });
        assert_eq!(
            explored.violation.map(|(broken, steps)| (broken, steps.len())),
            Some(("stuck", 4))
        );
        let explored = explore(&Counter { wanted: 20, never: 0, may_stop: false });
        assert!(explored.violation.is_none() && explored.states > 20, "{explored:?}");
    }
}
