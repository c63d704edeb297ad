//! Who asks: a member by its signature, or the operator by the admin token.

use axum::http::header::AUTHORIZATION;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::id::MemberId;
use semel_core::refusal::Refusal;
use semel_crypto::clock::clock_skew_ok;
use semel_crypto::keys::PublicKey;
use semel_crypto::request::{RequestClaim, verify};
use semel_wire::http::{MemberStatus, Problem, Role};
use semel_wire::limits::RETRY_AFTER_MS_MAX;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Call;
use super::answer::failed;
use crate::limiter::{LimitRequest, requests_of};
use crate::limits::{
    NONCE_LIFE, REQUESTS_OF_MEMBER_MAX, REQUESTS_OF_MEMBER_WINDOW, RETRY_AFTER_MIN,
};
use crate::store::{Admitted, Mesh, NewRequest};

/// The operator's secret, of which only a hash is kept.
#[derive(Clone)]
pub struct AdminToken([u8; 32]);

impl AdminToken {
    /// At least 32 printable characters: a shorter one can be guessed.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() < 32 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = "an admin token has at least 32 printable characters without spaces";
            return Err(Refusal::new(Code::InvalidField, detail));
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Takes as long for a token that is nearly right as for any other.
    pub fn is(&self, text: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(text).into();
        self.0.ct_eq(&given).into()
    }
}

/// A member that has shown its key, once.
pub(super) struct Asking {
    pub(super) mesh: Mesh,
    pub(super) member_id: MemberId,
    pub(super) role: Role,
}

/// A request that its key's owner has signed.
struct Signed {
    mesh: Mesh,
    key: PublicKey,
    time: UnixMs,
    nonce: Hex<16>,
}

/// A member, by its signature.
pub(super) async fn member(call: &Call) -> Result<Asking, Problem> {
    let Signed { mesh, key, time, nonce } = signed(call).await?;
    let request = NewRequest {
        pubkey: key.to_string(),
        nonce: nonce.0,
        expires_at: time.saturating_add(NONCE_LIFE),
    };
    within_budget(call, &mesh, &request).await?;
    let now = call.broker.clock.wall();
    let admitted = call.broker.store.request_admit(mesh.mesh_id, &request, now).await;
    match admitted.map_err(failed)? {
        Admitted::Member { member_id, role } => {
            call.is_known();
            Ok(Asking { mesh, member_id, role })
        }
        Admitted::Unknown => Err(unauthorised()),
        Admitted::Inactive => {
            Err(Problem::new(Code::MemberInactive, "the member was revoked or has left"))
        }
        Admitted::NonceReused => {
            Err(Problem::new(Code::NonceReused, "this request was served before"))
        }
    }
}

/// Before anything is written for it. Only members are counted: a stranger has any number of keys.
/// The same request again is the same one here, too.
async fn within_budget(call: &Call, mesh: &Mesh, request: &NewRequest) -> Result<(), Problem> {
    let member = call.broker.store.member_by_key(mesh.mesh_id, &request.pubkey).await;
    let member = member.map_err(failed)?;
    let active = member.filter(|member| member.status == MemberStatus::Active);
    let Some(member) = active else { return Ok(()) };
    let limited = LimitRequest {
        mesh: &mesh.mesh_id.to_string(),
        sender: &requests_of(&member.member_id.to_string()),
        client_message_id: &Hex(request.nonce).to_string(),
        limit: REQUESTS_OF_MEMBER_MAX,
        window: REQUESTS_OF_MEMBER_WINDOW,
    };
    let Some(wait) = call.broker.pipeline.limiter().ask(&limited).await else { return Ok(()) };
    let ms = u64::try_from(wait.max(RETRY_AFTER_MIN).as_millis()).unwrap_or(u64::MAX);
    let detail = "this member has made too many requests for now";
    let retry_after_ms = Some(ms.min(RETRY_AFTER_MS_MAX));
    Err(Problem { retry_after_ms, ..Problem::new(Code::RateLimited, detail) })
}

