//! Defaults of an empty file, and how the parts of a file combine.

use config::{Action, Config, KIB, MIB, RouteSettings};
use files::{FileSelector, Symlinks};
use http::Dialect;
use logging::{AccessLog, Level, Sink};
use net::{ConfiguredListener, Listen};
use proxy::options::{Balance, Origin, ProxyOptions};
use shapes::network::TrustedSource;
use shapes::prefix::StripPrefix;
use std::path::{Path, PathBuf};
use std::time::Duration;
use times::Millis;

fn parse(text: &str) -> Config {
    match Config::parse(text, "test.toml", Path::new("/srv")) {
        Ok((config, report)) if report.is_empty() => config,
        Ok((_, report)) | Err(report) => panic!("{report}"),
    }
}

#[test]
fn empty_file_yields_the_default_configuration() {
    assert_eq!(parse(""), Config::default());
    assert_eq!(parse("# nothing\n[limits]\n[log]\n"), Config::default());
}

#[test]
fn defaults_have_the_documented_values() {
    let config = Config::default();
    assert_eq!(config.listen, [ConfiguredListener::plain(Listen::Tcp(([127, 0, 0, 1], 8080).into()))]);
    assert_eq!(config.threads, 0);
    assert_eq!(config.limits.connections_max, None);
    assert_eq!(config.limits.requests_per_connection_max, None);
    assert_eq!(config.limits.head_bytes_max, 16 * KIB);
    assert_eq!(config.limits.request_line_bytes_max, 8 * KIB);
    assert_eq!(config.limits.headers_max, 100);
    assert_eq!(config.limits.body_bytes_max, Some(16 * MIB));
    assert_eq!(config.timeouts.idle, Duration::from_secs(75));
    assert_eq!(config.timeouts.head, Duration::from_secs(15));
    assert_eq!((config.log.access, config.log.level), (AccessLog::Off, Level::Info));
    assert_eq!((config.log.file, config.log.errors), (Sink::Stdout, Sink::Stderr));
    assert!(!config.lenient_bare_lf);
    assert!(config.sites.is_empty());
}

#[test]
fn a_header_limit_is_absent_or_in_its_range() {
    let text = |value: &str| {
        format!(
            r"
            [[route]]
            header_limit = {value}
            respond = 204
            "
        )
    };
    assert_eq!(parse("[[route]]\nrespond = 204\n").sites[0].routes[0].headers_max, None);
    for (value, headers_max) in [("1", 1), ("1000", 1000)] {
        assert_eq!(parse(&text(value)).sites[0].routes[0].headers_max, Some(headers_max));
    }
    let site = "[[site]]\nheader_limit = 7\n[[site.route]]\npath = \"/a\"\nheader_limit = 9\nrespond = 204\n[[site.route]]\nrespond = 204\n";
    let config = parse(site);
    assert_eq!([0, 1].map(|route| config.settings(Some(0), Some(route)).headers_max), [Some(9), Some(7)]);
    for value in ["-1", "0", "1001", "\"many\""] {
        let report = Config::parse(&text(value), "test.toml", Path::new("/srv")).unwrap_err();
        assert_eq!(report.error_count(), 1, "{report}");
        assert!(report.render(false).contains("expected a number from 1 to 1000"), "{report}");
    }
}

#[test]
fn short_forms_equal_long_forms() {
    let short = r#"
        [[route]]
        files = "a"

        [[site]]
        hosts = "h"

        [[site.route]]
        path = "/r"
        redirect = "/b"

        [[site.route]]
        path = "/n"
        respond = 404

        [[site.route]]
        respond = "t"
    "#;
    let long = r#"
        [[route]]
        files = { root = ["a"] }

        [[site]]
        hosts = ["h"]

        [[site.route]]
        path = ["/r"]
        redirect = { to = "/b" }

        [[site.route]]
        path = "/n"
        respond = { status = 404 }

        [[site.route]]
        respond = { body = "t" }
    "#;
    assert_eq!(parse(short), parse(long));
}

