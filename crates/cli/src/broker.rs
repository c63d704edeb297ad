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
    /// Forget expired ids and delete messages that are too old, now
    Sweep(target::Target),
    /// Look whether every message has all of its effects; exit 1 if not
    Check(upkeep::CheckArguments),
    /// List what has happened to a mesh's members and daemons, the latest first
    Audit(upkeep::AuditArguments),
    Init(invite::InitArguments),
    /// Make, show and change meshes
    #[command(subcommand)]
    Mesh(mesh::MeshCommand),
    /// Let members in, or throw them out
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Make topics and subscribe members
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Make work queues
    #[command(subcommand)]
    Queue(topic::QueueCommand),
    /// Print a link that lets somebody join a mesh
    Invite(invite::Arguments),
    /// Copy an SQLite store to a file, while it is served
    Backup(backup::BackupArguments),
    /// Put a backup where the store is, as another life of it
    Restore(backup::RestoreArguments),
    /// Begin without an SQLite store that is lost; what is there is left alone
    StartFresh(backup::FreshArguments),
    /// Give a store that was put back by other means than `restore` a new epoch
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
