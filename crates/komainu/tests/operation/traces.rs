//! Request spans sent to a collector.

use serde_json::Value;

use crate::origin::{Ask, Origin, answer};
use crate::rig::{Folder, Rig, eventually};

/// Spans that the collector received, checked against OTLP's JSON encoding: length of ids, times as strings,
/// one value for each attribute.
fn spans(asks: &[Ask]) -> Vec<Value> {
    let mut all = Vec::new();
    for ask in asks {
        assert_eq!(
            (ask.line(), ask.field("Content-Type")),
            ("POST /v1/traces HTTP/1.1", vec!["application/json"])
        );
        let document: Value = serde_json::from_slice(&ask.body).unwrap();
        let resource = &document["resourceSpans"][0];
        let service = &resource["resource"]["attributes"][0];
        assert_eq!(
            (&service["key"], &service["value"]["stringValue"]),
            (&"service.name".into(), &"shop".into())
        );
        all.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
    }
    for span in &all {
        let is_id = |key: &str, len: usize| {
            let id = span[key].as_str().unwrap();
            id.len() == len && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        assert!(is_id("traceId", 32) && is_id("spanId", 16), "{span}");
        let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
        for attribute in span["attributes"].as_array().unwrap() {
            assert_eq!(attribute["value"].as_object().unwrap().len(), 1, "{span}");
        }
    }
    all
}

fn attribute<'s>(span: &'s Value, name: &str) -> &'s Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == name);
    let value = &found.unwrap_or_else(|| panic!("no {name} in {span}"))["value"];
    value.as_object().unwrap().values().next().unwrap()
}

