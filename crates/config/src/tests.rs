//! Each default, written out, is the default: for every table there is.

use crate::{
    Branch, Conditions, Config, Control, InjectedFault, Limits, Mirror, OpenFiles, Redirect, Respond,
    ResponseHeaders, Route, RouteLimits, RouteTimeouts, Site, Split, Timeouts, TrustedProxies,
};
mod apps;

use ::apps::{AppLimits, AppSandbox, AppSettings, AppTimeouts, AppWebSockets, Mounted, Recycle, Workers};
use admission::auth::Auth;
use admission::cors::Cors;
use admission::crawlers::Crawlers;
use admission::limits::RateLimit;
use admission::maintenance::Maintenance;
use admission::queue::RequestQueue;
use admission::{JwtAuth, SignedAuth};
use cache::{CacheDisk, CacheKey, CachePolicy, CachePurge, CacheRule, CacheStore};
use certificates::directives::{Acme, AcmeDirectory, AcmeDns, ExternalAccountBinding};
use files::{Compress, FileOptions};
use logging::{Journal, Log, LogCondition, RequestLog, Syslog};
use net::tls::directives::{ClientTls, SiteTls, Tls};
use net::{BandwidthLimit, CompressResponses, ConfiguredListener, DictionaryStore, UseAsDictionary};
use otlp::tracing::Tracing;
use otlp::{CollectedMetrics, OtlpLogs};
use proxy::directives::{ProxyTls, Upstream};
use proxy::options::{
    Eject, Forwarded, HealthCheck, KeepAlive, ProxyHeaders, ProxyLimits, ProxyOptions, ProxyTimeouts, Retry,
};
use settings::checker::Checker;
use settings::directive_table::{DirectiveTable, all_chapters, table};
use settings::node::Node;
use settings::shape::Shape;
use sharing::SharedLimits;
use std::path::Path;

/// The record with all its defaults written out, which must be the record without.
fn explicit_defaults<R: DirectiveTable + PartialEq + std::fmt::Debug>() -> &'static str {
    let articles = R::DIRECTIVES.iter().filter(|article| !matches!(article.default, "absent" | "required"));
    let text: String = articles.map(|article| format!("{} = {}\n", article.name, article.default)).collect();
    let mut check = Checker::new(&text, R::NAME, Path::new(""));
    check.advice = &crate::unknown_keys::ADVICE;
    let mut record = R::default();
    let document = Node::parse_document(&text).unwrap();
    for article in R::DIRECTIVES {
        if let Some(entry) = document.entry(article.name) {
            (article.read)(&mut record, &entry.value, &mut check);
        }
    }
    assert!(check.report.is_empty(), "{}", check.report);
    assert_eq!(record, R::default());
    R::NAME
}

