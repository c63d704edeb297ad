//! How many connections each door may have: by the files that this process may have open, so that
//! no door can use up what the files and the owner's own socket need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More open files than this are not asked for.
const FILES_MAX: u64 = 65_536;

/// What is kept for files, for what is asked of others, and for gears.
const FILES_KEPT: usize = 256;

/// Connections of the owner's socket, at the least and at the most.
const SOCKET: (usize, usize) = (64, 1024);

/// Those of the local API over TCP.
const TCP: (usize, usize) = (32, 256);

/// Those of the broker.
const BROKER: (usize, usize) = (64, semel_broker::limits::CONNECTIONS_MAX);

/// Connections of each door, of anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budgets {
    pub(crate) broker: usize,
    pub(crate) tcp: usize,
    pub(crate) socket: usize,
}

/// Asks for as many open files as this process may have. What it starts is told its own limit.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files could not be raised");
        }
    }
}

/// By the limit of this process.
pub(crate) fn now() -> Budgets {
    budgets(getrlimit(Resource::Nofile).current.unwrap_or(FILES_MAX))
}

fn budgets(files: u64) -> Budgets {
    let left = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(FILES_KEPT);
    let socket = (left / 8).clamp(SOCKET.0, SOCKET.1);
    let tcp = (left / 8).clamp(TCP.0, TCP.1);
    let broker = left.saturating_sub(socket + tcp).clamp(BROKER.0, BROKER.1);
    Budgets { broker, tcp, socket }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_doors_together_leave_room_for_files() {
        for files in [1024, 4096, 12_000, FILES_MAX] {
            let Budgets { broker, tcp, socket } = budgets(files);
            let all = u64::try_from(broker + tcp + socket + FILES_KEPT).unwrap();
            assert!(all <= files && socket >= 64, "{files}: {broker} {tcp} {socket}");
        }
        assert_eq!(budgets(1024), Budgets { broker: 576, tcp: 96, socket: 96 });
        assert_eq!(budgets(u64::MAX), Budgets { broker: 10_000, tcp: 256, socket: 1024 });
        assert_eq!(budgets(0), Budgets { broker: 64, tcp: 32, socket: 64 }, "nothing is refused");
    }
}
