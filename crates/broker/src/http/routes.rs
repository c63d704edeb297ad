//! Which path is what. Segments are split before they are decoded, so that `a%2Fb` is one name.

use axum::response::Response;
use semel_core::code::Code;
use semel_core::limits::REF_BYTES_MAX;
use semel_wire::http::{Problem, name};
use semel_wire::path;

use super::answer;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    MeshCreate,
    MeshShow,
    InviteCreate,
    Join,
    Members,
    MemberRevoke,
    Leave,
    Profile,
    Topics,
    TopicCreate,
    TopicSubscribe,
    TopicUnsubscribe,
    TopicDelete,
    Queues,
    QueueCreate,
    QueueDelete,
    History,
}

/// Method, pattern, route: line for line the table of `docs/http.md`.
#[rustfmt::skip]
pub(super) const ROUTES: &[(&str, &str, Route)] = &[
    ("POST", "/v1/meshes",                                 Route::MeshCreate      ),
    ("GET",  "/v1/meshes/{mesh}",                          Route::MeshShow        ),
    ("POST", "/v1/meshes/{mesh}/invites",                  Route::InviteCreate    ),
    ("POST", "/v1/meshes/{mesh}/join",                     Route::Join            ),
    ("GET",  "/v1/meshes/{mesh}/members",                  Route::Members         ),
    ("POST", "/v1/meshes/{mesh}/members/{member}/revoke",  Route::MemberRevoke    ),
    ("POST", "/v1/meshes/{mesh}/leave",                    Route::Leave           ),
    ("POST", "/v1/meshes/{mesh}/profile",                  Route::Profile         ),
    ("GET",  "/v1/meshes/{mesh}/topics",                   Route::Topics          ),
    ("POST", "/v1/meshes/{mesh}/topics",                   Route::TopicCreate     ),
    ("POST", "/v1/meshes/{mesh}/topics/{name}/subscribe",  Route::TopicSubscribe  ),
    ("POST", "/v1/meshes/{mesh}/topics/{name}/unsubscribe", Route::TopicUnsubscribe),
    ("DELETE", "/v1/meshes/{mesh}/topics/{name}",          Route::TopicDelete     ),
    ("GET",  "/v1/meshes/{mesh}/queues",                   Route::Queues          ),
    ("POST", "/v1/meshes/{mesh}/queues",                   Route::QueueCreate     ),
    ("DELETE", "/v1/meshes/{mesh}/queues/{name}",          Route::QueueDelete     ),
    ("GET",  "/v1/meshes/{mesh}/history",                  Route::History         ),
];

/// A route, and what stands for the names in its pattern.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) route: Route,
    pub(super) names: Vec<String>,
}

/// Why there is no route.
#[derive(Debug)]
pub(super) enum Missing {
    /// Nothing is under this path.
    Path,
    /// The path has these methods.
    Method(String),
    /// A name in the path cannot be one.
    Name(Problem),
}

impl Missing {
    pub(super) fn into_response(self) -> Response {
        match self {
            Self::Path => {
                let detail = "there is nothing under this path";
                answer::problem(&Problem::new(Code::NotFound, detail))
            }
            Self::Method(methods) => answer::not_allowed(&methods),
            Self::Name(problem) => answer::problem(&problem),
        }
    }
}

pub(super) fn find(method: &str, path: &str) -> Result<Found, Missing> {
    let matching: Vec<_> =
        ROUTES.iter().filter_map(|route| Some((route, matched(route.1, path)?))).collect();
    if matching.is_empty() {
        return Err(Missing::Path);
    }
    let Some((route, segments)) = matching.iter().find(|(route, _)| route.0 == method) else {
        let methods: Vec<&str> = matching.iter().map(|(route, _)| route.0).collect();
        return Err(Missing::Method(methods.join(", ")));
    };
    let names = segments.iter().map(|segment| decoded(segment)).collect::<Result<_, _>>();
    Ok(Found { route: route.2, names: names.map_err(Missing::Name)? })
}

/// The segments that stand for names, if the path has this pattern.
fn matched<'path>(pattern: &str, path: &'path str) -> Option<Vec<&'path str>> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut names = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(names),
            (Some(pattern), Some(segment)) if pattern.starts_with('{') && !segment.is_empty() => {
                names.push(segment);
            }
            (Some(pattern), Some(segment)) if pattern == segment => {}
            (Some(_) | None, Some(_) | None) => return None,
        }
    }
}

fn decoded(segment: &str) -> Result<String, Problem> {
    let text = path::decode(segment).ok_or_else(|| {
        Problem::new(Code::InvalidField, "a name in the path is not percent-encoded UTF-8")
    })?;
    name(text, REF_BYTES_MAX).map_err(|refusal| {
        Problem::new(refusal.code, format!("a name in the path {}", refusal.detail))
    })
}

#[cfg(test)]
mod tests {
    use semel_testkit::tables;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/http.md");

    #[test]
    fn the_routes_equal_the_document() {
        let rows = ROUTES.iter().map(|(method, pattern, _)| [*method, *pattern]);
        tables::equals_document(DOCUMENT, "routes", rows);
        for (_, pattern, _) in ROUTES {
            let heading = format!("`{pattern}`");
            assert!(DOCUMENT.matches(&heading).count() >= 2, "{pattern} has its paragraph");
        }
    }

    #[test]
    fn a_name_is_one_segment_whatever_it_holds() {
        let names = |path: &str| find("POST", path).map(|found| found.names).ok();
        let path = "/v1/meshes/m/topics/a%2Fb/subscribe";
        assert_eq!(names(path), Some(vec!["m".to_owned(), "a/b".to_owned()]));
        let path = "/v1/meshes/m/topics/o'brien');%20--/subscribe";
        assert_eq!(names(path), Some(vec!["m".to_owned(), "o'brien'); --".to_owned()]));
        assert_eq!(names("/v1/meshes/m/topics/a/b/subscribe"), None);
        assert_eq!(names("/v1/meshes/m/topics//subscribe"), None);
        assert_eq!(names("/v1/meshes/m/topics/a/subscribe/"), None);
        for broken in ["%", "%00", "%ff", "%0A", &"x".repeat(256)] {
            let path = format!("/v1/meshes/m/topics/{broken}/subscribe");
            assert!(matches!(find("POST", &path), Err(Missing::Name(_))), "{broken}");
        }
        let wrong = find("PUT", "/v1/meshes/m/topics");
        assert!(matches!(wrong, Err(Missing::Method(methods)) if methods == "GET, POST"));
    }
}
