//! What a daemon asks its broker to do, when the answer is lost: it may have been done.

use semel_testkit::proxy::{Fault, Proxy};
use semel_wire::link::JoinLink;
use serde_json::Value;
use tokio::task::block_in_place;

use crate::process::{Mesh, Process, fails, succeeds, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_was_asked_to_do_and_did_not_answer_is_not_known() {
    let mesh = block_in_place(Mesh::new);
    let invite = block_in_place(|| mesh.invite("owner"));
    let mut link = JoinLink::parse(&invite).unwrap();
    let broker = link.broker_url.strip_prefix("http://").unwrap().parse().unwrap();
    let proxy = Proxy::start(broker).await;
    link.broker_url = format!("http://{}", proxy.address());
    let host = mesh.host("far");
    let home = host.home();
    let join = ["mesh", "join", &link.encode(), "--name", "far", "--home", &home];
    // The invite is spent, and the same one again joins as the same member.
    proxy.fail_next("/join", Fault::CutAfter);
    let (code, said) = block_in_place(|| fails(&join));
    assert!(code == 6 && said.contains("the same invite, again"), "{code}: {said}");
    block_in_place(|| succeeds(&join));
    block_in_place(|| mesh.join("other", "member"));
    let _daemon: Process = block_in_place(|| host.up());
    let named = |peers: &Value| {
        let mut peers = peers["items"].as_array()?.iter();
        Some(peers.find(|peer| peer["name"] == "other")?["pubkey"].as_str()?.to_owned())
    };
    let peers = until(&host.client(), "/v1/peers", |peers| named(peers).is_some()).await;
    let other = named(&peers).unwrap();
    for (path, verb) in [
        ("/invites", &["mesh", "invite"][..]),
        ("/topics", &["topic", "create", "builds"]),
        ("/queues", &["queue", "create", "work"]),
        ("/revoke", &["member", "revoke", &other]),
        ("/leave", &["mesh", "leave", "--confirm"]),
    ] {
        let fired = proxy.fired();
        proxy.fail_next(path, Fault::CutAfter);
        let (code, said) = block_in_place(|| fails(&[verb, &["--home", &home]].concat()));
        assert_eq!((code, proxy.fired()), (6, fired + 1), "{verb:?}: {said}");
        assert!(said.contains("outcome_unknown"), "{verb:?}: {said}");
    }
}
