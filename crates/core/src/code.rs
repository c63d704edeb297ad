//! The one list of error codes. A code says what HTTP status carries it, whether the same id may
//! be sent again, and which page under `docs/errors/` explains it; a missing page does not compile.

/// What a caller may do with the same id after this answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The answer stays the same however often it is asked: change the request.
    Never,
    /// The same request under the same id may be sent again.
    SameId,
}

/// Declares the codes: variant, stable name, HTTP status, retry.
macro_rules! codes {
    ( $( $variant:ident $text:literal $http:literal $retry:ident; )+ ) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each code has a page of its own under docs/errors")]
        pub enum Code { $( $variant ),+ }

        impl Code {
            /// Every code, in the order of the list.
            pub const ALL: &'static [Self] = &[ $( Self::$variant ),+ ];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $text ),+ }
            }

            /// The code of that name, if there is one.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $( $text => Some(Self::$variant), )+ _ => None }
            }

            /// The HTTP status of an answer with this code.
            pub const fn http(self) -> u16 {
                match self { $( Self::$variant => $http ),+ }
            }

            /// Whether the same id may be sent again.
            pub const fn retry(self) -> Retry {
                match self { $( Self::$variant => Retry::$retry ),+ }
            }

            /// The page that says what happened and what to do.
            pub const fn page(self) -> &'static str {
                match self {
                    $( Self::$variant => include_str!(concat!(
                        env!("CARGO_MANIFEST_DIR"), "/../../docs/errors/", $text, ".md"
                    )) ),+
                }
            }
        }
    };
}