#[test]
fn all_files_directives_are_parsed() {
    let config = parse(
        r##"
[[route]]
path = "/assets/*"
[route.files]
root = ["a", "/b"]
try = ["$path", "$path.html"]
cache_control = { "*.html" = "no-cache", "image/*" = "max-age=60" }
precompressed = true
compress = { min = "2KiB" }
symlinks = "owner-match"
strip_prefix = true
charset = false
"##,
    );
    let route = &config.sites[0].routes[0];
    assert_eq!(route.prefix(), Some("/assets"));
    let Action::Files(files) = &route.action else { panic!("{:?}", route.action) };
    assert_eq!(files.root, [PathBuf::from("/srv/a"), PathBuf::from("/b")]);
    assert_eq!(files.candidates.len(), 2);
    assert!(matches!(&files.cache_control[0].0, FileSelector::Path(path) if path.as_str() == "*.html"));
    assert_eq!(files.cache_control[1], (FileSelector::Media("image/".into()), "max-age=60".into()));
    assert_eq!(files.precompressed.len(), 3);
    assert_eq!(files.compress.as_ref().map(|compress| compress.min_bytes), Some(2 * KIB));
    assert_eq!((files.symlinks, &files.strip_prefix), (Symlinks::OwnerMatch, &StripPrefix::OfRoute));
    assert_eq!(files.charset, None);
}

const LAYERS: &str = r#"
error_pages = { 404 = "top404", "5xx" = "top5xx" }
response_headers = { set = { A = "top" } }
[limits]
body = "1MiB"
[[site]]
hosts = "a"
error_pages = { "4xx" = "site4xx" }
response_headers = { remove = ["A"] }
limits = { body = "unlimited" }
timeouts = { write = "1s" }
[[site.route]]
path = "/"
respond = 200
[[site.route]]
respond = 200
limits = { body = "2MiB" }
timeouts = { write = "2s", body = "3s" }
"#;

#[test]
fn inner_level_overrides_outer_levels() {
    let config = parse(LAYERS);
    let body_and_write =
        |settings: RouteSettings| (settings.body_bytes_max, settings.write_timeout.as_secs());
    assert_eq!(body_and_write(config.settings(None, None)), (Some(MIB), 30));
    assert_eq!(body_and_write(config.settings(Some(0), None)), (None, 1));
    assert_eq!(body_and_write(config.settings(Some(0), Some(0))), (None, 1));
    assert_eq!(body_and_write(config.settings(Some(0), Some(1))), (Some(2 * MIB), 2));
    assert_eq!(body_and_write(config.settings(Some(9), Some(9))), (Some(MIB), 30));
    let headers = config.settings(Some(0), Some(1)).response_headers;
    assert_eq!(headers, [&config.response_headers, &config.sites[0].response_headers]);
}

#[test]
fn error_page_is_chosen_by_status_class_and_level() {
    let config = parse(LAYERS);
    let page = |site, status| config.error_page(site, status).map(|path| path.to_str().unwrap().to_owned());
    assert_eq!(page(None, 404).as_deref(), Some("/srv/top404"));
    assert_eq!(page(Some(0), 404).as_deref(), Some("/srv/site4xx"));
    assert_eq!(page(Some(0), 502).as_deref(), Some("/srv/top5xx"));
    assert_eq!(page(None, 403), None);
}

