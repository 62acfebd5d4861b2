use crate::server::Config;
use std::path::Path;

fn parse(text: &str) -> Result<(Config, String), String> {
    Config::parse(text, "komainu.toml", Path::new("/etc"))
        .map(|(config, report)| (config, report.to_string()))
        .map_err(|report| report.to_string())
}

const RESPOND: &str = "[[site.route]]\nrespond = 200\n";

fn site(head: &str) -> String {
    format!(
        r"
        [[site]]
        {head}
        {RESPOND}
        "
    )
}

fn addresses<'l>(listeners: impl Iterator<Item = &'l net::ConfiguredListener>) -> Vec<String> {
    listeners.map(|listener| listener.address.to_string()).collect()
}

#[test]
fn addresses_shared_by_sites_are_listened_on_once() {
    let text = format!(
        "listen = [\":80\", \":8080\"]\n{}{}{}",
        site("hosts = \"a\"\nlisten = [\":80\", \"127.0.0.1:81\"]"),
        site("hosts = \"b\"\nlisten = [{ address = \"127.0.0.1:81\", h2c = true }, \"unix:/run/b.sock\"]"),
        site("hosts = \"c\""),
    );
    let (config, said) = parse(&text).unwrap();
    assert_eq!(said, "");
    assert_eq!(addresses(config.listeners()), [":80", ":8080", "127.0.0.1:81", "unix:/run/b.sock"]);
    assert!(config.site_listeners[0].h2c, "settings count wherever they are given");
    let of = |index: usize| addresses(config.site_listeners(&config.sites[index]));
    assert_eq!(of(0), [":80", "127.0.0.1:81"]);
    assert_eq!(of(1), ["127.0.0.1:81", "unix:/run/b.sock"]);
    assert_eq!(of(2), [":80", ":8080"]);
    let key = |text: &str| config.listener_key(&text.parse().unwrap());
    assert_eq!((key(":80") & 1, key("127.0.0.1:81") & 1), (0, 1));
    assert_ne!(key(":80"), key(":8080"));
}

#[test]
fn default_address_is_used_only_for_sites_without_listen() {
    let own = site("listen = \"127.0.0.1:9000\"");
    assert_eq!(addresses(parse(&own).unwrap().0.listeners()), ["127.0.0.1:9000"]);
    let with_route = format!(
        r"
        [[route]]
        respond = 200
        {own}
        "
    );
    let all = addresses(parse(&with_route).unwrap().0.listeners());
    assert_eq!(all, ["127.0.0.1:8080", "127.0.0.1:9000"]);
}

#[test]
fn host_may_have_one_site_per_address() {
    let both = |one: &str, other: &str| {
        parse(&format!("listen = [\":80\", \":81\"]\n{}{}", site(one), site(other))).map(|_| ())
    };
    let host = "hosts = \"a\"\n";
    let at = |listen: &str| format!("{host}listen = {listen}");
    both(&at("\":80\""), &at("\":81\"")).unwrap();
    both(&at("\":82\""), &at("\":83\"")).unwrap();
    both(host, &at("\":82\"")).unwrap();
    both("", "listen = \":82\"").unwrap();
    both("listen = \":80\"", "listen = \":81\"").unwrap();
    for (one, other, part) in [
        (host.to_owned(), host.to_owned(), "duplicate host `a`\n"),
        (host.to_owned(), at("\":81\""), "duplicate host `a` at `:81`"),
        (at("\":81\""), host.to_owned(), "duplicate host `a` at `:81`"),
        (at("[\":82\", \":83\"]"), at("\":83\""), "duplicate host `a` at `:83`"),
        (String::new(), "listen = \":80\"".to_owned(), "duplicate default site at `:80`"),
        ("listen = \":82\"".to_owned(), "listen = \":82\"".to_owned(), "duplicate default site at `:82`"),
    ] {
        let error = both(&one, &other).unwrap_err();
        assert!(error.contains(part), "{one} / {other}: {error}");
    }
}

