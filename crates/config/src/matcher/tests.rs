use super::*;
use crate::server::Config;
use std::path::Path;

fn read(text: &str) -> Config {
    Config::parse(text, "test", Path::new("")).unwrap().0
}

fn get<'a>(host: &'a str, path: &'a str) -> RouteRequest<'a> {
    RouteRequest {
        host: host.as_bytes(),
        listener_key: 0,
        method: b"GET",
        path: path.as_bytes(),
        query: b"",
        client: None,
        country: None,
    }
}

fn no_fields(_: &str) -> Option<&'static [u8]> {
    None
}

const HOSTS: &str = r#"
[[site]]
hosts = ["example.com", "[::1]"]
[[site]]
hosts = ["*.example.com", "*.com"]
[[site]]
hosts = "*.deep.example.com"
[[site]]
"#;

#[test]
fn site_is_selected_by_host() {
    let routes = Routes::compile(&read(HOSTS));
    for (host, site) in [
        ("example.com", 0),
        ("EXAMPLE.com:8080", 0),
        ("example.com.", 0),
        ("example.com.:80", 0),
        ("[::1]:80", 0),
        ("[::1]", 0),
        ("a.example.com", 1),
        ("a.b.example.com", 1),
        ("other.com", 1),
        ("x.deep.example.com", 2),
        ("deep.example.com", 1),
        ("com", 3),
        ("", 3),
        (".com", 3),
        ("[::2]", 3),
        ("[", 3),
        (":80", 3),
    ] {
        assert_eq!(routes.site(host.as_bytes(), 0), Some(site), "{host}");
    }
    let long = "a.".repeat(200) + "example.com";
    assert_eq!(routes.site(long.as_bytes(), 0), Some(3), "too long for a host");
}

#[test]
fn unknown_host_matches_no_site() {
    let routes = Routes::compile(&read(
        r#"
        [[site]]
        hosts = "a"
        [[site.route]]
        respond = 200
        "#,
    ));
    assert_eq!(routes.site(b"b", 0), None);
    assert_eq!(routes.find(&get("b", "/"), no_fields), None);
    assert_eq!(routes.explain_match(&get("b", "/"), no_fields).site_match, SiteMatch::None);
    assert_eq!(Routes::compile(&Config::default()).find(&get("a", "/"), no_fields), None);
}

#[test]
fn routes_at_the_top_are_the_default_site() {
    let text = r#"
        [[route]]
        respond = 200
        [[site]]
        hosts = "a"
        [[site.route]]
        respond = 201
    "#;
    let config = read(text);
    let routes = Routes::compile(&config);
    let sites = &config.sites;
    assert!(sites[routes.site(b"other", 0).unwrap()].hosts.is_empty());
    assert!(!sites[routes.site(b"a", 0).unwrap()].hosts.is_empty());
}

const ROUTES: &str = r#"
[[route]]
path = "/m"
method = ["GET", "PUT"]
respond = "method"

[[route]]
path = "/q"
query = { "a b" = "x*", flag = true }
respond = "query"

[[route]]
path = "/h"
header = { X-Beta = "yes", Accept = "*json*" }
respond = "header"

[[route]]
path = ["/one", "/two/*"]
respond = "either"

[[route]]
path = "/rest/*"
respond = "rest"
"#;

