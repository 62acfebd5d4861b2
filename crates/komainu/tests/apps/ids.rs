//! Request ids and traces reach applications of every language, unless they come from untrusted clients.

use crate::hosted::{self, Client};
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, text};
use crate::shown::{LANGUAGES, applications};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SENT: [&str; 5] = [
    "X-Request-Id: theirs",
    "X_Request_Id: underscored",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Trace_parent: underscored",
    "tracestate: a=1",
];

/// Returns request id, traceparent and tracestate as the application received them, and the response's
/// request id.
fn ask(rig: &Rig, path: &str, version: &str) -> ([String; 3], String) {
    let url = rig.url(path);
    let fields = SENT.iter().flat_map(|field| ["-H", field]);
    let arguments: Vec<&str> = ["-i", version, &url].into_iter().chain(fields).collect();
    let answer = text(&curl(&arguments).stdout).replace("\r\n", "\n");
    let (head, body) = answer.split_once("\n\n").unwrap_or_else(|| panic!("{answer:?}"));
    let id = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("x-request-id").then(|| value.to_owned())
    });
    let got: Vec<String> = body.split('|').map(str::to_owned).collect();
    let got = got.try_into().unwrap_or_else(|_| panic!("{answer:?}"));
    (got, id.unwrap_or_default())
}

#[test]
fn ids_and_traces_reach_applications_of_every_language() {
    let folder = Folder::new();
    let routes = applications(&folder, &["x-request-id", "traceparent", "tracestate"]);
    let config = |trusted: &str| {
        format!(
            r#"
            {}
            {trusted}
            response_headers = {{ set = {{ X-Request-Id = "$request_id" }} }}
            [tracing]
            enabled = true
            sample = "100%"
            {routes}
            "#,
            as_we_are()
        )
    };
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\n";
    folder.write("komainu.toml", format!("{listen}{}", config("")));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let each = || {
        let versions = ["--http1.1", "--http2-prior-knowledge"];
        LANGUAGES.iter().flat_map(move |kind| versions.map(|version| (format!("/{kind}"), version)))
    };
    for (path, version) in each() {
        eventually("it is loaded", || Client::new(rig.address).get(&path).0 == 200);
        let ([id, parent, state], answered) = ask(&rig, &path, version);
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(id.len() == 32 && is_hex(&id) && id == answered, "{path} {version}: {id} {answered}");
        let parts: Vec<&str> = parent.split('-').collect();
        assert!(
            matches!(parts[..], ["00", trace, span, "01"] if trace.len() == 32 && span.len() == 16),
            "{parent}"
        );
        assert!(!parent.contains(&PARENT[3..35]) && state == "-", "{path} {version}: {parent} {state}");
    }
    // Ids of a trusted proxy are accepted, and the trace continues with this server's span.
    rig.folder.write("komainu.toml", format!("{listen}{}", config("trusted_proxies = [\"127.0.0.1\"]\n")));
    rig.signal("-HUP");
    eventually("the proxy is trusted", || ask(&rig, "/psgi", "--http1.1").1 == "theirs");
    for (path, version) in each() {
        eventually("it is loaded again", || Client::new(rig.address).get(&path).0 == 200);
        let ([id, parent, state], answered) = ask(&rig, &path, version);
        assert_eq!(
            (id.as_str(), answered.as_str(), state.as_str()),
            ("theirs", "theirs", "a=1"),
            "{path} {version}"
        );
        assert!(
            parent.starts_with(&PARENT[..36]) && parent.ends_with("-01") && parent != PARENT,
            "{path} {version}: {parent}"
        );
    }
}
