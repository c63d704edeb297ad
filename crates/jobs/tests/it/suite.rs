//! Every case on both stores.

use semel_testkit::conformance::{Case, conforms};

use crate::support::{World, on_postgres, on_sqlite};
use crate::{breakers, claims, letters, life, people, submits};

/// One case from each function.
macro_rules! cases {
    ( $( $module:ident :: $name:ident ),+ $(,)? ) => {
        &[ $( Case { name: stringify!($name), run: |world| Box::pin($module::$name(world)) } ),+ ]
    };
}

#[rustfmt::skip]
const CASES: &[Case<World>] = cases![
    submits::the_same_key_is_the_same_job,
    submits::another_request_under_a_key_is_refused,
    submits::equal_words_are_one_job_across_the_edge_of_a_bucket,
    submits::equal_words_at_once_are_one_job,
    submits::only_a_failed_job_is_repeated_and_once_at_a_time,
    submits::one_bad_submission_spoils_no_other,
    submits::a_job_begins_as_it_comes_unless_others_wait,
    submits::nobody_waits_for_whom_there_is_room,
    submits::what_was_consented_to_is_kept_and_what_an_asker_declared,
    claims::urgent_ones_first_then_old_ones,
    claims::what_is_due_goes_before_what_waits,
    claims::a_conversation_is_served_in_order_whatever_the_priorities,
    claims::a_thousand_conversations_at_once_each_in_order,
    claims::an_end_and_a_submission_at_once_lose_nobody,
    claims::nobody_gets_what_another_has,
    claims::a_late_worker_writes_nothing,
    claims::a_lease_is_renewed_by_its_holder_only,
    claims::a_move_within_a_job_leaves_its_lease_alone,
    claims::a_job_that_ends_while_it_is_claimed_frees_the_next,
    claims::one_bad_move_spoils_no_other,
    life::every_dispatch_rests_on_a_row,
    life::an_execution_is_begun_only_where_it_may,
    people::a_word_and_its_grant_are_one,
    people::a_word_stops_the_worker,
    breakers::one_probe_of_many,
    breakers::a_closed_breaker_lets_those_go_that_wait,
    letters::pages_and_filters,
    letters::patterns_count_by_class_and_action,
    letters::old_jobs_go_and_a_repeated_one_stays,
    letters::a_key_outlives_its_job,
    letters::expired_and_failed_are_found_in_order,
    letters::a_ledger_is_read_from_anywhere,
    letters::a_ledger_is_only_added_to,
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    assert_eq!(conforms(CASES, on_sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    assert_eq!(conforms(CASES, on_postgres).await, CASES.len());
}