#[test]
fn top_level_routes_are_the_default_site_of_top_addresses() {
    let with = |listen: &str| {
        parse(&format!(
            r#"
            listen = ":80"
            [[route]]
            respond = 200
            {}
            "#,
            site(listen)
        ))
    };
    with("listen = \":81\"").unwrap();
    assert!(with("listen = [\":81\", \":80\"]").unwrap_err().contains("two default sites"));
    assert!(with("").unwrap_err().contains("two default sites"));
}

#[test]
fn invalid_listen_settings_have_a_remedy() {
    for (top, sites, part) in [
        ("\":80\"", site("listen = \"127.0.0.1:80\""), "beside `:80` of the server"),
        ("\":80\"", site("listen = { address = \":80\", tls = true }"), "in `listen` at the top"),
        ("\":80\"", site("listen = [\":81\", \":81\"]"), "has `:81` twice"),
        (
            "\":80\"",
            site("hosts = \"a\"\nlisten = \":81\"") + &site("hosts = \"b\"\nlisten = \"127.0.0.1:81\""),
            "write the same address in both sites",
        ),
        (
            "\":80\"",
            site("hosts = \"a\"\nlisten = { address = \":81\", h2c = true }")
                + &site("hosts = \"b\"\nlisten = { address = \":81\", tls = true }"),
            "has other settings at another site",
        ),
        (
            "\":80\"",
            site("listen = { address = \":81\", proxy_protocol = true }"),
            "without `trusted_proxies`",
        ),
        ("\":80\"", site("listen = \":443\""), "`:443` speaks TLS, and no site has `tls`"),
        ("\":80\"", site("listen = 8080"), "write \":8080\""),
    ] {
        let error = parse(&format!("listen = {top}\n{sites}")).unwrap_err();
        assert!(error.contains(part), "{sites}: {error}");
    }
    let error = parse(&format!(
        r"
        [[route]]
        respond = 200
        {}
        ",
        site("listen = \":8080\"")
    ))
    .unwrap_err();
    assert!(error.contains("is the default of `listen`"), "{error}");
    let tls = "tls = { certificate = \"c\", key = \"k\" }\n";
    let text = format!(
        "listen = [\":80\"]\n{}{}",
        site(&format!("hosts = \"a\"\nlisten = \":443\"\n{tls}")),
        site("hosts = \"b\"\nlisten = { address = \":8443\", tls = true }")
    );
    let error = parse(&text).unwrap_err();
    assert!(error.contains("`:8443` speaks TLS, and no site that answers there has `tls`"), "{error}");
}

#[test]
fn unused_addresses_and_certificates_are_warned_about() {
    let said = |text: &str| parse(text).unwrap().1;
    let text = format!("listen = [\":80\", \":81\"]\n{}", site("listen = \":80\""));
    assert!(said(&text).contains("no site answers at `:81`"), "{}", said(&text));
    let tls = "tls = { certificate = \"c\", key = \"k\" }\n";
    let text = format!(
        "listen = [\":80\", \":443\"]\n{}{}",
        site(&format!("hosts = \"a\"\n{tls}")),
        site(&format!("hosts = \"b\"\nlisten = \":80\"\n{tls}"))
    );
    assert!(said(&text).contains("add \":443\" to `listen` of the site"), "{}", said(&text));
}

#[test]
fn certificates_are_obtained_where_the_site_speaks_tls() {
    let text = format!(
        "listen = \":80\"\n{}{}",
        site("hosts = \"a.example\"\nlisten = [\":443\"]"),
        site("hosts = \"b.example\"")
    );
    let (config, _) = parse(&text).unwrap();
    assert_eq!(config.sites.iter().map(|site| site.tls.is_some()).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn streams_share_addresses_of_sites() {
    let tls = "tls = { certificate = \"c\", key = \"k\" }\n";
    let with = |stream: &str| {
        let own = site(&format!("hosts = \"a\"\nlisten = \":443\"\n{tls}"));
        parse(&format!(
            r#"
            listen = ":80"
            {own}
            [[stream]]
            to = "10.0.0.1:443"
            {stream}
            "#
        ))
    };
    with("listen = \":443\"\nnames = \"b\"").unwrap();
    assert!(with("listen = \":443\"").unwrap_err().contains("without `names`"));
    assert!(with("listen = \"127.0.0.1:443\"\nnames = \"b\"").unwrap_err().contains("beside `:443`"));
}