#[test]
fn sampled_and_slow_request_spans_reach_the_collector() {
    let collector = Origin::start(|_| answer("200 OK", "", "{}"));
    let origin = Origin::start(|ask| {
        if ask.line().contains("/slow") {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        answer("200 OK", "", "x")
    });
    let config = |collector: &str| {
        format!(
            r#"
            threads = 1

            [log]
            level = "info"

            [tracing]
            enabled = true
            from = "any"
            to = "{collector}"
            service = "shop"
            slower_than = "200ms"

            [[route]]
            path = "/up/*"
            proxy = "{}"
            "#,
            origin.url
        )
    };
    let rig = Rig::config(Folder::new(), &config(&collector.url));
    let ask = |target: &str, flags: &str| {
        let parent = format!("traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}\r\n");
        rig.ask(target, &parent).status()
    };
    assert_eq!(
        (ask("/up/none", "00"), ask("/up/a?token=secret", "01"), ask("/up/slow", "00")),
        (200, 200, 200)
    );
    assert_eq!(ask("/missing", "01"), 404);
    let seen = || spans(&collector.asks());
    let servers = |all: &[Value]| all.iter().filter(|span| span["kind"] == 2).cloned().collect::<Vec<_>>();
    eventually("three requests are reported", || servers(&seen()).len() >= 3);
    let all = seen();
    let servers = servers(&seen());
    let paths: Vec<&str> = servers.iter().map(|span| attribute(span, "url.path").as_str().unwrap()).collect();
    assert_eq!(
        paths,
        ["/up/a", "/up/slow", "/missing"],
        "neither the request that nobody records, nor a query"
    );
    assert!(!collector.asks().iter().any(|ask| String::from_utf8_lossy(&ask.body).contains("secret")));
    let first = &servers[0];
    assert_eq!(first["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((&first["parentSpanId"], &first["name"]), (&"b7ad6b7169203331".into(), &"GET /up/*".into()));
    assert_eq!(attribute(first, "http.response.status_code"), "200");
    assert_eq!(
        (attribute(first, "http.route"), attribute(first, "komainu.handler")),
        (&"/up/*".into(), &"proxy".into())
    );
    // The parent sent to the upstream server is the request's span; the upstream request is a child of it.
    let sent = origin.asks().iter().find(|ask| ask.line().contains("/up/a")).unwrap().field("traceparent")[0]
        .to_owned();
    assert_eq!(sent.split('-').nth(2).unwrap(), first["spanId"].as_str().unwrap());
    let below = all.iter().find(|span| span["kind"] == 3 && span["parentSpanId"] == first["spanId"]).unwrap();
    assert_eq!(attribute(below, "komainu.upstream"), &Value::from(origin.url.as_str()));
    let port = origin.url.rsplit(':').next().unwrap();
    assert_eq!(
        (attribute(below, "server.address"), attribute(below, "server.port")),
        (&"127.0.0.1".into(), &port.into())
    );
    // The collector is unreachable: this is logged once, and requests are answered.
    let text = config("http://127.0.0.1:9");
    rig.folder.write(
        "komainu.toml",
        format!("{}{}{text}", crate::rig::listen(&rig.folder), crate::rig::as_we_are()),
    );
    rig.signal("-HUP");
    eventually("the new configuration is used", || {
        rig.reported().contains("the configuration was read again")
    });
    let away = || rig.reported().matches("traces: http://127.0.0.1:9/v1/traces: cannot connect").count();
    eventually("it is said that the collector is away", || {
        assert_eq!(ask("/up/a", "01"), 200);
        away() > 0
    });
    assert_eq!(away(), 1);
}

#[test]
fn each_attempt_and_the_cache_have_spans() {
    let collector = Origin::start(|_| answer("200 OK", "", "{}"));
    let origin = Origin::start(|_| answer("200 OK", "Cache-Control: max-age=60\r\n", "x"));
    let nobody = crate::rig::nobody();
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1

            [tracing]
            enabled = true
            sample = "100%"
            to = "{}"
            service = "shop"

            [cache]
            memory = "8MiB"

            [[route]]
            path = "/cached"
            proxy = "{}"
            cache = true

            [[route]]
            proxy = {{ to = ["http://{nobody}", "{}"] }}
            "#,
            collector.url, origin.url, origin.url
        ),
    );
    // One of the two requests first tries the unreachable server.
    rig.get("/tried").expect(200, "x");
    rig.get("/tried").expect(200, "x");
    rig.get("/cached").expect(200, "x");
    rig.get("/cached").expect(200, "x");
    let below = |path: &str| {
        let all = spans(&collector.asks());
        let servers: Vec<Value> = all
            .iter()
            .filter(|span| span["kind"] == 2 && attribute(span, "url.path") == path)
            .cloned()
            .collect();
        let of = |server: &Value| {
            all.iter().filter(|span| span["parentSpanId"] == server["spanId"]).cloned().collect::<Vec<_>>()
        };
        servers.iter().map(of).collect::<Vec<_>>()
    };
    eventually("both are reported", || below("/tried").len() == 2 && below("/cached").len() == 2);
    let of_attempts =
        |all: &Vec<Value>| all.iter().filter(|span| span["name"] == "upstream").cloned().collect::<Vec<_>>();
    let attempts = below("/tried").iter().map(of_attempts).find(|attempts| attempts.len() > 1).unwrap();
    let shown: Vec<(&Value, &Value)> = attempts
        .iter()
        .map(|span| (attribute(span, "komainu.upstream"), attribute(span, "http.request.resend_count")))
        .collect();
    let (first, second) = (Value::from(format!("http://{nobody}")), Value::from(origin.url.as_str()));
    assert_eq!(shown, [(&first, &"0".into()), (&second, &"1".into())]);
    // The first attempt has failed, with its reason.
    assert_eq!((&attempts[0]["status"]["code"], &attempts[1]["status"]["code"]), (&2.into(), &Value::Null));
    assert!(attribute(&attempts[0], "error.type").as_str().unwrap().contains("refused"), "{}", attempts[0]);
    let outcomes: Vec<Value> = below("/cached")
        .iter()
        .map(|all| {
            let cache = all.iter().find(|span| span["name"] == "cache").unwrap();
            attribute(cache, "komainu.cache").clone()
        })
        .collect();
    assert_eq!(outcomes, ["miss", "hit"]);
}
