//! Each default, written out, is the default: for every table there is.

use crate::record::{DirectiveTable, chapters, table};
use crate::shape::Shape;
use crate::{
    Acme, AcmeDirectory, AcmeDns, App, AppLimits, AppSandbox, AppTimeouts, AppWebSockets, Auth,
    BandwidthLimit, Branch, CacheDisk, CacheKey, CachePolicy, CachePurge, CacheRule, CacheStore, ClientTls,
    Compress, CompressResponses, Conditions, Config, Control, Crawlers, DictionaryStore, Eject,
    ExternalAccountBinding, Files, Forwarded, Health, InjectedFault, KeepAlive, Limits, Listener, Log,
    LogCondition, Maintenance, Mirror, Mounted, OpenFiles, Proxy, ProxyHeaders, ProxyLimits, ProxyTimeouts,
    ProxyTls, RateLimit, Recycle, Redirect, RequestQueue, Respond, ResponseHeaders, Retry, Route,
    RouteLimits, RouteTimeouts, Site, SiteTls, Split, Timeouts, Tls, Tracing, TrustedProxies, Upstream,
    UseAsDictionary, Workers,
};
use crate::{CollectedMetrics, Cors, JwtAuth, OtlpLogs, SharedLimits, SignedAuth};
use crate::{check::Checker, node::Node};
use std::path::Path;

/// The record with all its defaults written out, which must be the record without.
fn written_out<R: DirectiveTable + PartialEq + std::fmt::Debug>() -> &'static str {
    let articles = R::DIRECTIVES.iter().filter(|article| !matches!(article.default, "absent" | "required"));
    let text: String = articles.map(|article| format!("{} = {}\n", article.name, article.default)).collect();
    let mut check = Checker::new(&text, R::NAME, Path::new(""));
    let mut record = R::default();
    let document = Node::document(&text).unwrap();
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
fn written_out_defaults_change_nothing() {
    let known = [
        written_out::<Config>(),
        written_out::<Listener>(),
        written_out::<TrustedProxies>(),
        written_out::<Limits>(),
        written_out::<Timeouts>(),
        written_out::<Log>(),
        written_out::<LogCondition>(),
        written_out::<crate::RequestLog>(),
        written_out::<crate::Syslog>(),
        written_out::<crate::Journal>(),
        written_out::<OpenFiles>(),
        written_out::<CacheStore>(),
        written_out::<CacheDisk>(),
        written_out::<CachePolicy>(),
        written_out::<CachePurge>(),
        written_out::<CacheRule>(),
        written_out::<CacheKey>(),
        written_out::<DictionaryStore>(),
        written_out::<UseAsDictionary>(),
        written_out::<ResponseHeaders>(),
        written_out::<Site>(),
        written_out::<Route>(),
        written_out::<RateLimit>(),
        written_out::<BandwidthLimit>(),
        written_out::<RequestQueue>(),
        written_out::<SharedLimits>(),
        written_out::<Auth>(),
        written_out::<JwtAuth>(),
        written_out::<SignedAuth>(),
        written_out::<Cors>(),
        written_out::<RouteLimits>(),
        written_out::<RouteTimeouts>(),
        written_out::<Files>(),
        written_out::<Compress>(),
        written_out::<CompressResponses>(),
        written_out::<Proxy>(),
        written_out::<crate::scripts::Scripts>(),
        written_out::<Upstream>(),
        written_out::<KeepAlive>(),
        written_out::<ProxyTimeouts>(),
        written_out::<Retry>(),
        written_out::<Eject>(),
        written_out::<Health>(),
        written_out::<ProxyTls>(),
        written_out::<Forwarded>(),
        written_out::<ProxyHeaders>(),
        written_out::<ProxyLimits>(),
        written_out::<App>(),
        written_out::<AppTimeouts>(),
        written_out::<AppWebSockets>(),
        written_out::<AppLimits>(),
        written_out::<AppSandbox>(),
        written_out::<Recycle>(),
        written_out::<Workers>(),
        written_out::<Mounted>(),
        written_out::<Control>(),
        written_out::<crate::ControlToken>(),
        written_out::<crate::ControlClient>(),
        written_out::<Tracing>(),
        written_out::<CollectedMetrics>(),
        written_out::<OtlpLogs>(),
        written_out::<Acme>(),
        written_out::<AcmeDirectory>(),
        written_out::<AcmeDns>(),
        written_out::<ExternalAccountBinding>(),
        written_out::<Tls>(),
        written_out::<SiteTls>(),
        written_out::<ClientTls>(),
        written_out::<Redirect>(),
        written_out::<Respond>(),
        written_out::<Split>(),
        written_out::<Maintenance>(),
        written_out::<Crawlers>(),
        written_out::<Branch>(),
        written_out::<Conditions>(),
        written_out::<crate::ConditionSet>(),
        written_out::<crate::Geo>(),
        written_out::<crate::BodyEdit>(),
        written_out::<Mirror>(),
        written_out::<InjectedFault>(),
        written_out::<crate::VariableMap>(),
        written_out::<crate::Stream>(),
        written_out::<crate::StreamServer>(),
        written_out::<crate::StreamTimeouts>(),
        written_out::<crate::PhpApp>(),
        written_out::<crate::Cgi>(),
    ];
    for chapter in chapters::<Config>() {
        assert!(known.contains(&chapter.name), "{} is not looked at", chapter.name);
    }
}

#[test]
fn every_directive_is_documented_and_no_two_have_a_name() {
    for chapter in chapters::<Config>() {
        assert!(chapter.about.trim().ends_with(['.', '`']), "{}", chapter.name);
        for (index, article) in chapter.articles.iter().enumerate() {
            assert!(!article.doc.trim().is_empty(), "{}.{}", chapter.name, article.name);
            let earlier = &chapter.articles[..index];
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
fn the_largest_values_are_within_reach() {
    let read = |text: &str| {
        let mut check = Checker::new(text, "test", Path::new(""));
        let limits = table::<Limits>().read(&Node::document(text).unwrap(), &mut check);
        assert!(check.report.is_empty(), "{}", check.report);
        limits.unwrap()
    };
    assert_eq!(read("headers = 10000").headers_max, 10_000);
    assert_eq!(read("head = \"1MiB\"").head_bytes_max, 1 << 20);
    assert_eq!(read("body = \"unlimited\"").body_bytes_max, None);
    assert_eq!(read("body = \"1TiB\"").body_bytes_max, Some(1 << 40));
}
