//! The broker's HTTP API (`docs/http.md`) from a member's side: every request is signed, each with
//! a nonce of its own, over a connection of its own.

mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::id::MemberId;
use semel_core::refusal::Refusal;
use semel_crypto::keys::KeyPair;
use semel_crypto::request::{RequestClaim, sign};
use semel_wire::http::{
    Body, Invite, Join, Joined, List, MemberItem, NameItem, NewInvite, NewName, Problem, Profile,
    TopicItem,
};
use semel_wire::path;

pub(crate) use remote::peer;

use crate::dial::{DialError, Dialler};
use crate::limits::{REMOTE_ANSWER_BYTES_MAX, REMOTE_PAGES_MAX, REQUEST_TIMEOUT};
use crate::remote::Anyway;

/// Why a request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The broker cannot be reached, or did not answer a question: nothing was done.
    #[error("the broker is away: {0}")]
    Away(String),
    /// It refused. With the code `outcome_unknown` it may have done what was asked: it says so
    /// itself, or the request was sent and there is no answer.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
}

/// A broker, as one member of one mesh asks it.
pub struct BrokerApi {
    broker: Dialler,
    mesh: String,
    keys: Arc<KeyPair>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Fn() -> u128 + Send + Sync>,
}

impl BrokerApi {
    /// The API is where the WebSocket is.
    pub fn new(
        broker: Dialler,
        mesh: &str,
        keys: Arc<KeyPair>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Fn() -> u128 + Send + Sync>,
    ) -> Self {
        Self { broker, mesh: mesh.to_owned(), keys, clock, random }
    }

    /// Becomes a member by an invite.
    pub async fn join(&self, join: &Join) -> Result<Joined, ApiError> {
        decoded(&self.post("/join", join.encode()).await?).map_err(unanswered)
    }

    /// Makes an invite.
    pub async fn invite_create(&self, invite: &NewInvite) -> Result<Invite, ApiError> {
        decoded(&self.post("/invites", invite.encode()).await?).map_err(unanswered)
    }

    /// Everybody who is or was in the mesh.
    pub async fn members(&self) -> Result<Vec<MemberItem>, ApiError> {
        self.list("/members").await
    }

    /// Throws a member out.
    pub async fn member_revoke(&self, member: MemberId) -> Result<(), ApiError> {
        self.post(&format!("/members/{member}/revoke"), String::new()).await.map(drop)
    }

    /// Leaves the mesh.
    pub async fn leave(&self) -> Result<(), ApiError> {
        self.post("/leave", String::new()).await.map(drop)
    }

    /// Says what this member says of itself.
    pub async fn profile_set(&self, profile: &Profile) -> Result<(), ApiError> {
        self.post("/profile", profile.encode()).await.map(drop)
    }

    /// Every topic.
    pub async fn topic_list(&self) -> Result<Vec<TopicItem>, ApiError> {
        self.list("/topics").await
    }

    /// Makes a topic; `false` when it was there.
    pub async fn topic_create(&self, name: &str) -> Result<bool, ApiError> {
        self.create("/topics", name).await
    }

    /// This member hears of the topic from now on.
    pub async fn topic_subscribe(&self, name: &str) -> Result<(), ApiError> {
        let path = format!("/topics/{}/subscribe", path::encode(name));
        self.post(&path, String::new()).await.map(drop)
    }

    /// This member does not any more.
    pub async fn topic_unsubscribe(&self, name: &str) -> Result<(), ApiError> {
        let path = format!("/topics/{}/unsubscribe", path::encode(name));
        self.post(&path, String::new()).await.map(drop)
    }

    /// Deletes a topic; with `anyway` also while others subscribe to it.
    pub async fn topic_delete(&self, name: &str, anyway: Anyway) -> Result<(), ApiError> {
        self.delete("/topics", name, anyway).await
    }

    /// Deletes a queue; with `anyway` also the work that waits in it.
    pub async fn queue_delete(&self, name: &str, anyway: Anyway) -> Result<(), ApiError> {
        self.delete("/queues", name, anyway).await
    }

    async fn delete(&self, path: &str, name: &str, anyway: Anyway) -> Result<(), ApiError> {
        let (mesh, name) = (path::encode(&self.mesh), path::encode(name));
        let query = match anyway {
            Anyway::No => "",
            Anyway::Yes => "?anyway=true",
        };
        let path = format!("/v1/meshes/{mesh}{path}/{name}{query}");
        self.call(Method::DELETE, &path, String::new()).await.map(drop)
    }

    /// Every queue.
    pub async fn queue_list(&self) -> Result<Vec<NameItem>, ApiError> {
        self.list("/queues").await
    }

    /// Makes a queue; `false` when it was there.
    pub async fn queue_create(&self, name: &str) -> Result<bool, ApiError> {
        self.create("/queues", name).await
    }

    async fn create(&self, path: &str, name: &str) -> Result<bool, ApiError> {
        let body = NewName { name: name.to_owned() }.encode();
        let path = format!("/v1/meshes/{}{path}", path::encode(&self.mesh));
        let (status, _) = self.call(Method::POST, &path, body).await?;
        Ok(status == StatusCode::CREATED)
    }

    async fn post(&self, path: &str, body: String) -> Result<Bytes, ApiError> {
        let path = format!("/v1/meshes/{}{path}", path::encode(&self.mesh));
        Ok(self.call(Method::POST, &path, body).await?.1)
    }

