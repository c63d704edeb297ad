//! How a conversation ends: close codes and the words of `close_reason` (mesh.md §8).

use semel_core::status;

/// The codes with which a WebSocket connection is closed. The numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CloseCode {
    /// The signature is bad or the member unknown.
    Unauthorised,
    /// A newer connection took this one's place, or its session epoch is stale.
    Replaced,
    /// The member is connected already, and its mesh prefers the oldest.
    AlreadyConnected,
    /// The member was revoked, or its instance retired.
    Revoked,
    /// A frame that the protocol does not have.
    ProtocolError,
    /// A feature that the daemon requires is missing or not as it needs it.
    FeatureUnavailable,
    /// The broker is stopping: come back, with jitter.
    Draining,
}

impl CloseCode {
    /// Every code, by number.
    #[rustfmt::skip]
    pub const ALL: &'static [(Self, u16, &'static str)] = &[
        (Self::Unauthorised,       4001, "unauthorised"),
        (Self::Replaced,           4003, "replaced"),
        (Self::AlreadyConnected,   4004, "already_connected"),
        (Self::Revoked,            4005, "revoked"),
        (Self::ProtocolError,      4008, "protocol_error"),
        (Self::FeatureUnavailable, 4010, "feature_unavailable"),
        (Self::Draining,           4013, "draining"),
    ];

    /// The number on the wire.
    pub const fn as_u16(self) -> u16 {
        match self {
            Self::Unauthorised => 4001,
            Self::Replaced => 4003,
            Self::AlreadyConnected => 4004,
            Self::Revoked => 4005,
            Self::ProtocolError => 4008,
            Self::FeatureUnavailable => 4010,
            Self::Draining => 4013,
        }
    }

    /// The code of that number, if there is one.
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.iter().find(|(_, code, _)| *code == number).map(|(code, _, _)| *code)
    }

    /// Its name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        self.kind().as_str()
    }

    /// The word of `close_reason` for this code; the three of `4010` are told apart by whoever
    /// closes.
    pub const fn kind(self) -> CloseKind {
        match self {
            Self::Unauthorised => CloseKind::Unauthorised,
            Self::Replaced => CloseKind::Replaced,
            Self::AlreadyConnected => CloseKind::AlreadyConnected,
            Self::Revoked => CloseKind::Revoked,
            Self::ProtocolError => CloseKind::ProtocolError,
            Self::FeatureUnavailable => CloseKind::FeatureUnavailable,
            Self::Draining => CloseKind::Draining,
        }
    }
}

impl std::fmt::Display for CloseCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.as_u16(), self.as_str())
    }
}

status! {
    /// What `close_reason` says.
    pub enum CloseKind {
        /// `4001`.
        Unauthorised = "unauthorised",
        /// `4003`.
        Replaced = "replaced",
        /// `4004`.
        AlreadyConnected = "already_connected",
        /// `4005`.
        Revoked = "revoked",
        /// `4008`.
        ProtocolError = "protocol_error",
        /// `4010`: the bit is absent.
        FeatureUnavailable = "feature_unavailable",
        /// `4010`: a parameter is missing or malformed, or the version is unknown.
        FeatureParamInvalid = "feature_param_invalid",
        /// `4010`: a parameter is well-formed and below the least that the daemon accepts.
        FeatureParamBelowFloor = "feature_param_below_floor",
        /// `4013`.
        Draining = "draining",
    }
}

impl CloseKind {
    /// The code that goes with this word.
    pub const fn code(self) -> CloseCode {
        match self {
            Self::Unauthorised => CloseCode::Unauthorised,
            Self::Replaced => CloseCode::Replaced,
            Self::AlreadyConnected => CloseCode::AlreadyConnected,
            Self::Revoked => CloseCode::Revoked,
            Self::ProtocolError => CloseCode::ProtocolError,
            Self::FeatureUnavailable | Self::FeatureParamInvalid | Self::FeatureParamBelowFloor => {
                CloseCode::FeatureUnavailable
            }
            Self::Draining => CloseCode::Draining,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_go_together() {
        for (code, number, name) in CloseCode::ALL {
            assert_eq!(code.as_u16(), *number);
            assert_eq!(code.as_str(), *name);
            assert_eq!(CloseCode::from_u16(*number), Some(*code));
            assert_eq!(code.kind().code(), *code);
        }
        assert_eq!(CloseCode::from_u16(4002), None);
        for kind in CloseKind::ALL {
            assert_eq!(CloseKind::parse(kind.as_str()), Some(*kind));
            assert!(CloseCode::ALL.iter().any(|(code, _, _)| *code == kind.code()));
        }
    }
}