fn found(request: &RouteRequest, fields: &[(&str, &'static str)]) -> Option<usize> {
    let routes = Routes::compile(&read(ROUTES));
    let header =
        |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_bytes());
    routes.find(request, header).map(|id| id.route)
}

#[test]
fn routes_match_by_method() {
    for (method, route) in
        [("GET", Some(0)), ("HEAD", Some(0)), ("PUT", Some(0)), ("POST", None), ("get", None)]
    {
        assert_eq!(
            found(&RouteRequest { method: method.as_bytes(), ..get("", "/m") }, &[]),
            route,
            "{method}"
        );
    }
}

#[test]
fn routes_match_by_query() {
    for (query, route) in [
        ("a+b=xyz&flag", Some(1)),
        ("flag=1&a%20b=x", Some(1)),
        ("a%20b=y&a%20b=x&flag=", Some(1)),
        ("&&flag&a b=%78", Some(1)),
        ("a+b=y&flag", None),
        ("a+b=x", None),
        ("flag", None),
        ("a%2=x&flag", None),
        ("", None),
    ] {
        assert_eq!(found(&RouteRequest { query: query.as_bytes(), ..get("", "/q") }, &[]), route, "{query}");
    }
}

#[test]
fn routes_match_by_header_fields() {
    let request = get("", "/h");
    assert_eq!(found(&request, &[("x-beta", "yes"), ("accept", "application/json, */*")]), Some(2));
    assert_eq!(found(&request, &[("x-beta", "no"), ("accept", "application/json")]), None);
    assert_eq!(found(&request, &[("x-beta", "yes")]), None);
}

#[test]
fn routes_match_by_path() {
    assert_eq!(found(&get("", "/one"), &[]), Some(3));
    assert_eq!(found(&get("", "/two/x"), &[]), Some(3));
    assert_eq!(found(&get("", "/three"), &[]), None);
    let bytes = RouteRequest { path: b"/rest/\xff\0", ..get("", "") };
    assert_eq!(found(&bytes, &[]), Some(4), "a decoded path need not be UTF-8");
}

#[test]
fn explanation_describes_every_route() {
    let config = read(ROUTES);
    let routes = Routes::compile(&config);
    let sites = &config.sites;
    let explanation = routes.explain_match(&RouteRequest { query: b"flag", ..get("", "/q") }, no_fields);
    assert_eq!(explanation.site, Some(0));
    assert_eq!(
        explanation.route_matches,
        [RouteMatch::Path, RouteMatch::Query(0), RouteMatch::Path, RouteMatch::Path, RouteMatch::Path]
    );
    let text = explanation.text(sites);
    assert!(text.starts_with("default site: no other site has this host\n"), "{text}");
    assert!(text.contains("line 7: /q: the query parameter `a b` is not `x*`\n"), "{text}");
    assert!(text.ends_with("no route matches: 404\n"), "{text}");

    let explanation = routes.explain_match(&RouteRequest { method: b"POST", ..get("", "/m") }, no_fields);
    assert_eq!(explanation.route_matches[0], RouteMatch::Method);
    let explanation = routes.explain_match(&get("", "/one"), no_fields);
    assert_eq!(
        explanation.route_matches[2..],
        [RouteMatch::Path, RouteMatch::Matched, RouteMatch::NotReached]
    );
    assert!(explanation.text(sites).contains("> line 17: /one, /two/*: matches: respond\n"));
}

#[test]
fn explanation_agrees_with_the_match() {
    let routes = Routes::compile(&read(ROUTES));
    for path in ["/m", "/q", "/h", "/one", "/two/", "/rest/a", "/", "*"] {
        let request = get("any", path);
        let matched = routes
            .explain_match(&request, no_fields)
            .route_matches
            .iter()
            .position(|step| *step == RouteMatch::Matched);
        assert_eq!(matched, routes.find(&request, no_fields).map(|id| id.route), "{path}");
    }
}

#[test]
fn site_with_addresses_answers_only_there() {
    let text = r#"
        listen = ["127.0.0.1:80", "127.0.0.2:80"]
        [[route]]
        respond = "top"
        [[site]]
        hosts = ["a", "b"]
        listen = ["127.0.0.1:80", ":81"]
        [[site]]
        hosts = ["*.wild"]
        [[site]]
        hosts = "b"
        listen = "127.0.0.2:80"
        [[site]]
        listen = [":81"]
    "#;
    let config = read(text);
    let routes = Routes::compile(&config);
    let top = config.sites.iter().position(|site| site.line.is_none()).unwrap();
    let of = |index: usize| if index < top { index } else { index + 1 };
    let key = |address: &str| config.listener_key(&address.parse().unwrap());
    for (host, address, site) in [
        ("a", "127.0.0.1:80", Some(of(0))),
        ("a", "127.0.0.2:80", Some(top)),
        ("a", ":81", Some(of(0))),
        ("b", "127.0.0.1:80", Some(of(0))),
        ("b", "127.0.0.2:80", Some(of(2))),
        ("b", ":81", Some(of(0))),
        ("x.wild", "127.0.0.1:80", Some(of(1))),
        ("x.wild", "127.0.0.2:80", Some(of(1))),
        ("x.wild", ":81", Some(of(3))),
        ("other", "127.0.0.1:80", Some(top)),
        ("other", ":81", Some(of(3))),
    ] {
        assert_eq!(routes.site(host.as_bytes(), key(address)), site, "{host} at {address}");
    }
    // A connection from before the last reload, of an address at the top of the file and of one of sites.
    assert_eq!(routes.site(b"a", 2), Some(top));
    assert_eq!(routes.site(b"a", 3), None);
    assert_eq!(Routes::compile(&Config::default()).site(b"a", 3), None);
    assert_eq!(routes.sites_for_host(b"b"), {
        let mut all = vec![of(0), of(2), top];
        all.sort_unstable();
        all
    });
}

#[test]
fn not_conditions_exclude_requests() {
    let text = r#"
[[route]]
not     = { method = ["GET", "POST"] }
respond = 405
[[route]]
path    = "/office/*"
not     = [{ client = "192.0.2.0/24" }, { header = { X-Key = "k" }, query = { key = true } }]
respond = 403
[[route]]
not     = { path = ["/office/*", "~ [.]txt$"], country = "DE" }
respond = 201
[[route]]
respond = 200
"#;
    let config = read(&format!(
        r#"
        [geo]
        database = "c.mmdb"
        {text}
        "#
    ));
    let routes = Routes::compile(&config);
    assert!(routes.uses_country());
    let key = |name: &str| (name == "x-key").then_some(&b"k"[..]);
    let route = |request: &RouteRequest<'_>, has_key: bool| {
        if has_key {
            routes.find(request, key).unwrap().route
        } else {
            routes.find(request, no_fields).unwrap().route
        }
    };
    let inside = Some("192.0.2.7".parse().unwrap());
    let outside = Some("198.51.100.7".parse().unwrap());
    for (method, path, query, client, country, has_key, expected) in [
        ("DELETE", "/", "", inside, None, false, 0),
        ("HEAD", "/", "", inside, None, false, 2),
        ("POST", "/office/a", "", outside, None, false, 1),
        ("POST", "/office/a", "", None, None, false, 1),
        ("POST", "/office/a", "", inside, None, false, 2),
        ("GET", "/office/a", "key=1", outside, None, false, 1),
        ("GET", "/office/a", "", outside, None, true, 1),
        ("GET", "/office/a", "key=1", outside, None, true, 2),
        ("GET", "/office/a", "key=1", outside, Some(*b"DE"), true, 3),
        ("GET", "/b.txt", "", outside, Some(*b"DE"), false, 3),
        ("GET", "/b", "", outside, Some(*b"DE"), false, 2),
        ("GET", "/b.txt", "", outside, Some(*b"FR"), false, 2),
    ] {
        let request = RouteRequest {
            method: method.as_bytes(),
            query: query.as_bytes(),
            client,
            country,
            ..get("a", path)
        };
        assert_eq!(route(&request, has_key), expected, "{method} {path}?{query} {client:?} {country:?}");
    }
    let explained =
        routes.explain_match(&RouteRequest { client: inside, ..get("a", "/office/a") }, no_fields);
    let text = explained.text(&config.sites);
    assert!(text.contains("its `not` excludes the request"), "{text}");
    assert!(text.contains("table 1 of its `not` excludes the request"), "{text}");
}