    /// A whole list, page by page.
    async fn list<Item>(&self, path: &str) -> Result<Vec<Item>, ApiError>
    where
        List<Item>: Body,
    {
        let mut items = Vec::new();
        let mut next = Some(format!("/v1/meshes/{}{path}?limit=500", path::encode(&self.mesh)));
        for _ in 0..REMOTE_PAGES_MAX {
            let Some(path) = next else { break };
            let (_, body) = self.call(Method::GET, &path, String::new()).await?;
            let page: List<Item> = decoded(&body)?;
            items.extend(page.items);
            next = page.next;
        }
        Ok(items)
    }

    /// A request that is too much for now was not begun: it waits and is made again, unless that
    /// takes longer than an answer may.
    async fn call(
        &self,
        method: Method,
        path_and_query: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let mut waited = Duration::ZERO;
        loop {
            let answer = self.call_once(method.clone(), path_and_query, body.clone()).await;
            let Err(ApiError::Refused(problem)) = &answer else { return answer };
            let Some(ms) = problem.retry_after_ms else { return answer };
            let wait = Duration::from_millis(ms.max(1));
            waited = waited.saturating_add(wait);
            if problem.code != Code::RateLimited || waited > REQUEST_TIMEOUT {
                return answer;
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn call_once(
        &self,
        method: Method,
        path_and_query: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let sent = AtomicBool::new(false);
        let changes = method != Method::GET;
        let asked = self.ask(method, path_and_query, body, &sent);
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, asked).await;
        let (status, body) = match answer.unwrap_or_else(|_| Err(away("it did not answer in time")))
        {
            Ok((status, body)) if status.is_success() => return Ok((status, body)),
            Ok(answer) => answer,
            Err(error) if changes && sent.load(Ordering::SeqCst) => return Err(unanswered(error)),
            Err(error) => return Err(error),
        };
        Err(match Problem::decode(&body) {
            Ok(problem) => ApiError::Refused(Box::new(problem)),
            // Of somebody between, who may have passed it on.
            Err(_) if changes && status.is_server_error() => {
                unanswered(away(format!("it answered {status}")))
            }
            Err(_) => away(format!("it answered {status}")),
        })
    }

    /// `sent` says afterwards whether the broker may have got it.
    async fn ask(
        &self,
        method: Method,
        path_and_query: &str,
        body: String,
        sent: &AtomicBool,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let stream = self.broker.dial(|stream| stream).await.map_err(not_there)?;
        let request = self.signed(&method, path_and_query, body)?;
        exchange(TokioIo::new(stream), request, sent).await
    }

    fn signed(
        &self,
        method: &Method,
        path_and_query: &str,
        body: String,
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        let (time, nonce) = (self.clock.wall(), Hex((self.random)().to_be_bytes()));
        let claim = RequestClaim {
            method: method.as_str(),
            path_and_query,
            body: body.as_bytes(),
            time,
            nonce,
            mesh: &self.mesh,
        };
        let signature = sign(&self.keys, &claim);
        let ours = HeaderName::from_static;
        let request = Request::builder()
            .method(method)
            .uri(path_and_query)
            .header(HOST, self.broker.place().authority())
            .header(CONTENT_TYPE, "application/json")
            .header(ours("semel-key"), self.keys.public().to_hex().to_string())
            .header(ours("semel-time"), time.0.to_string())
            .header(ours("semel-nonce"), nonce.to_string())
            .header(ours("semel-signature"), signature.to_string());
        request.body(Full::new(Bytes::from(body))).map_err(away_of)
    }
}

async fn exchange<Io>(
    io: Io,
    request: Request<Full<Bytes>>,
    sent: &AtomicBool,
) -> Result<(StatusCode, Bytes), ApiError>
where
    Io: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(away_of)?;
    let driving = tokio::spawn(connection);
    let answer = async {
        sent.store(true, Ordering::SeqCst);
        let response = sender.send_request(request).await.map_err(away_of)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), REMOTE_ANSWER_BYTES_MAX);
        let body = body.collect().await.map_err(|error| away(error.to_string()))?;
        Ok((status, body.to_bytes()))
    };
    let answer = answer.await;
    driving.abort();
    answer
}

fn decoded<B: Body>(body: &[u8]) -> Result<B, ApiError> {
    B::decode(body).map_err(|refusal| away(format!("its answer is not understood: {refusal}")))
}

/// The same of what was asked to be done: it may have been.
fn unanswered(error: ApiError) -> ApiError {
    match error {
        ApiError::Away(why) => {
            let detail = format!("the broker was asked, but there is no answer: {why}");
            ApiError::Refused(Box::new(Problem::of(Refusal::new(Code::OutcomeUnknown, detail))))
        }
        refused @ ApiError::Refused(_) => refused,
    }
}

fn not_there(error: DialError) -> ApiError {
    match error {
        DialError::PlainText { refusal, .. } => ApiError::Refused(Box::new(Problem::of(refusal))),
        DialError::Unfit(why) | DialError::Silent(why) | DialError::Away(why) => away(why),
    }
}

fn away(why: impl Into<String>) -> ApiError {
    ApiError::Away(why.into())
}

fn away_of(error: impl std::error::Error) -> ApiError {
    away(error.to_string())
}