#[rustfmt::skip]
codes! {
//  variant                        code                                   http retry
    InvalidJson                    "invalid_json"                          400 Never;
    DuplicateKey                   "duplicate_key"                         400 Never;
    LoneSurrogate                  "lone_surrogate"                        400 Never;
    IntegerOutOfRange              "integer_out_of_range"                  400 Never;
    NumberOutOfRange               "number_out_of_range"                   400 Never;
    NestingTooDeep                 "nesting_too_deep"                      400 Never;
    UnknownField                   "unknown_field"                         400 Never;
    MissingField                   "missing_field"                         400 Never;
    InvalidField                   "invalid_field"                         400 Never;
    NulInField                     "nul_in_field"                          400 Never;
    MetaTooLarge                   "meta_too_large"                        400 Never;
    PayloadTooLarge                "payload_too_large"                     413 Never;
    InvalidClientMessageId         "invalid_client_message_id"             400 Never;
    IdempotencyKeyConflict         "idempotency_key_conflict"              400 Never;
    IdempotencyKeyReused           "idempotency_key_reused"                409 Never;
    // The broker's answers (mesh.md §7) and what it cannot read.
    UnknownFrame                   "unknown_frame"                         400 Never;
    RateLimited                    "rate_limited"                          429 SameId;
    KeyTooOldToJudge               "key_too_old_to_judge"                  410 Never;
    MemberInactive                 "member_inactive"                       403 Never;
    TopicNotFound                  "topic_not_found"                       404 Never;
    NotSubscribed                  "not_subscribed"                        403 Never;
    RecipientNotFound              "recipient_not_found"                   404 Never;
    QueueNotFound                  "queue_not_found"                       404 Never;
    StoreUnavailable               "store_unavailable"                     503 SameId;
    // The broker's HTTP API (docs/http.md).
    NotFound                       "not_found"                             404 Never;
    MethodNotAllowed               "method_not_allowed"                    405 Never;
    RequestTimeout                 "request_timeout"                       408 SameId;
    Overloaded                     "overloaded"                            503 SameId;
    OutcomeUnknown                 "outcome_unknown"                       503 SameId;
    Unauthorised                   "unauthorised"                          401 Never;
    ClockSkew                      "clock_skew"                            401 Never;
    NonceReused                    "nonce_reused"                          401 Never;
    AdminDisabled                  "admin_disabled"                        403 Never;
    OwnerNeeded                    "owner_needed"                          403 Never;
    InviteInvalid                  "invite_invalid"                        403 Never;
    MeshExists                     "mesh_exists"                           409 Never;
    MeshNotFound                   "mesh_not_found"                        404 Never;
    MemberNotFound                 "member_not_found"                      404 Never;
    LastOwner                      "last_owner"                            409 Never;
    AlreadyMember                  "already_member"                        409 Never;
    KeyIdTaken                     "key_id_taken"                          409 Never;
    NameTaken                      "name_taken"                            409 Never;
    InUse                          "in_use"                                409 Never;
    TooMany                        "too_many"                              409 Never;
    // The daemon's local API (daemon.md, "Local API").
    TokenInQuery                   "token_in_query"                        400 Never;
    HostNotAllowed                 "host_not_allowed"                      403 Never;
    OriginNotAllowed               "origin_not_allowed"                    403 Never;
    PreflightRefused               "preflight_refused"                     403 Never;
    SocketOnly                     "socket_only"                           403 Never;
    OutboxRowNotFound              "outbox_row_not_found"                  404 Never;
    AmbiguousName                  "ambiguous_name"                        409 Never;
    RequeueNotPossible             "requeue_not_possible"                  409 Never;
    RequeueOutcomeUnknown          "requeue_outcome_unknown"               409 Never;
    PayloadPruned                  "payload_pruned"                        409 Never;
    ClientMessageIdTaken           "client_message_id_taken"               409 Never;
    DaemonBusy                     "daemon_busy"                           429 SameId;
    TooManyStreams                 "too_many_streams"                      429 SameId;
    InternalError                  "internal_error"                        500 SameId;
    BrokerUnavailable              "broker_unavailable"                    503 SameId;
    InsufficientStorage            "insufficient_storage"                  507 SameId;
    ReadOnly                       "read_only"                             503 SameId;
    // A daemon that is started (daemon.md, "Identity").
    InviteNeeded                   "invite_needed"                         400 Never;
    NotEphemeral                   "not_ephemeral"                         400 Never;
    AlreadyJoined                  "already_joined"                        409 Never;
    ConfigRefused                  "config_refused"                        409 Never;
    // The registrar's answers (docs/registrar.md).
    ReplayDuplicate                "replay_duplicate"                      409 Never;
    ReplayAttemptNoBypass          "replay_attempt_no_bypass"              409 Never;
    ReplayNonceConsumed            "replay_nonce_consumed"                 409 Never;
    NonceRevoked                   "nonce_revoked"                         409 Never;
    NonceUnbound                   "nonce_unbound"                         409 Never;
    AttemptCollision               "attempt_collision"                     409 Never;
    UncertainCommit                "uncertain_commit"                      409 SameId;
    RequestStale                   "request_stale"                         409 Never;
    RegistrationHold               "registration_hold"                     403 SameId;
    VerificationFailed             "verification_failed"                   409 Never;
    VerdictExists                  "verdict_exists"                        409 Never;
    CompensationNotAllowed         "compensation_not_allowed"              409 Never;
    EffectNotFound                 "effect_not_found"                      404 Never;
    GrantNotFound                  "grant_not_found"                       404 Never;
    AuthorityMissing               "authority_missing"                     403 Never;
    PlainTextRefused               "plain_text_refused"                    400 Never;
    // The job engine's (docs/jobs.md).
    InvalidPlan                    "invalid_plan"                          400 Never;
    GearNotFound                   "gear_not_found"                        400 Never;
    GearDisabled                   "gear_disabled"                         400 Never;
    ResourceConflict               "resource_conflict"                     400 Never;
    PlannerMissing                 "planner_missing"                       400 Never;
    JobNotFound                    "job_not_found"                         404 Never;
    JobNotWaiting                  "job_not_waiting"                       409 Never;
    JobEnded                       "job_ended"                             409 Never;
    JobNotFailed                   "job_not_failed"                        409 Never;
    JobRepeating                   "job_repeating"                         409 Never;
    PlanChanged                    "plan_changed"                          409 Never;
    ApprovalRefused                "approval_refused"                      409 Never;
    BreakerNotFound                "breaker_not_found"                     404 Never;
    ArtifactNotFound               "artifact_not_found"                    404 Never;
    StepIdReused                   "step_id_reused_with_different_content" 409 Never;
    // Refusals to start: no HTTP answer carries them while the cause lasts.
    FeatureParamBelowFloor         "feature_param_below_floor"             503 Never;
    OutboxMaxAgeInvalid            "outbox_max_age_invalid"                503 Never;
    OutboxMaxAgeAboveDedupeWindow  "outbox_max_age_above_dedupe_window"    503 Never;
    ReplaySurfaceNotFit            "replay_surface_not_fit"                503 Never;
    ReplayDomainFailClosed         "replay_domain_fail_closed"             503 Never;
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_back() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
    }

    #[test]
    fn every_page_opens_with_its_code_and_says_what_to_do() {
        for code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# `{code}`\n")), "{code}: title");
            assert!(page.contains("\n## What happened\n"), "{code}: what happened");
            assert!(page.contains("\n## What to do\n"), "{code}: what to do");
        }
    }
}
