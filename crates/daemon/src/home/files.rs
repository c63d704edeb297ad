//! The files of a daemon's folder: row for row the table of daemon.md, "Files".

use semel_core::status;

status! {
    /// Everything that may be in the folder, by its name there.
    pub enum HomeFile {
        /// Who holds the lock on it owns the folder. Never deleted: a second one would be free.
        Lock = "lock",
        /// For people; nothing is decided by it.
        Pid = "pid",
        /// Where the local API listens.
        Socket = "sock",
        /// The port on 127.0.0.1, where TCP is on.
        HttpPort = "http.port",
        /// The bearer token for TCP.
        LocalToken = "local_token",
        /// The member's keys.
        Keypair = "keypair.json",
        /// Keys that were rotated out and still open old messages.
        KeypairArchive = "keypair-archive.json",
        /// Which daemon this is; the broker fences by it.
        InstanceId = "instance_id",
        /// Commitment key (mesh.md §9).
        FingerprintSecret = "fingerprint_secret",
        /// Which host the folder belongs to.
        HostFingerprint = "host_fingerprint.json",
        /// Which mesh was joined, as whom, and where its broker is.
        Mesh = "mesh.json",
        /// The authorities that may speak for the broker, when they were named at joining.
        BrokerCa = "broker_ca.pem",
        /// How the process that runs here was started.
        Started = "started.json",
        /// The user's tuning.
        Config = "config.toml",
        /// What was accepted and is to be sent.
        OutboxDb = "outbox.db",
        /// What was received.
        InboxDb = "inbox.db",
        /// The databases of an ephemeral member; a folder that ends with it.
        Ephemeral = "ephemeral",
        /// Topic state.
        TopicSubscriptions = "topic_subscriptions.json",
        /// Topic state.
        TopicKeys = "topic_keys.json",
        /// Topic state.
        KeyEpoch = "key_epoch.json",
        /// JSON lines.
        Log = "daemon.log",
    }
}

impl HomeFile {
    /// Who may do what with it.
    pub const fn mode(self) -> u32 {
        match self {
            Self::Lock
            | Self::Pid
            | Self::Socket
            | Self::LocalToken
            | Self::Keypair
            | Self::KeypairArchive
            | Self::InstanceId
            | Self::FingerprintSecret
            | Self::HostFingerprint
            | Self::Mesh
            | Self::BrokerCa
            | Self::Started
            | Self::OutboxDb
            | Self::InboxDb
            | Self::TopicSubscriptions
            | Self::TopicKeys
            | Self::KeyEpoch => 0o600,
            Self::HttpPort | Self::Config | Self::Log => 0o644,
            Self::Ephemeral => 0o700,
        }
    }

    /// Whether only its owner may read it.
    pub const fn is_private(self) -> bool {
        self.mode() & 0o077 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::tables;

    const DOCUMENT: &str = include_str!("../../../../docs/design/daemon.md");

    #[test]
    fn the_files_equal_the_document() {
        let rows =
            HomeFile::ALL.iter().map(|file| [file.to_string(), format!("{:04o}", file.mode())]);
        tables::first_columns_equal_document(DOCUMENT, "home_files", rows);
    }
}
