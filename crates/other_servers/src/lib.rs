//! Directives of other servers, and what takes their place in Komainu.
//!
//! This crate owns the table of advice for people who know another server: its directives, the equivalents here, and
//! the reasons where there is none. `check` reads it for unknown keys and variables, `import` for directives that it
//! does not translate, and `cargo xtask docs` writes it to the pages below `docs/from`. It never translates: how an
//! argument becomes a value is known by `import`.
//!
//! Modules, from low to high; each imports only from those above it.

mod directive;

mod shared;

mod nginx;

mod caddy;

mod haproxy;

mod apache;

mod varnish;

mod unit;

mod gunicorn;

mod puma;

mod starman;

mod ingress_annotations;

mod passenger;

pub use directive::{ForeignDirective, Ours};
pub use ingress_annotations::{
    INGRESS_ANNOTATIONS, INGRESS_PREFIX, IngressAnnotation, IngressVerdict, ingress_annotation,
};

/// A server that people may know.
#[derive(Debug)]
pub struct OtherServer {
    /// Name of the server.
    pub name: &'static str,
    /// Page below `docs` for people who know it.
    pub page: &'static str,
    /// Differences that do not depend on a configuration: sentences.
    pub differences: &'static [&'static str],
    tables: &'static [&'static [ForeignDirective]],
}

impl OtherServer {
    /// All directives, in the order of the page.
    pub fn directives(&self) -> impl Iterator<Item = &'static ForeignDirective> {
        self.tables.iter().copied().flatten()
    }
}

/// nginx.
pub static NGINX: OtherServer = OtherServer {
    name: "nginx",
    page: "from/nginx.md",
    differences: nginx::DIFFERENCES,
    tables: nginx::TABLES,
};
/// Apache.
pub static APACHE: OtherServer =
    OtherServer { name: "Apache", page: "from/apache.md", differences: &[], tables: apache::TABLES };
/// HAProxy.
pub static HAPROXY: OtherServer =
    OtherServer { name: "HAProxy", page: "from/haproxy.md", differences: &[], tables: haproxy::TABLES };
/// Varnish.
pub static VARNISH: OtherServer =
    OtherServer { name: "Varnish", page: "from/varnish.md", differences: &[], tables: varnish::TABLES };
/// Caddy.
pub static CADDY: OtherServer = OtherServer {
    name: "Caddy",
    page: "from/caddy.md",
    differences: caddy::DIFFERENCES,
    tables: caddy::TABLES,
};
/// NGINX Unit.
pub static UNIT: OtherServer =
    OtherServer { name: "Unit", page: "from/unit.md", differences: unit::DIFFERENCES, tables: unit::TABLES };
/// gunicorn.
pub static GUNICORN: OtherServer = OtherServer {
    name: "gunicorn",
    page: "from/gunicorn.md",
    differences: shared::APPLICATION_DIFFERENCES,
    tables: gunicorn::TABLES,
};
static PUMA: OtherServer = OtherServer {
    name: "Puma",
    page: "from/puma.md",
    differences: shared::APPLICATION_DIFFERENCES,
    tables: puma::TABLES,
};
static STARMAN: OtherServer = OtherServer {
    name: "Starman",
    page: "from/starman.md",
    differences: shared::APPLICATION_DIFFERENCES,
    tables: starman::TABLES,
};
static PASSENGER: OtherServer = OtherServer {
    name: "Passenger",
    page: "from/passenger.md",
    differences: shared::APPLICATION_DIFFERENCES,
    tables: passenger::TABLES,
};

/// All servers. Where several have a name, advice begins with the first one.
pub static SERVERS: [&OtherServer; 10] =
    [&NGINX, &CADDY, &HAPROXY, &APACHE, &GUNICORN, &PUMA, &STARMAN, &PASSENGER, &UNIT, &VARNISH];
/// Servers of applications in one language.
pub static APPLICATION_SERVERS: [&OtherServer; 4] = [&GUNICORN, &PUMA, &STARMAN, &PASSENGER];

/// Finds the directives of this name. Case does not matter, nor whether words are joined by `_` or `-`.
pub fn find<'a>(
    servers: &'a [&'static OtherServer],
    name: &'a str,
) -> impl Iterator<Item = (&'static OtherServer, &'static ForeignDirective)> + 'a {
    servers.iter().flat_map(move |server| {
        let has_name =
            |directive: &&ForeignDirective| directive.names.iter().any(|one| is_same_name(one, name));
        server.directives().filter(has_name).map(move |directive| (*server, directive))
    })
}

fn is_same_name(one: &str, other: &str) -> bool {
    let normalize = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    one.bytes().map(normalize).eq(other.bytes().map(normalize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_stands_once_for_each_server_and_block() {
        for server in SERVERS {
            let mut seen = Vec::new();
            for directive in server.directives() {
                for name in directive.names {
                    let key = (name.to_ascii_lowercase(), directive.context);
                    assert!(!seen.contains(&key), "{}: `{name}` stands twice", server.name);
                    seen.push(key);
                }
            }
        }
    }

    #[test]
    fn names_are_found_in_any_case_and_notation() {
        let found = |name| find(&SERVERS, name).next().map(|(server, _)| server.name);
        assert_eq!(found("Sendfile"), Some("nginx"));
        assert_eq!(found("documentroot"), Some("Apache"));
        assert_eq!(found("send_proxy"), Some("HAProxy"));
        assert_eq!(found("frobnicate"), None);
    }
}
