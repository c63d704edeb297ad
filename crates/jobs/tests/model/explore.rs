//! Breadth-first search over all states, so that the first violation has a shortest trace; then
//! backwards from the ends, so that what never ends is found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::next::steps;
use crate::scope::Scope;
use crate::state::{Broken, State};
use crate::step::Step;

/// How an exploration ended.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) violation: Option<(Broken, Vec<Step>)>,
}

/// Explores everything, or stops at the first state that breaks a promise.
pub(crate) fn explore(scope: &Scope) -> Explored {
    let mut numbers: HashMap<State, u32, BuildHasherDefault<Mixer>> = HashMap::default();
    let mut parents = vec![(0, Step::Cancel)];
    let (mut edges, mut over) = (Vec::new(), vec![false]);
    numbers.insert(State::default(), 0);
    let mut layer = vec![(0, State::default())];
    let (mut depth, mut found) = (0, Vec::new());
    while !layer.is_empty() {
        let mut below = Vec::new();
        for (number, state) in &layer {
            steps(state, scope, &mut found);
            for (step, mut to) in found.drain(..) {
                // Workers differ in nothing but where they stand. A trace names them by their
                // places in this order.
                to.workers.sort_unstable();
                let new = u32::try_from(parents.len()).expect("fewer states than numbers");
                let place = numbers.entry(to);
                // That a person could end it by force does not help who waits.
                if step != Step::Cancel {
                    let child =
                        if let Entry::Occupied(there) = &place { *there.get() } else { new };
                    edges.push((child, *number));
                }
                let (Entry::Vacant(place), child) = (place, new) else { continue };
                place.insert(child);
                parents.push((*number, step));
                over.push(to.is_over());
                if let Some(broken) = to.broken() {
                    let violation = Some((broken, trace(&parents, child)));
                    return Explored { states: parents.len(), depth, violation };
                }
                below.push((child, to));
            }
        }
        depth += 1;
        layer = below;
    }
    drop(numbers);
    let stuck = first_stuck(edges, over);
    let violation = stuck.map(|number| (Broken::Stuck, trace(&parents, number)));
    Explored { states: parents.len(), depth, violation }
}

/// The first state from which no end can be reached. An edge is (to, from).
fn first_stuck(mut edges: Vec<(u32, u32)>, mut ends: Vec<bool>) -> Option<u32> {
    edges.sort_unstable();
    let number = |place: usize| u32::try_from(place).expect("fewer states than numbers");
    let is_end = ends.iter().enumerate().filter(|(_, over)| **over);
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

fn trace(parents: &[(u32, Step)], last: u32) -> Vec<Step> {
    let (mut number, mut steps) = (last, Vec::new());
    while number != 0 {
        let (parent, step) = parents[number as usize];
        steps.push(step);
        number = parent;
    }
    steps.reverse();
    steps
}

/// The standard hasher takes most of the time of a debug build.
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

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}