#[test]
fn all_proxy_directives_are_parsed() {
    let short = parse("[[route]]\nproxy = \"http://a\"\n");
    let long = parse(
        "[[route]]\nproxy = { to = [{ url = \"http://a:80/\", weight = 1 }], retry = {}, eject = {} }\n",
    );
    assert_eq!(short, long);
    let config = parse(
        r##"
[[route]]
path = "/api/*"
[route.proxy]
to = [{ url = "https://a", weight = 2, tls = { ca = "a.pem" } }, "unix:run/b.sock"]
balance = "sticky"
keep_alive = false
retry = false
eject = false
health = "/up"
strip_prefix = true
forwarded = { via = false }
"##,
    );
    let route = &config.sites[0].routes[0];
    let Action::Proxy(proxy) = &route.action else { panic!("{:?}", route.action) };
    assert_eq!(proxy.to[0].tls.as_ref().and_then(|tls| tls.ca.clone()), Some(PathBuf::from("/srv/a.pem")));
    assert_eq!((proxy.to[0].weight, &proxy.to[1].url), (2, &Origin::Unix("/srv/run/b.sock".into())));
    assert_eq!(proxy.balance, Balance::Sticky { cookie: "komainu".into() });
    assert_eq!((proxy.keep_alive.idle_max, proxy.retry.attempts_max), (0, 1));
    assert_eq!((&proxy.eject, &proxy.forwarded.via), (&None, &None));
    assert_eq!(proxy.health.as_ref().and_then(|health| health.path.as_deref()), Some("/up"));
    assert_eq!(proxy.health.as_ref().map(|health| health.expect), Some((200, 399)));
}

#[test]
fn trusted_sources_are_parsed() {
    let config = parse(
        "listen = [\":80\", { address = \":81\", proxy_protocol = true }, { address = \":82\", proxy_protocol = [\"::1\"] }]\n\
         trusted_proxies = [\"10.0.0.0/8\", \"unix\"]\n",
    );
    let shown = |from: &[TrustedSource]| -> Vec<String> {
        let shown = |source: &TrustedSource| match source {
            TrustedSource::Unix => "unix".to_owned(),
            TrustedSource::Network(network) => network.to_string(),
        };
        from.iter().map(shown).collect()
    };
    assert_eq!(shown(&config.trusted_proxies.from), ["10.0.0.0/8", "unix"]);
    assert_eq!(config.trusted_proxies.fields, Dialect::XForwarded);
    let listeners = config.listen.iter().map(|listener| listener.proxy_protocol.as_deref().map(shown));
    let all = Some(vec!["10.0.0.0/8".to_owned(), "unix".to_owned()]);
    assert_eq!(listeners.collect::<Vec<_>>(), [None, all, Some(vec!["::1/128".to_owned()])]);
    let long = parse("trusted_proxies = { from = [\"10.0.0.0/8\"], fields = \"forwarded\" }\n");
    assert_eq!(long.trusted_proxies.fields, Dialect::Standard);
    parse("listen = { address = \"unix:a\", proxy_protocol = true }\n");
}

#[test]
fn files_are_tried_before_the_proxy_of_the_route() {
    let config = parse(
        r#"
        [[route]]
        proxy = "http://a"
        files = "public"
        "#,
    );
    let route = &config.sites[0].routes[0];
    assert!(matches!((&route.action, &route.otherwise), (Action::Files(_), Some(Action::Proxy(_)))));
}

#[test]
fn upstream_group_is_shared_by_routes() {
    let config = parse(
        r#"
[[route]]
path = "/reports/*"
proxy = { upstream = "shop", strip_prefix = true, timeouts = { head = "10m" } }
[[route]]
proxy = { upstream = "shop" }
[upstreams.shop]
to = ["http://a", "http://b"]
balance = "least-requests"
timeouts = { connect = "1s" }
"#,
    );
    let proxy = |route: usize| match &config.sites[0].routes[route].action {
        Action::Proxy(proxy) => proxy.clone(),
        other => panic!("{other:?}"),
    };
    let (name, shop) = &config.upstreams[0];
    assert_eq!((name.as_str(), shop.to.len(), &shop.upstream), ("shop", 2, &None));
    let plain = proxy(1);
    assert_eq!(plain.upstream.as_deref(), Some("shop"));
    assert_eq!(ProxyOptions { upstream: None, ..*plain }, **shop);
    // What the route says takes the place of the group's, as a whole.
    let reports = proxy(0);
    assert_eq!((&reports.to, &reports.balance), (&shop.to, &Balance::LeastRequests));
    assert_eq!(reports.timeouts.head, Millis(600_000));
    assert_eq!(reports.timeouts.connect, Millis(5_000));
}
