//! The tables of the outbox equal their documents and are well formed.

use semel_testkit::tables::{self, Life};

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/design/outbox.md");

#[test]
fn life_equals_the_document() {
    let rows = OUTBOX.iter().map(|(f, e, t)| [f.as_str(), e.as_str(), t.as_str()]);
    tables::equals_document(DOCUMENT, "outbox", rows);
}

#[test]
fn life_is_well_formed() {
    let life = Life {
        rows: OUTBOX,
        states: OutboxStatus::ALL,
        events: OutboxEvent::ALL,
        initial: OutboxStatus::Pending,
        terminal: &[OutboxStatus::Aborted],
    };
    tables::well_formed(&life);
}

#[test]
fn accept_equals_the_document() {
    let mut rows = vec![accept_row(None, Compared::Match)];
    for status in OutboxStatus::ALL {
        rows.extend(Compared::ALL.iter().map(|compared| accept_row(Some(*status), *compared)));
    }
    tables::equals_document(DOCUMENT, "outbox_accept", rows);
}

fn accept_row(row: Option<OutboxStatus>, compared: Compared) -> [String; 4] {
    let accept = outbox_accept(row, compared);
    let compared = match (row, compared) {
        (None, _) => "–",
        (Some(_), Compared::Match) => "match",
        (Some(_), Compared::Differs) => "differs",
    };
    [
        row.map_or("none", OutboxStatus::as_str).to_owned(),
        compared.to_owned(),
        accept.http().to_string(),
        accept.word().to_owned(),
    ]
}

#[test]
fn without_a_row_the_fingerprint_does_not_matter() {
    assert_eq!(outbox_accept(None, Compared::Differs), Accept::Insert);
}