#[test]
fn explicit_defaults_change_nothing() {
    let known = [
        explicit_defaults::<Config>(),
        explicit_defaults::<ConfiguredListener>(),
        explicit_defaults::<TrustedProxies>(),
        explicit_defaults::<Limits>(),
        explicit_defaults::<Timeouts>(),
        explicit_defaults::<Log>(),
        explicit_defaults::<LogCondition>(),
        explicit_defaults::<RequestLog>(),
        explicit_defaults::<Syslog>(),
        explicit_defaults::<Journal>(),
        explicit_defaults::<OpenFiles>(),
        explicit_defaults::<CacheStore>(),
        explicit_defaults::<CacheDisk>(),
        explicit_defaults::<CachePolicy>(),
        explicit_defaults::<CachePurge>(),
        explicit_defaults::<CacheRule>(),
        explicit_defaults::<CacheKey>(),
        explicit_defaults::<DictionaryStore>(),
        explicit_defaults::<UseAsDictionary>(),
        explicit_defaults::<ResponseHeaders>(),
        explicit_defaults::<Site>(),
        explicit_defaults::<Route>(),
        explicit_defaults::<RateLimit>(),
        explicit_defaults::<BandwidthLimit>(),
        explicit_defaults::<RequestQueue>(),
        explicit_defaults::<SharedLimits>(),
        explicit_defaults::<Auth>(),
        explicit_defaults::<JwtAuth>(),
        explicit_defaults::<SignedAuth>(),
        explicit_defaults::<Cors>(),
        explicit_defaults::<RouteLimits>(),
        explicit_defaults::<RouteTimeouts>(),
        explicit_defaults::<FileOptions>(),
        explicit_defaults::<Compress>(),
        explicit_defaults::<CompressResponses>(),
        explicit_defaults::<ProxyOptions>(),
        explicit_defaults::<proxy::scripts::Scripts>(),
        explicit_defaults::<Upstream>(),
        explicit_defaults::<KeepAlive>(),
        explicit_defaults::<ProxyTimeouts>(),
        explicit_defaults::<Retry>(),
        explicit_defaults::<Eject>(),
        explicit_defaults::<HealthCheck>(),
        explicit_defaults::<ProxyTls>(),
        explicit_defaults::<Forwarded>(),
        explicit_defaults::<ProxyHeaders>(),
        explicit_defaults::<ProxyLimits>(),
        explicit_defaults::<AppSettings>(),
        explicit_defaults::<AppTimeouts>(),
        explicit_defaults::<AppWebSockets>(),
        explicit_defaults::<AppLimits>(),
        explicit_defaults::<AppSandbox>(),
        explicit_defaults::<Recycle>(),
        explicit_defaults::<Workers>(),
        explicit_defaults::<Mounted>(),
        explicit_defaults::<Control>(),
        explicit_defaults::<crate::ControlToken>(),
        explicit_defaults::<crate::ControlClient>(),
        explicit_defaults::<Tracing>(),
        explicit_defaults::<CollectedMetrics>(),
        explicit_defaults::<OtlpLogs>(),
        explicit_defaults::<Acme>(),
        explicit_defaults::<AcmeDirectory>(),
        explicit_defaults::<AcmeDns>(),
        explicit_defaults::<ExternalAccountBinding>(),
        explicit_defaults::<Tls>(),
        explicit_defaults::<SiteTls>(),
        explicit_defaults::<ClientTls>(),
        explicit_defaults::<Redirect>(),
        explicit_defaults::<Respond>(),
        explicit_defaults::<Split>(),
        explicit_defaults::<Maintenance>(),
        explicit_defaults::<Crawlers>(),
        explicit_defaults::<Branch>(),
        explicit_defaults::<Conditions>(),
        explicit_defaults::<crate::ConditionSet>(),
        explicit_defaults::<crate::Geo>(),
        explicit_defaults::<crate::BodyEdit>(),
        explicit_defaults::<Mirror>(),
        explicit_defaults::<crate::ErrorServer>(),
        explicit_defaults::<InjectedFault>(),
        explicit_defaults::<crate::VariableMap>(),
        explicit_defaults::<crate::Stream>(),
        explicit_defaults::<crate::StreamServer>(),
        explicit_defaults::<crate::StreamTimeouts>(),
        explicit_defaults::<::apps::PhpApp>(),
        explicit_defaults::<proxy::cgi_program::Cgi>(),
        explicit_defaults::<cluster::ClusterTable>(),
        explicit_defaults::<proxy::options::StickyCookie>(),
        explicit_defaults::<discovery::DiscoverTable>(),
    ];
    for chapter in all_chapters::<Config>() {
        assert!(known.contains(&chapter.name), "{} is not looked at", chapter.name);
    }
}

#[test]
fn every_directive_is_documented_and_unique() {
    for chapter in all_chapters::<Config>() {
        assert!(chapter.about.trim().ends_with(['.', '`']), "{}", chapter.name);
        for (index, article) in chapter.directives.iter().enumerate() {
            assert!(!article.doc.trim().is_empty(), "{}.{}", chapter.name, article.name);
            let earlier = &chapter.directives[..index];
            assert!(
                earlier.iter().all(|other| other.name != article.name),
                "{}.{}",
                chapter.name,
                article.name
            );
        }
    }
}

#[test]
fn largest_values_are_accepted() {
    let read = |text: &str| {
        let mut check = Checker::new(text, "test", Path::new(""));
        let limits = table::<Limits>().read(&Node::parse_document(text).unwrap(), &mut check);
        assert!(check.report.is_empty(), "{}", check.report);
        limits.unwrap()
    };
    assert_eq!(read("headers = 10000").headers_max, 10_000);
    assert_eq!(read("head = \"1MiB\"").head_bytes_max, 1 << 20);
    assert_eq!(read("body = \"unlimited\"").body_bytes_max, None);
    assert_eq!(read("body = \"1TiB\"").body_bytes_max, Some(1 << 40));
}
