//! Checks that imports go strictly down: the crates that each crate may use, the paths that it must not name,
//! and that its documentation says what it owns.

use crate::tidy::finding::TidyFinding;
use crate::tidy::modules::{NamedPathUse, collect_use_tree, crate_roots};
use crate::tidy::source::SourceFile;
use crate::tidy::tree::{SourceTree, crate_of, is_test_path};

/// Layer of a crate: the crates that it may use and the paths that it must not name.
struct Layer {
    /// Folder under `crates`, including its subfolders.
    folder: &'static str,
    /// Crates of the workspace that the crate may use.
    may_use: &'static [&'static str],
    /// Paths that the crate must not name outside tests, including everything below them.
    never: &'static [&'static str],
}

const ALL_CRATES: &[&str] = &[
    "times",
    "http",
    "sections",
    "http2",
    "http3",
    "cgi",
    "coding",
    "failure",
    "other_servers",
    "settings",
    "reload",
    "shapes",
    "cluster",
    "discovery",
    "config",
    "ring",
    "net",
    "files",
    "proxy",
    "cache",
    "apps",
    "admission",
    "sharing",
    "tree",
    "link",
    "bench",
    "web_client",
    "otlp",
    "top",
    "import",
    "verify",
    "rights",
    "logging",
    "process",
    "engine",
    "telemetry",
    "certificates",
    "hosting",
    "steps",
    "cache_handler",
    "routing",
    "operator",
    "kubernetes",
];
const NO_IO: &[&str] = &[
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "TcpStream",
    "TcpListener",
    "UnixStream",
    "Instant::now",
    "SystemTime::now",
    "rustix",
    "libc",
    "tokio",
];
/// `std::io` is allowed because it has the traits that compression libraries use.
const NO_IO_EXCEPT_TRAITS: &[&str] =
    &["std::fs", "std::env", "std::process", "std::thread", "std::os", "rustix", "tokio"];
const NO_SOCKETS: &[&str] =
    &["TcpStream", "TcpListener", "UnixStream", "UnixListener", "rustix::net", "tokio"];