/// Who joins is no member yet. Its nonce is not noted: the same join again is the same member, and
/// strangers must not be able to fill a table.
pub(super) async fn joining(call: &Call) -> Result<(Mesh, PublicKey), Problem> {
    signed(call).await.map(|signed| (signed.mesh, signed.key))
}

/// An owner of the mesh, or the operator, who is no member.
pub(super) async fn owner_or_operator(call: &Call) -> Result<(Mesh, Option<MemberId>), Problem> {
    match anybody(call).await? {
        (mesh, None) => Ok((mesh, None)),
        (mesh, Some((member_id, Role::Owner))) => Ok((mesh, Some(member_id))),
        (_, Some((_, Role::Member))) => {
            Err(Problem::new(Code::OwnerNeeded, "only an owner of the mesh may do this"))
        }
    }
}

/// A member with its role, or the operator, who is no member.
pub(super) async fn anybody(call: &Call) -> Result<(Mesh, Option<(MemberId, Role)>), Problem> {
    if call.headers.contains_key(AUTHORIZATION) {
        operator(call)?;
        let mesh = mesh(call).await?;
        let missing = || Problem::new(Code::MeshNotFound, "there is no mesh of that name");
        return mesh.map(|mesh| (mesh, None)).ok_or_else(missing);
    }
    let Asking { mesh, member_id, role } = member(call).await?;
    Ok((mesh, Some((member_id, role))))
}

/// The operator, by the admin token.
pub(super) fn operator(call: &Call) -> Result<(), Problem> {
    let Some(token) = &call.broker.admin_token else {
        let detail = "this broker was started without an admin token";
        return Err(Problem::new(Code::AdminDisabled, detail));
    };
    let given = header(call, AUTHORIZATION.as_str()).and_then(|text| text.strip_prefix("Bearer "));
    if !given.is_some_and(|given| token.is(given)) {
        return Err(unauthorised());
    }
    call.is_known();
    Ok(())
}

/// Checks the signature before the store is asked for more than the mesh.
async fn signed(call: &Call) -> Result<Signed, Problem> {
    let field = |name| header(call, name).ok_or_else(unauthorised);
    let key = PublicKey::from_hex(field("semel-key")?).map_err(|_| unauthorised())?;
    let time = milliseconds(field("semel-time")?).ok_or_else(unauthorised)?;
    let nonce = Hex::parse(field("semel-nonce")?).map_err(|_| unauthorised())?;
    let signature = Hex::parse(field("semel-signature")?).map_err(|_| unauthorised())?;
    let claim = RequestClaim {
        method: &call.method,
        path_and_query: &call.target,
        body: &call.body,
        time,
        nonce,
        mesh: slug(call),
    };
    verify(&key, &claim, &signature).map_err(|_| unauthorised())?;
    if !clock_skew_ok(call.broker.clock.wall(), time) {
        let detail = "the clocks of member and broker differ by more than five minutes";
        return Err(Problem::new(Code::ClockSkew, detail));
    }
    // Whether there is such a mesh is nobody's business who is not in it.
    let mesh = mesh(call).await?.ok_or_else(unauthorised)?;
    Ok(Signed { mesh, key, time, nonce })
}

async fn mesh(call: &Call) -> Result<Option<Mesh>, Problem> {
    call.broker.store.mesh_find(slug(call)).await.map_err(failed)
}

/// The first name in every path that has one.
fn slug(call: &Call) -> &str {
    call.names.first().map_or("", String::as_str)
}

/// A header that is there once.
fn header<'call>(call: &'call Call, name: &str) -> Option<&'call str> {
    let mut values = call.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        (Some(_) | None, _) => None,
    }
}

/// Digits alone, so that a time has one spelling.
fn milliseconds(text: &str) -> Option<UnixMs> {
    let digits = (1..=15).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok().map(UnixMs))?
}

/// Who is refused learns no more than that.
fn unauthorised() -> Problem {
    let detail = "the credentials are missing or wrong, or not known in this mesh";
    Problem::new(Code::Unauthorised, detail)
}
