//! `maintenance` and `crawlers`: rules of a site that precede its routes.

use std::fs;
use std::io::{BufRead, BufReader, Write};

use crate::rig::{Answer, Folder, Rig, eventually};

const CONFIG: &str = r#"
    threads = 2
    trusted_proxies = ["127.0.0.1"]

    [control]
    listen = "unix:control.sock"

    # Connections through TLS are made for this one.
    [[site]]
    hosts = "localhost"

    [[site.route]]
    respond = "here"

    [[site]]
    hosts = "switched.test"
    maintenance = { page = "closed.html", file = "closed", except = "10.0.0.0/8", except_paths = ["/health"], retry_after = "5m" }

    [[site.route]]
    path = ["/page", "/health"]
    respond = "open"

    [[site]]
    hosts = "always.test"
    maintenance = true

    [[site.route]]
    respond = "open"

    [[site]]
    hosts = "crawled.test"
    crawlers = { deny = ["ai-training", "name:OwnBot"], pages = "5/d", trap = "/trap", disallow = "/search", except = "10.0.0.0/8" }

    [[site.route]]
    respond = "page"

    [[site]]
    hosts = "files.test"
    crawlers = ["seo"]

    [[site.route]]
    files = "www"

    [[site]]
    hosts = "own.test"
    crawlers = ["seo"]

    [[site.route]]
    path = "/robots.txt"
    respond = "mine"

    [[site.route]]
    respond = "page"

    [[site]]
    hosts = "silent.test"
    crawlers = { deny = "GPTBot", robots = false }

    [[site.route]]
    respond = "page"
"#;

fn start() -> Rig {
    let folder = Folder::new();
    folder.write("closed.html", "<p>back soon</p>").write("www/index.html", "index");
    Rig::config(folder, CONFIG)
}

fn ask(rig: &Rig, client: &str, host: &str, path: &str, fields: &str) -> Answer {
    rig.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n{fields}Connection: close\r\n\r\n"
    ))
}

/// All cases share one server; each has its own site or clients.
#[test]
fn sites_close_for_maintenance_and_refuse_crawlers() {
    let rig = start();
    a_file_switches_maintenance(&rig);
    maintenance_may_be_always(&rig);
    crawlers_are_refused_by_name(&rig);
    robots_is_made_where_there_is_none(&rig);
    pages_of_a_network_are_counted(&rig);
    a_trap_closes_the_site_for_a_network(&rig);
    a_crowd_of_names_costs_nothing(&rig);
}

fn a_file_switches_maintenance(rig: &Rig) {
    let page = |client: &str, path: &str| ask(rig, client, "switched.test", path, "");
    page("192.0.2.1", "/page").expect(200, "open");
    fs::write(rig.folder.at("closed"), "").unwrap();
    eventually("the file is seen", || page("192.0.2.1", "/page").status() == 503);
    // Also for paths without a route.
    for path in ["/page", "/nothing"] {
        let closed = page("192.0.2.1", path);
        closed.expect(503, "<p>back soon</p>").expect_field("retry-after", "300");
        closed
            .expect_field("cache-control", "no-store")
            .expect_field("content-type", "text/html; charset=utf-8");
    }
    for (client, path) in [("10.1.2.3", "/page"), ("192.0.2.1", "/health"), ("192.0.2.1", "/%68ealth")] {
        page(client, path).expect(200, "open");
    }
    page("10.1.2.3", "/nothing").expect_status(404);
    fs::remove_file(rig.folder.at("closed")).unwrap();
    eventually("the file is gone", || page("192.0.2.1", "/page").status() == 200);
    assert!(rig.metrics().contains("komainu_maintenance_responses_total{site=\"switched.test\"}"));
}

fn maintenance_may_be_always(rig: &Rig) {
    let closed = ask(rig, "192.0.2.1", "always.test", "/", "");
    closed.expect_status(503).expect_field("retry-after", "600");
    assert!(closed.text().contains("under maintenance"), "{}", closed.text());
}

