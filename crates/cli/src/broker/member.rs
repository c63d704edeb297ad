//! Members: let somebody in, list, throw out.

use clap::Subcommand;
use semel_broker::hints;
use semel_broker::store::{
    Audited, Ended, Member, MemberStatus, Mesh, NewMember, OPERATORS_KEY, Role, Store,
};
use semel_core::id::MemberId;
use semel_core::rfc3339;
use semel_core::shown::{is_plain_name, shown};
use semel_crypto::keys::PublicKey;
use serde_json::{Value, json};

use super::target::{self, failed, mesh as find, mint, now};
use crate::exit::{Exit, Failure, Form};
use crate::{log, print};

/// Members read at a time.
const PAGE: i64 = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Add a member
    Add {
        /// The mesh
        mesh: String,
        /// The member's name
        name: String,
        /// The member's ed25519 public key, 64 hexadecimal digits
        key: String,
        /// The member's role: member or owner
        #[arg(long, default_value = "member")]
        role: String,
        #[command(flatten)]
        target: target::Target,
    },
    /// List members of every status, in the order of joining
    #[command(after_help = "Example:\n  semel broker member list ops --store sqlite:broker.db")]
    List {
        /// The mesh
        mesh: String,
        /// Print one JSON line per member
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
    /// Revoke a member
    Revoke {
        /// The mesh
        mesh: String,
        /// The member's id, its public key, or @name
        member: String,
        #[command(flatten)]
        target: target::Target,
    },
}

pub(super) async fn run(command: &MemberCommand) -> Result<(), Failure> {
    match command {
        MemberCommand::Add { mesh, name, key, role, target } => {
            let role = Role::parse(role).ok_or_else(|| {
                Failure::new(Exit::Usage, "error: --role must be member or owner")
            })?;
            let member = new_member(name, key, role)?;
            let store = target.open_used().await?;
            let mesh = find(&store, mesh).await?;
            let added = store.member_add(mesh.mesh_id, &member, now()).await;
            if !added.map_err(|error| failed(&error))? {
                let text = format!("error: an active member already has the name {}", shown(name));
                return Err(Failure::new(Exit::Conflict, text));
            }
            print(&format!("{}\n", member.member_id))
        }
        MemberCommand::List { mesh, json, target } => {
            list(mesh, Form::of_flag(*json), target).await
        }
        MemberCommand::Revoke { mesh, member, target } => {
            let store = target.open_used().await?;
            let mesh = find(&store, mesh).await?;
            let member_id = meant(&store, &mesh, member).await?;
            let (mint, revoked) = (mint(), MemberStatus::Revoked);
            let audited = Audited { id: mint.uuid(), at: now() };
            let ended = store.member_end(mesh.mesh_id, member_id, revoked, audited).await;
            match ended.map_err(|error| failed(&error))? {
                Ended::Done => {
                    // The brokers find out by themselves, only later.
                    let told = hints::tell_sessions_changed(&store, mint.uuid(), mesh.mesh_id);
                    if let Err(error) = told.await {
                        let why = error.chain();
                        log::say(&format!(
                            "warning: {member} is revoked, but running brokers could not be \
                             notified: {why}\n\
                             they will notice by themselves"
                        ));
                    }
                    Ok(())
                }
                Ended::NotActive => {
                    let text = format!("error: {member} is not an active member");
                    Err(Failure::new(Exit::NotFound, text))
                }
                Ended::LastOwner => {
                    let text = format!("error: {} would be left without an owner", mesh.slug);
                    Err(Failure::new(Exit::Conflict, text))
                }
            }
        }
    }
}

async fn list(mesh: &str, form: Form, target: &target::Target) -> Result<(), Failure> {
    let store = target.open_used().await?;
    let mesh_id = find(&store, mesh).await?.mesh_id;
    let mut after = None;
    loop {
        let page = store.member_list(mesh_id, after, PAGE).await.map_err(|error| failed(&error))?;
        print(&page.iter().map(|member| line(member, form)).collect::<String>())?;
        match page.last() {
            Some(last) => after = Some(last.member_id),
            None => return Ok(()),
        }
    }
}

fn line(member: &Member, form: Form) -> String {
    let Member { member_id, name, role, status, pubkey, .. } = member;
    match form {
        Form::Text => {
            let key = pubkey.as_deref().unwrap_or("-");
            let (status, role, name) = (status.as_str(), role.as_str(), shown(name));
            format!("{member_id}  {status:<7} {role:<7} {key:<64}  {name}\n")
        }
        Form::Json => {
            let profile: Value = serde_json::from_str(&member.profile).unwrap_or_default();
            let joined_at = rfc3339::format(member.joined_at);
            let document = json!({
                "member_id": member_id.to_string(), "name": name, "role": role.as_str(),
                "status": status.as_str(), "pubkey": pubkey, "profile": profile,
                "joined_at": joined_at,
            });
            format!("{document}\n")
        }
    }
}

pub(super) fn new_member(name: &str, key: &str, role: Role) -> Result<NewMember, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    if name.is_empty() || name.len() > 128 {
        return Err(usage("error: a name has 1 to 128 bytes".to_owned()));
    }
    plain_name(name)?;
    let pubkey = PublicKey::from_hex(key)
        .map_err(|refusal| usage(format!("error: the key {}", refusal.detail)))?;
    let mint = mint();
    Ok(NewMember {
        member_id: mint.uuid(),
        name: name.to_owned(),
        role,
        key_id: format!("{OPERATORS_KEY}{}", mint.client_message_id()),
        pubkey: pubkey.to_hex().to_string(),
    })
}

/// Refuses to make a name that does not look like what it is.
pub(super) fn plain_name(name: &str) -> Result<(), Failure> {
    if is_plain_name(name) {
        return Ok(());
    }
    let text = format!(
        "error: a name must not have control characters, invisible characters, characters that \
         turn text around, or blanks at its ends: {}",
        shown(name)
    );
    Err(Failure::new(Exit::Usage, text))
}

/// The member that is meant: by id, by key, or by a name that one active member alone has.
async fn meant(store: &Store, mesh: &Mesh, member: &str) -> Result<MemberId, Failure> {
    if let Some(id) = MemberId::parse(member) {
        return Ok(id);
    }
    let none = || Failure::new(Exit::NotFound, format!("error: there is no member {member}"));
    if let Ok(key) = PublicKey::from_hex(member) {
        let found = store.member_by_key(mesh.mesh_id, &key.to_hex().to_string()).await;
        return Ok(found.map_err(|error| failed(&error))?.ok_or_else(none)?.member_id);
    }
    let name = member.strip_prefix('@').unwrap_or(member);
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = store.member_list(mesh.mesh_id, after, PAGE).await;
        let page = page.map_err(|error| failed(&error))?;
        let Some(last) = page.last() else { break };
        after = Some(last.member_id);
        let named = |member: &&Member| member.name == name && member.status == MemberStatus::Active;
        found.extend(page.iter().filter(named).map(|member| member.member_id));
    }
    match found[..] {
        [] => Err(none()),
        [id] => Ok(id),
        _ => {
            let ids: Vec<String> = found.iter().map(MemberId::to_string).collect();
            let text = format!("error: several members are called {member}:\n{}", ids.join("\n"));
            Err(Failure::new(Exit::Conflict, text))
        }
    }
}

pub(super) fn member_id(text: &str) -> Result<MemberId, Failure> {
    let id = MemberId::parse(text);
    id.ok_or_else(|| Failure::new(Exit::Usage, format!("error: {text:?} is not a member's id")))
}
