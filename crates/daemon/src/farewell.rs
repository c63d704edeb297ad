//! The end of an ephemeral member (daemon.md, "Identity"). Nobody can speak for it once its process
//! is gone: what it has accepted is handed over first, and then it leaves the mesh.

use semel_core::code::{Code, Retry};

use crate::broker_api::{ApiError, BrokerApi};
use crate::engine::Engine;
use crate::limits::{
    HAND_OVER_IDLE_MAX, HAND_OVER_LOOKS_MAX, HAND_OVER_PAUSE, LEAVE_PAUSE, LEAVE_TIMEOUT,
};
use crate::link::LinkState;

/// How a member has ended.
#[derive(Debug)]
pub struct Farewell {
    /// Sends that were accepted and that the broker does not have.
    pub unsent: u64,
    /// Whether the mesh knows that the member is gone.
    pub left: Result<(), ApiError>,
}

/// Hands over what waits, then leaves. No call may come in any more.
pub async fn farewell(engine: &Engine) -> Farewell {
    let unsent = hand_over(engine).await;
    Farewell { unsent, left: leave(&engine.api).await }
}

/// Leaves the mesh; a broker that is away for a moment is asked again.
pub async fn leave(api: &BrokerApi) -> Result<(), ApiError> {
    let asking = async {
        loop {
            match api.leave().await {
                // An earlier attempt whose answer was lost, or somebody was faster.
                Err(ApiError::Refused(problem)) if problem.code == Code::MemberInactive => {
                    return Ok(());
                }
                Err(error) if may_pass(&error) => tokio::time::sleep(LEAVE_PAUSE).await,
                done => return done,
            }
        }
    };
    let late = |_| ApiError::Away("it did not answer in time".to_owned());
    tokio::time::timeout(LEAVE_TIMEOUT, asking).await.map_err(late)?
}

fn may_pass(error: &ApiError) -> bool {
    match error {
        ApiError::Away(_) => true,
        ApiError::Refused(problem) => problem.code.retry() == Retry::SameId,
    }
}

/// Waits until everything is sent, or nothing more is for a while; how much is not.
async fn hand_over(engine: &Engine) -> u64 {
    let status = engine.link.watch();
    let (mut unsent, mut idle) = (u64::MAX, 0);
    for _ in 0..HAND_OVER_LOOKS_MAX {
        let waiting = match engine.outbox.counts().await {
            Ok((waiting, _)) => waiting,
            Err(error) => {
                tracing::error!(error = error.chain(), "waiting messages could not be counted");
                return 0;
            }
        };
        let (inflight, state) = {
            let status = status.borrow();
            (status.inflight, status.state)
        };
        // A row on the wire may be counted by both: its mark is written a little later.
        let now = waiting.max(u64::try_from(inflight).unwrap_or(u64::MAX));
        idle = if now < unsent { 0 } else { idle + 1 };
        unsent = now;
        if unsent == 0 || idle == HAND_OVER_IDLE_MAX || state == LinkState::Ended {
            break;
        }
        tokio::time::sleep(HAND_OVER_PAUSE).await;
    }
    unsent
}