#[test]
fn route_may_match_some_hosts_of_its_site() {
    let text = r#"
        [[site]]
        hosts = ["a.example", "*.a.example"]
        [[site.route]]
        host = "*.a.example"
        respond = 201
        [[site.route]]
        respond = 200
    "#;
    let config = read(text);
    let routes = Routes::compile(&config);
    for (host, expected) in [("a.example", 1), ("WWW.a.example:8080", 0), ("x.y.a.example.", 0)] {
        assert_eq!(routes.find(&get(host, "/"), no_fields).unwrap().route, expected, "{host}");
    }
    let explained = routes.explain_match(&get("a.example", "/"), no_fields).text(&config.sites);
    assert!(explained.contains("it is for other hosts"), "{explained}");
}

#[test]
fn excluded_requests_may_have_exceptions() {
    let text = r#"
[[route]]
path = '~ \.txt$'
not = { not = "/public/*" }
respond = 200

[[route]]
method = "POST"
not = { path = "/a/*", not = [{ method = "POST", path = "/a/open" }, { header = { X-Key = "k" } }] }
respond = 201

[[route]]
respond = 202
"#;
    let routes = Routes::compile(&read(text));
    let key = |name: &str| (name == "x-key").then_some(&b"k"[..]);
    for (method, path, has_key, expected) in [
        ("GET", "/public/a.txt", false, 0),
        ("GET", "/private/a.txt", false, 2),
        ("POST", "/a/x", false, 2),
        ("POST", "/a/open", false, 1),
        ("POST", "/a/x", true, 1),
        ("POST", "/b", false, 1),
    ] {
        let request = RouteRequest { method: method.as_bytes(), ..get("a", path) };
        let found = if has_key { routes.find(&request, key) } else { routes.find(&request, no_fields) };
        assert_eq!(found.unwrap().route, expected, "{method} {path} {has_key}");
    }
}

#[test]
fn conditions_without_effect_are_reported() {
    for (text, expected) in [
        (
            r"
            [[route]]
            not = {}
            respond = 200
            ",
            "a `not` without conditions",
        ),
        (
            r"
            [[route]]
            not = { header = {} }
            respond = 200
            ",
            "a `not` without conditions",
        ),
        (
            r#"
            [[route]]
            method = "!POST"
            respond = 200
            "#,
            "write `not = { method = \"POST\" }`",
        ),
        (
            r#"
            [[route]]
            client = "!10.0.0.0/8"
            respond = 200
            "#,
            "write `not = { client = ",
        ),
    ] {
        let report = Config::parse(text, "test", Path::new("")).unwrap_err().render(false);
        assert!(report.contains(expected), "{report}");
    }
    let text = r#"
        [[site]]
        hosts = "a.example"
        [[site.route]]
        host = "b.example"
        respond = 200
    "#;
    let (_, report) = Config::parse(text, "test", Path::new("")).unwrap();
    assert!(report.render(false).contains("the site has no such host"), "{report}");
}

#[test]
fn exclusions_of_a_snippet_add_to_those_of_the_route() {
    let text = r#"
        [snippet.closed]
        not = { path = "/x" }
        [[route]]
        use = "closed"
        not = { method = "POST" }
        respond = 200
        [[route]]
        respond = 403
    "#;
    let routes = Routes::compile(&read(text));
    let post = RouteRequest { method: b"POST", ..get("a", "/y") };
    for (request, expected) in [(get("a", "/x"), 1), (post, 1), (get("a", "/y"), 0)] {
        assert_eq!(routes.find(&request, no_fields).unwrap().route, expected, "{request:?}");
    }
}
