//! `semel mesh`: the meshes of this host.

pub(crate) mod join;

use clap::Subcommand;
use semel_core::rfc3339;
use semel_core::shown::shown;
use semel_daemon::home::{Complete, Home};
use semel_daemon::identity::{IdentityError, Membership};
use semel_wire::link::JoinLink;
use semel_wire::place::Plain;
use serde_json::{Value, json};

use crate::broker::invite::refuse_place;
use crate::daemon::home::HomeArgument;
use crate::exit::{Exit, Failure, Form, chain};
use crate::local::Local;
use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join a mesh with an invite
    Join(join::Arguments),
    /// Make an invite for another host
    Invite {
        /// How often the invite can be used
        #[arg(long, default_value = "1")]
        uses: u64,
        /// How long the invite is valid
        #[arg(long, default_value = "24h", value_parser = crate::duration::parse)]
        ttl: std::time::Duration,
        /// Address at which joining hosts reach the broker, if it differs from this host's:
        /// https://HOST:PORT
        #[arg(long, value_name = "URL")]
        broker_url: Option<String>,
        /// Allow http:// to another machine in --broker-url; others on the network can read and
        /// change everything
        #[arg(long, requires = "broker_url")]
        insecure_allow_plain: bool,
        #[command(flatten)]
        local: Local,
    },
    /// Leave a mesh for good; its daemon ends
    Leave {
        /// Confirm it; without this option nothing is done
        #[arg(long)]
        confirm: bool,
        #[command(flatten)]
        local: Local,
    },
    /// List the meshes that this host has joined
    List {
        #[command(flatten)]
        home: HomeArgument,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Join(arguments) => join::run(arguments).await,
        Command::Invite { uses, ttl, broker_url, insecure_allow_plain, local } => {
            if let Some(url) = broker_url {
                let plain =
                    if *insecure_allow_plain { Plain::Allowed } else { Plain::LoopbackOnly };
                refuse_place(url, plain)?;
            }
            let daemon = local.daemon().await?;
            let body = json!({"uses": uses, "ttl_s": ttl.as_secs()});
            let mut invite = daemon.post("/v1/mesh/invite", &body).await?;
            if let Some(url) = broker_url {
                at(&mut invite, url);
            }
            daemon.show(&invite, |invite| {
                let link = invite.get("invite").and_then(Value::as_str).unwrap_or_default();
                format!("{}\n", shown(link))
            })
        }
        Command::Leave { confirm: false, .. } => {
            let text = "error: this member cannot come back; to leave anyway: --confirm";
            Err(Failure::new(Exit::Usage, text))
        }
        Command::Leave { confirm: true, local } => {
            let daemon = local.daemon().await?;
            let left = daemon.post("/v1/mesh/leave", &json!({})).await?;
            let home = local.home()?;
            let mesh = home.mesh();
            daemon.show(&left, |_| format!("this host has left the mesh {mesh}\n"))
        }
        Command::List { home, json } => list(home, Form::of_flag(*json)),
    }
}

/// The same invite, which names another address of the broker.
fn at(invite: &mut Value, url: &str) {
    let link = invite.get("invite").and_then(Value::as_str).map(JoinLink::parse);
    if let Some(Ok(link)) = link {
        invite["invite"] = JoinLink { broker_url: url.to_owned(), ..link }.encode().into();
    }
}

/// A folder's name, and what it has joined.
type Row = (String, Result<Option<Membership>, IdentityError>);

fn list(home: &HomeArgument, form: Form) -> Result<(), Failure> {
    let root = home.find()?;
    let failed = |text: String| Failure::new(Exit::Failed, format!("error: {text}"));
    let (homes, complete) = Home::list(&root).map_err(|error| failed(chain(&error)))?;
    let row = |home: &Home| (home.mesh().to_string(), Membership::read(home));
    let rows: Vec<Row> = homes.iter().map(row).collect();
    print(&match form {
        Form::Json => {
            let meshes: Vec<Value> = rows.iter().map(document).collect();
            format!("{}\n", json!({"home": root.display().to_string(), "meshes": meshes}))
        }
        Form::Text => table(&rows),
    })?;
    // What can be read was shown; what cannot is told all the same.
    let unreadable = rows.iter().filter_map(|(_, membership)| membership.as_ref().err());
    let mut errors: Vec<String> = unreadable.map(|error| chain(error)).collect();
    if complete == Complete::No {
        errors.push(format!("there are more than {} meshes", rows.len()));
    }
    if errors.is_empty() { Ok(()) } else { Err(failed(errors.join("\nerror: "))) }
}

fn document((mesh, membership): &Row) -> Value {
    match membership {
        Ok(Some(joined)) => json!({
            "mesh": mesh, "status": "joined",
            "mesh_id": joined.mesh_id.to_string(), "member_id": joined.member_id.to_string(),
            "name": joined.name, "broker": joined.broker,
            "joined_at": rfc3339::format(joined.joined_at),
        }),
        Ok(None) => json!({"mesh": mesh, "status": "not_joined"}),
        Err(error) => json!({"mesh": mesh, "status": "unreadable", "detail": chain(error)}),
    }
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "this host has joined no mesh\n".to_owned();
    }
    let width = rows.iter().map(|(mesh, _)| mesh.len()).max().unwrap_or(0);
    let line = |(mesh, membership): &Row| {
        let what = match membership {
            Ok(Some(joined)) => {
                format!("{}  {}  {}", joined.member_id, joined.broker, shown(&joined.name))
            }
            Ok(None) => "not joined".to_owned(),
            Err(_) => "unreadable".to_owned(),
        };
        format!("{mesh:width$}  {what}\n")
    };
    rows.iter().map(line).collect()
}
