//! `semel broker`: run one, or look after its store.

mod admin;
mod serve;
mod target;
mod tls;

use clap::Subcommand;

use crate::exit::{Exit, Failure};

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
    Check(admin::CheckArguments),
    /// List what has happened to a mesh's members and daemons, the latest first
    Audit(admin::AuditArguments),
    /// Make or show meshes
    #[command(subcommand)]
    Mesh(admin::MeshCommand),
    /// Let members in, or throw them out
    #[command(subcommand)]
    Member(admin::MemberCommand),
    /// Make topics and subscribe members
    #[command(subcommand)]
    Topic(admin::TopicCommand),
    /// Make work queues
    #[command(subcommand)]
    Queue(admin::QueueCommand),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, format!("error: {error}")))?;
    runtime.block_on(async {
        match &arguments.command {
            Command::Serve(arguments) => serve::run(arguments).await,
            Command::Migrate(target) => target.open().await.map(drop),
            Command::Sweep(target) => admin::sweep(target).await,
            Command::Check(arguments) => admin::check(arguments).await,
            Command::Audit(arguments) => admin::audit(arguments).await,
            Command::Mesh(command) => admin::mesh(command).await,
            Command::Member(command) => admin::member(command).await,
            Command::Topic(command) => admin::topic(command).await,
            Command::Queue(command) => admin::queue(command).await,
        }
    })
}