/// All layers, from low to high.
const LAYERS: &[Layer] = &[
    Layer { folder: "times", may_use: &[], never: NO_IO },
    Layer { folder: "http", may_use: &[], never: NO_IO },
    Layer { folder: "sections", may_use: &["http"], never: NO_IO },
    Layer { folder: "http2", may_use: &["http", "sections"], never: NO_IO },
    Layer { folder: "http3", may_use: &["http", "sections"], never: NO_IO },
    Layer { folder: "cgi", may_use: &[], never: NO_IO },
    Layer { folder: "failure", may_use: &[], never: NO_IO_EXCEPT_TRAITS },
    Layer { folder: "other_servers", may_use: &[], never: NO_IO },
    Layer {
        folder: "settings",
        may_use: &["failure"],
        never: &["std::process", "std::thread", "std::fs", "TcpStream", "rustix", "tokio"],
    },
    Layer {
        folder: "shapes",
        may_use: &["http", "other_servers", "settings"],
        never: &["std::process", "std::thread", "std::fs", "TcpStream", "rustix", "tokio"],
    },
    Layer {
        folder: "cluster",
        may_use: &["failure", "settings"],
        // A store may be asked only on threads of this crate.
        never: &["std::fs", "std::process", "std::net::Tcp", "std::net::Udp"],
    },
    Layer { folder: "tree", may_use: &[], never: NO_IO },
    Layer { folder: "link", may_use: &[], never: NO_IO },
    Layer { folder: "ring", may_use: &[], never: &["TcpStream", "TcpListener", "tokio"] },
    Layer {
        folder: "workers",
        may_use: &["failure", "ring"],
        // The only socket of a worker is its control socket.
        never: &["TcpStream", "TcpListener", "tokio"],
    },
    Layer { folder: "coding", may_use: &["http"], never: NO_IO_EXCEPT_TRAITS },
    Layer {
        folder: "net",
        may_use: &["coding", "failure", "http", "http2", "http3", "sections", "settings", "shapes", "times"],
        never: &["tokio"],
    },
    Layer {
        folder: "files",
        may_use: &["coding", "failure", "http", "net", "settings", "shapes", "times"],
        never: NO_SOCKETS,
    },
    Layer {
        folder: "proxy",
        may_use: &["cgi", "failure", "http", "net", "settings", "shapes", "times"],
        never: &["tokio"],
    },
    Layer { folder: "cache", may_use: &["http", "net", "settings", "shapes"], never: NO_SOCKETS },
    Layer {
        folder: "admission",
        may_use: &["failure", "http", "proxy", "settings", "shapes", "times"],
        never: NO_IO,
    },
    Layer {
        folder: "discovery",
        may_use: &["settings", "shapes"],
        // DNS servers and Docker may be asked only on the thread of this crate.
        never: &["std::process", "net::Core"],
    },
    Layer { folder: "sharing", may_use: &["cluster", "failure", "net", "settings"], never: &["tokio"] },
    Layer {
        folder: "apps",
        may_use: &["failure", "http", "net", "ring", "settings", "shapes", "times"],
        never: &["tokio"],
    },
    Layer {
        folder: "bench",
        may_use: &["failure", "http", "http2", "http3", "net", "times"],
        never: &["tokio"],
    },
    // The control interface is not involved in handling requests.
    Layer { folder: "web_client", may_use: &["failure"], never: &["net::", "std::net::TcpListener"] },
    Layer {
        folder: "otlp",
        may_use: &["failure", "settings", "shapes", "web_client"],
        never: &["net::", "std::net::TcpListener"],
    },
    Layer { folder: "top", may_use: &["failure"], never: NO_SOCKETS },
    Layer {
        folder: "config",
        may_use: &[
            "admission",
            "apps",
            "cache",
            "certificates",
            "cluster",
            "discovery",
            "failure",
            "files",
            "http",
            "logging",
            "net",
            "other_servers",
            "otlp",
            "proxy",
            "settings",
            "shapes",
            "sharing",
            "times",
        ],
        never: &["std::process", "std::thread", "TcpStream", "rustix", "tokio"],
    },
    // `import` reads the configurations of other servers and writes text.
    Layer {
        folder: "import",
        may_use: &["config", "failure", "other_servers", "shapes"],
        never: &["std::process", "std::thread", "std::net::Tcp", "rustix", "tokio"],
    },
    // `verify` starts both servers and sends them requests.
    Layer { folder: "verify", may_use: &["failure", "http", "import"], never: &["tokio"] },
    // `reload` keeps values that it does not know.
    Layer { folder: "reload", may_use: &[], never: NO_IO },
    Layer { folder: "rights", may_use: &["failure", "net"], never: &["tokio"] },
    Layer {
        folder: "logging",
        may_use: &[
            "bench", "cache", "failure", "files", "http", "net", "otlp", "proxy", "rights", "settings",
            "shapes", "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "process",
        may_use: &["apps", "failure", "link", "logging", "net", "otlp", "rights", "settings"],
        never: &["tokio"],
    },
    Layer {
        folder: "engine",
        may_use: &[
            "apps", "bench", "config", "failure", "http", "logging", "net", "process", "reload", "shapes",
            "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "telemetry",
        may_use: &[
            "apps", "cluster", "config", "engine", "failure", "http", "logging", "net", "otlp", "proxy",
            "reload", "shapes", "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "certificates",
        may_use: &[
            "cluster",
            "failure",
            "logging",
            "net",
            "process",
            "reload",
            "rights",
            "settings",
            "shapes",
            "web_client",
        ],
        never: &["std::net::TcpListener"],
    },
    Layer {
        folder: "hosting",
        may_use: &["apps", "failure", "logging", "net", "process", "proxy", "rights", "times"],
        never: &["tokio"],
    },
    Layer {
        folder: "steps",
        may_use: &[
            "admission",
            "cache",
            "certificates",
            "cluster",
            "config",
            "engine",
            "failure",
            "http",
            "logging",
            "net",
            "process",
            "proxy",
            "reload",
            "shapes",
            "sharing",
            "telemetry",
            "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "cache_handler",
        may_use: &[
            "cache", "cluster", "coding", "config", "failure", "http", "logging", "net", "process", "proxy",
            "shapes", "steps", "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "routing",
        may_use: &[
            "admission",
            "apps",
            "cache_handler",
            "certificates",
            "config",
            "engine",
            "failure",
            "files",
            "hosting",
            "http",
            "logging",
            "net",
            "otlp",
            "process",
            "proxy",
            "reload",
            "shapes",
            "steps",
            "telemetry",
            "times",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "operator",
        may_use: &[
            "apps",
            "certificates",
            "cluster",
            "config",
            "engine",
            "failure",
            "hosting",
            "http",
            "logging",
            "net",
            "process",
            "proxy",
            "rights",
            "telemetry",
            "times",
            "tree",
        ],
        never: &["tokio"],
    },
    Layer {
        folder: "kubernetes",
        may_use: &[
            "admission",
            "config",
            "failure",
            "import",
            "logging",
            "net",
            "other_servers",
            "proxy",
            "settings",
            "shapes",
            "telemetry",
        ],
        never: &[],
    },
    Layer { folder: "komainu", may_use: ALL_CRATES, never: &["tokio"] },
    Layer { folder: "corpus", may_use: &[], never: &["tokio"] },
    Layer {
        folder: "xtask",
        may_use: &["config", "kubernetes", "bench", "failure", "other_servers"],
        never: &["tokio"],
    },
];

/// Returns all findings about crates and their dependencies.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut findings: Vec<TidyFinding> =
        crate_roots(tree).iter().filter_map(|root| check_opening(tree, root)).collect();
    for (name, text) in tree.files() {
        let Some(folder) = name.strip_prefix("crates/").filter(|_| name.ends_with("/Cargo.toml")) else {
            continue;
        };
        match find_layer(folder) {
            None => findings.push(TidyFinding::new(
                name,
                1,
                "this crate has no layer",
                "give it a line in xtask's table of layers, and one in ARCHITECTURE.md",
            )),
            Some(layer) => findings.extend(check_dependencies(name, text, layer)),
        }
    }
    for (name, text) in tree.rust().filter(|(name, _)| !is_test_path(name)) {
        let folder = crate_of(name).and_then(|folder| folder.strip_prefix("crates/"));
        if let Some(layer) = folder.and_then(find_layer) {
            findings.extend(check_forbidden(name, text, layer));
        }
    }
    findings
}

fn find_layer(folder: &str) -> Option<&'static Layer> {
    let first = folder.split('/').next()?;
    LAYERS.iter().find(|layer| layer.folder == first)
}

/// Checks that the root file says what the crate owns and what it never does.
fn check_opening(tree: &SourceTree, root: &str) -> Option<TidyFinding> {
    let text = tree.text(root)?;
    let words: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let says =
        |word: &str| words.split(|c: char| !c.is_alphabetic()).any(|one| one.eq_ignore_ascii_case(word));
    let missing = match (says("owns"), says("never")) {
        (true, true) => return None,
        (true, false) => "does not say what the crate never does",
        (false, true) => "does not say what the crate owns",
        (false, false) => "says neither what the crate owns nor what it never does",
    };
    Some(TidyFinding::new(
        root,
        1,
        missing,
        "open the file with `//!` lines that hold the words `owns` and `never`",
    ))
}

/// Checks the dependencies within the workspace; dev-dependencies are not restricted.
fn check_dependencies(name: &str, text: &str, layer: &Layer) -> Vec<TidyFinding> {
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        let mut dependency = None;
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let parts: Vec<&str> = section.split('.').collect();
            let heads = |part: &&str| matches!(*part, "dependencies" | "build-dependencies");
            in_dependencies = parts.last().is_some_and(heads);
            dependency = parts.iter().rev().nth(1).filter(|part| heads(part)).and(parts.last().copied());
        } else if in_dependencies && !line.starts_with('#') {
            dependency = line.split(['.', '=']).next().map(str::trim);
        }
        let Some(dependency) = dependency else { continue };
        let used = dependency.strip_prefix("komainu-").unwrap_or(dependency);
        let is_ours = LAYERS.iter().any(|other| other.folder == used);
        if is_ours && !layer.may_use.contains(&used) {
            let what = format!("`{}` must not use `{used}`", layer.folder);
            findings.push(TidyFinding::new(name, at + 1, what, "imports go strictly down the layers"));
        }
    }
    findings
}

fn check_forbidden(name: &str, text: &str, layer: &Layer) -> Vec<TidyFinding> {
    let source = SourceFile::new(text);
    let tokens = source.tokens();
    let mut findings = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut paths: Vec<NamedPathUse> = Vec::new();
        let line = tokens[at].line;
        let is_path = tokens.get(at + 1).is_some_and(|next| next.text == "::");
        at = if is_path { collect_use_tree(&tokens, at, &[], &mut paths).max(at + 1) } else { at + 1 };
        if source.is_test(line) {
            continue;
        }
        for named in paths {
            let touches = |never: &&&str| {
                let words: Vec<&str> = never.split("::").collect();
                named.path.windows(words.len()).any(|window| window == words)
            };
            if let Some(never) = layer.never.iter().find(touches) {
                let what = format!("`{}` never touches `{never}`", layer.folder);
                findings.push(TidyFinding::new(
                    name,
                    named.line,
                    what,
                    "what is needed comes in as an argument",
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: &str = "//! This crate owns words.\n//! It never acts.\n";

    fn find_all(files: &[(&str, &str)]) -> Vec<String> {
        check(&SourceTree::of(files)).iter().map(|finding| format!("{finding}")).collect()
    }

    #[test]
    fn forbidden_dependency_is_reported_in_every_notation() {
        for (line, expected) in [
            ("[dependencies]\nnet.workspace = true", 2),
            ("[dependencies]\nnet = { workspace = true }", 2),
            ("[dependencies.net]\nworkspace = true", 1),
            ("[dependencies]\nkomainu-net = \"1\"", 2),
            ("[target.'cfg(unix)'.dependencies]\nnet.workspace = true", 2),
            ("[build-dependencies]\nnet.workspace = true", 2),
        ] {
            let reported = find_all(&[("crates/http/Cargo.toml", line)]);
            assert_eq!(reported.len(), 1, "{line}: {reported:?}");
            assert!(
                reported[0]
                    .starts_with(&format!("crates/http/Cargo.toml:{expected}: `http` must not use `net`"))
            );
        }
    }

    #[test]
    fn allowed_dependencies_and_dev_dependencies_pass() {
        let files = "[dependencies]\nhttp.workspace = true\nnet.workspace = true\nmemchr = \"2\"\n[dev-dependencies]\nproxy.workspace = true\n[features]\ncache = []";
        assert_eq!(find_all(&[("crates/files/Cargo.toml", files)]), Vec::<String>::new());
        assert_eq!(
            find_all(&[("crates/workers/perl/Cargo.toml", "[dependencies]\nring.workspace = true")]).len(),
            0
        );
        assert_eq!(
            find_all(&[("crates/workers/perl/Cargo.toml", "[dependencies]\nnet.workspace = true")]).len(),
            1
        );
    }

    #[test]
    fn crate_without_a_layer_is_reported() {
        assert!(find_all(&[("crates/misc/Cargo.toml", "")])[0].contains("no layer"));
    }

    #[test]
    fn crate_documentation_must_state_what_it_owns() {
        assert!(find_all(&[("crates/http/src/lib.rs", OPENING)]).is_empty());
        assert!(find_all(&[("crates/http/src/lib.rs", "//! Owns words.\n")])[0].contains("never does"));
        assert!(find_all(&[("crates/http/src/lib.rs", "//! It never acts.\n")])[0].contains("owns"));
        assert_eq!(find_all(&[("crates/komainu/src/main.rs", "fn main() {}")]).len(), 1);
    }

    #[test]
    fn forbidden_paths_are_reported_outside_of_tests() {
        let bad = [
            "use std::{fmt, fs};",
            "fn f() { std::fs::read(\"x\"); }",
            "fn f() { Instant::now(); }",
            "use std::net::{IpAddr, TcpStream};",
        ];
        for code in bad {
            assert_eq!(find_all(&[("crates/http/src/x.rs", code)]).len(), 1, "{code}");
        }
        let good = "// std::fs\nuse std::net::IpAddr;\nconst A: &str = \"std::fs\";\n#[cfg(test)]\nmod tests { use std::fs; }";
        assert!(
            find_all(&[("crates/http/src/x.rs", good), ("crates/http/tests/y.rs", "use std::fs;")])
                .is_empty()
        );
        assert!(find_all(&[("crates/net/src/x.rs", "use std::fs;")]).is_empty());
        assert_eq!(find_all(&[("crates/net/src/x.rs", "use tokio::net::TcpStream;")]).len(), 1);
    }
}
