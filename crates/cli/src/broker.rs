//! `semel broker`: run one, or look after its store.

pub(crate) mod backup;
pub(crate) mod invite;
mod member;
mod mesh;
pub(crate) mod registrar;
pub(crate) mod serve;
pub(crate) mod target;
pub(crate) mod tls;
pub(crate) mod token;
mod topic;
mod upkeep;

use clap::Subcommand;

use crate::exit::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve daemons until SIGTERM or SIGINT
    Serve(serve::Arguments),
    /// Bring the store's schema up to date and exit
    Migrate(target::Target),
    /// Delete expired ids and old messages now
    Sweep(target::Target),
    /// Check that every message has all of its effects; exit 1 if not
    Check(upkeep::CheckArguments),
    /// List the events of a mesh's members and daemons, newest first
    Audit(upkeep::AuditArguments),
    Init(invite::InitArguments),
    /// Make, show and change meshes
    #[command(subcommand)]
    Mesh(mesh::MeshCommand),
    /// Add, list and revoke members
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Make topics and subscribe members
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Make work queues
    #[command(subcommand)]
    Queue(topic::QueueCommand),
    /// Print a link with which a host can join a mesh
    Invite(invite::Arguments),
    /// Copy an SQLite store to a file, also while a broker serves it
    Backup(backup::BackupArguments),
    /// Replace the store by a backup, under a new epoch
    Restore(backup::RestoreArguments),
    /// Begin anew after an SQLite store was lost; existing files are left alone
    StartFresh(backup::FreshArguments),
    /// Give a store a new epoch after other tools than `restore` have restored it
    NewEpoch(backup::EpochArguments),
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Serve(arguments) => serve::run(arguments).await,
        Command::Migrate(target) => target.open().await.map(drop),
        Command::Sweep(target) => upkeep::sweep(target).await,
        Command::Check(arguments) => upkeep::check(arguments).await,
        Command::Audit(arguments) => upkeep::audit(arguments).await,
        Command::Init(arguments) => invite::init(arguments).await,
        Command::Mesh(command) => mesh::run(command).await,
        Command::Member(command) => member::run(command).await,
        Command::Topic(command) => topic::topic(command).await,
        Command::Queue(command) => topic::queue(command).await,
        Command::Invite(arguments) => invite::run(arguments).await,
        Command::Backup(arguments) => backup::backup(arguments).await,
        Command::Restore(arguments) => backup::restore(arguments).await,
        Command::StartFresh(arguments) => backup::start_fresh(arguments),
        Command::NewEpoch(arguments) => backup::new_epoch(arguments).await,
    }
}