fn crawlers_are_refused_by_name(rig: &Rig) {
    let status = |host: &str, agent: &str| {
        ask(rig, "10.0.0.1", "x.test", "/", "");
        ask(rig, "198.51.100.1", host, "/", &format!("User-Agent: {agent}\r\n")).status()
    };
    for agent in [
        "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
        "CCBot/2.0 (https://commoncrawl.org/faq/)",
        "claudebot",
        "x;OwnBot/3",
    ] {
        assert_eq!(status("crawled.test", agent), 403, "{agent}");
    }
    // Other clients, including names that merely resemble a crawler's.
    for agent in ["Mozilla/5.0 (X11; Linux) Firefox/140.0", "NotGPTBot/1", "GPTBot2", "ownbots", ""] {
        assert_eq!(status("crawled.test", agent), 200, "{agent}");
    }
    assert_eq!((status("silent.test", "gptbot/9"), status("silent.test", "CCBot/2.0")), (403, 200));
    ask(rig, "10.0.0.1", "crawled.test", "/", "User-Agent: GPTBot/1.2\r\n").expect(200, "page");
}

fn robots_is_made_where_there_is_none(rig: &Rig) {
    let robots = |host: &str| ask(rig, "192.0.2.1", host, "/robots.txt", "User-Agent: GPTBot/1.2\r\n");
    let made = robots("crawled.test");
    made.expect_status(200).expect_field("content-type", "text/plain; charset=utf-8");
    let text = made.text();
    assert!(
        text.contains("User-agent: GPTBot\n") && text.contains("User-agent: Google-Extended\n"),
        "{text}"
    );
    assert!(text.ends_with("Disallow: /\n\nUser-agent: *\nDisallow: /search\nDisallow: /trap\n"), "{text}");
    assert!(robots("files.test").text().contains("User-agent: AhrefsBot\n"));
    rig.folder.write("www/robots.txt", "of the folder");
    eventually("the file is found", || robots("files.test").text() == "of the folder");
    robots("own.test").expect(200, "mine");
    robots("silent.test").expect(200, "page");
}

fn pages_of_a_network_are_counted(rig: &Rig) {
    let status = |client: &str, path: &str| ask(rig, client, "crawled.test", path, "").status();
    for page in 0..5 {
        assert_eq!(status(&format!("203.0.113.{page}"), &format!("/page{page}?x={page}")), 200);
    }
    let refused = ask(rig, "203.0.113.77", "crawled.test", "/page5", "");
    refused.expect_status(429).expect_field("cache-control", "no-store");
    assert!(refused.field("retry-after").unwrap().parse::<u64>().unwrap() > 3600);
    // Pages already opened may be opened again, and clients that load subresources may open more.
    assert_eq!((status("203.0.113.9", "/page1"), status("203.0.113.9", "/page6")), (200, 429));
    assert_eq!((status("203.0.113.9", "/a/style.CSS"), status("203.0.113.9", "/page6")), (200, 200));
    assert_eq!((status("203.0.113.9", "/page7"), status("203.0.114.9", "/page7")), (429, 200));
    assert!((0..20).all(|page| status("10.0.0.1", &format!("/{page}")) == 200));
}

fn a_trap_closes_the_site_for_a_network(rig: &Rig) {
    let status =
        |client: &str, path: &str, fields: &str| ask(rig, client, "crawled.test", path, fields).status();
    // Visitors can be led to the trap by an image on another page, so they are not blocked.
    assert_eq!(status("198.18.1.1", "/trap", "Sec-Fetch-Site: cross-site\r\n"), 200);
    assert_eq!(status("198.18.1.1", "/", ""), 200);
    assert_eq!(status("198.18.1.2", "/trap", ""), 403);
    assert_eq!((status("198.18.1.3", "/", ""), status("198.18.2.3", "/", "")), (403, 200));
    assert_eq!(status("198.18.1.3", "/robots.txt", ""), 200);
}

fn a_crowd_of_names_costs_nothing(rig: &Rig) {
    let stream = rig.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    for block in 0..20 {
        let requests: String = (0..250)
            .map(|index| {
                let agent = format!("Bot{block}x{index}/1.0 {}", "y;".repeat(200));
                format!("GET / HTTP/1.1\r\nHost: silent.test\r\nUser-Agent: {agent}\r\n\r\n")
            })
            .collect();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut answered = 0;
        while answered < 250 {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0);
            answered += usize::from(line.contains("HTTP/1.1 200"));
        }
    }
    assert!(!rig.metrics().contains("Bot"), "no label comes from a client");
}
