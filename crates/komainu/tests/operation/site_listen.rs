//! Sites with their own addresses: routing by address, in every protocol, and after a reload.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::certified;
use crate::hosted::{Client, status};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, komainu, text};

fn start(folder: Folder, config: &str) -> Rig {
    folder.write("komainu.toml", format!("threads = 2\n{}{config}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

#[track_caller]
fn reload(rig: &Rig, config: &str) {
    rig.folder.write("komainu.toml", format!("threads = 2\n{}{config}", as_we_are()));
    let done = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
}

/// Addresses that the server reports to serve on, in the order of the configuration.
fn addresses(rig: &Rig) -> Vec<SocketAddr> {
    let listen = status(rig)["listen"].clone();
    let of = |url: &str| url.split_once("://").and_then(|(_, address)| address.parse().ok());
    listen.as_array().unwrap().iter().filter_map(|url| of(url.as_str().unwrap())).collect()
}

/// The response for a host at an address; asserts that HTTP/1.1 and HTTP/2 agree.
#[track_caller]
fn asked(address: SocketAddr, host: &str) -> String {
    let ask = |protocol: &str| {
        let url = format!("http://{address}/");
        let got = curl(&[protocol, "-H", &format!("Host: {host}"), "-w", "|%{http_code}", &url]);
        text(&got.stdout)
    };
    let one = ask("--http1.1");
    let two = ask("--http2-prior-knowledge");
    assert_eq!(one.rsplit('|').next(), two.rsplit('|').next(), "{one} / {two}");
    one
}

fn site(hosts: &str, listen: &str, body: &str) -> String {
    let hosts = if hosts.is_empty() { String::new() } else { format!("hosts = \"{hosts}\"\n") };
    let listen = if listen.is_empty() { String::new() } else { format!("listen = [{listen}]\n") };
    format!(
        r#"
        [[site]]
        {hosts}
        {listen}
        [[site.route]]
        respond = "{body}"
        "#
    )
}

const TOP: &str = "listen = [{ address = \"127.0.0.1:0\", h2c = true }]\n";
const OWN: &str = "{ address = \"127.0.0.2:0\", h2c = true }";

#[test]
fn site_answers_only_at_its_own_addresses() {
    let config = format!(
        r#"
        {TOP}
        [[route]]
        respond = "default"
        {}
        {}
        {}
        "#,
        site("a.test", "", "a everywhere"),
        site("b.test", OWN, "b at its own"),
        site("a.test", "\"127.0.0.2:0\"", "a at its own"),
    );
    let rig = start(Folder::new(), &config);
    let all = addresses(&rig);
    assert_eq!(all.len(), 2, "two sites share one address: {all:?}");
    let top = all[0];
    let own = all[1];
    assert_eq!(asked(top, "a.test"), "a everywhere|200");
    assert_eq!(asked(own, "a.test"), "a at its own|200");
    assert_eq!(asked(own, "b.test"), "b at its own|200");
    assert_eq!(asked(top, "b.test"), "default|200", "it listens elsewhere");
    // The top-level default site does not apply to addresses of sites.
    assert!(asked(own, "c.test").ends_with("|404"));
    assert_eq!(asked(top, "c.test"), "default|200");
    // The port in `Host` comes from the client and does not select an address.
    assert_eq!(asked(top, &format!("b.test:{}", own.port())), "default|200");
}

#[test]
fn an_address_has_its_default_site() {
    let config = format!(
        "listen = [\"127.0.0.1:0\", \"127.0.0.3:0\"]\n{}{}{}",
        site("", "\"127.0.0.1:0\"", "first"),
        site("", "\"127.0.0.3:0\"", "third"),
        site("", "\"127.0.0.2:0\"", "second"),
    );
    let rig = start(Folder::new(), &config);
    let answers: Vec<String> =
        addresses(&rig).into_iter().map(|address| Client::new(address).get("/").1).collect();
    assert_eq!(answers, ["first", "third", "second"]);
}

#[test]
fn reload_adds_and_removes_addresses_of_sites() {
    for kind in rig::kinds() {
        let folder = Folder::new();
        let config = |sites: &str| {
            format!(
                r#"
                threads = 2
                {kind}
                listen = "127.0.0.1:0"
                [[route]]
                respond = "top"
                {sites}
                "#
            )
        };
        folder.write("komainu.toml", config(""));
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        let reload = |sites: &str| {
            rig.folder.write("komainu.toml", config(sites));
            let done = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
            assert!(done.status.success(), "{}", text(&done.stderr));
        };
        let mut of_top = Client::new(rig.address);
        assert_eq!(of_top.get("/").1, "top");
        let unix = rig.folder.at("own.sock");
        reload(&site("", &format!("\"127.0.0.2:0\", \"unix:{}\"", unix.display()), "own"));
        let own = addresses(&rig)[1];
        let mut of_own = Client::new(own);
        assert_eq!((of_own.get("/").1.as_str(), of_top.get("/").1.as_str()), ("own", "top"));
        let over_unix = curl(&["--unix-socket", &unix.display().to_string(), "http://localhost/"]);
        assert_eq!(text(&over_unix.stdout), "own");
        // The site changes and keeps its address.
        reload(&site("", "\"127.0.0.2:0\"", "changed"));
        assert_eq!(addresses(&rig)[1], own, "it is the same socket");
        assert_eq!(of_own.get("/").1, "changed");
        assert!(!unix.exists());
        // The address is closed: remaining connections to it reach no other site.
        reload("");
        eventually("nobody listens there", || TcpStream::connect(own).is_err());
        assert_eq!(of_own.get("/").0, 404);
        assert_eq!(of_top.get("/").1, "top");
    }
}

#[test]
fn reload_assigns_top_level_address_to_one_site() {
    let folder = Folder::new();
    let top = r#"
        listen = ["127.0.0.1:0", "127.0.0.2:0"]
        [[route]]
        respond = "top"
    "#;
    let rig = start(folder, top);
    let second = addresses(&rig)[1];
    let mut old = Client::new(second);
    assert_eq!(old.get("/").1, "top");
    let own = site("", "\"127.0.0.2:0\"", "own");
    reload(
        &rig,
        &format!(
            r#"
            listen = "127.0.0.1:0"
            [[route]]
            respond = "top"
            {own}
            "#
        ),
    );
    assert_eq!(addresses(&rig)[1], second);
    eventually("new connections are for the site", || Client::new(second).get("/").1 == "own");
    assert_eq!(old.get("/").1, "top", "the connection is older");
    assert_eq!(Client::new(rig.address).get("/").1, "top");
}

#[test]
fn a_certificate_is_offered_only_where_its_site_listens() {
    let folder = certified::folder(&[("a.test", "ec"), ("b.test", "ec")]);
    let tls = |name: &str| format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\" }}\n");
    let own = "listen = [{ address = \"127.0.0.2:0\", tls = true }]\n";
    let config = format!(
        "{}{}{}",
        certified::LISTEN,
        certified::site("a.test", &tls("a.test")),
        certified::site("b.test", &format!("{}{own}", tls("b.test")))
    );
    let rig = start(folder, &config);
    let all = addresses(&rig);
    let hello = |address: SocketAddr, name: &str| {
        let script =
            format!("echo | openssl s_client -connect {address} -servername {name} -CAfile ca.pem 2>&1");
        let said = Command::new("sh").args(["-c", &script]).current_dir(rig.folder.path()).output().unwrap();
        text(&said.stdout)
    };
    assert!(hello(all[0], "a.test").contains("CN = a.test"));
    assert!(hello(all[1], "b.test").contains("CN = b.test"));
    for (address, name) in [(all[0], "b.test"), (all[1], "a.test")] {
        let said = hello(address, name);
        assert!(said.contains("unrecognized name") && !said.contains("CN = "), "{name}: {said}");
    }
    let ca = rig.folder.at("ca.pem");
    let resolve = format!("b.test:{}:127.0.0.2", all[1].port());
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let url = format!("https://b.test:{}/", all[1].port());
        let arguments = [
            protocol,
            "--resolve",
            &resolve,
            "--cacert",
            ca.to_str().unwrap(),
            "-w",
            "|%{http_version}",
            &url,
        ];
        assert_eq!(text(&curl(&arguments).stdout), format!("this is b.test|{version}"));
    }
    // On a connection for one site, hosts of other addresses are unknown.
    let url = format!("https://b.test:{}/", all[1].port());
    let other = curl(&[
        "--resolve",
        &resolve,
        "--cacert",
        ca.to_str().unwrap(),
        "-H",
        "Host: a.test",
        "-w",
        "%{http_code}",
        "-o",
        "/dev/null",
        &url,
    ]);
    assert_eq!(text(&other.stdout), "404");
}

#[test]
fn responses_of_one_host_at_two_addresses_are_cached_apart() {
    let origins = [Rig::files(&[("page", "public")]), Rig::files(&[("page", "internal")])];
    let cached = |listen: &str, origin: &Rig| {
        format!(
            r#"
            [[site]]
            hosts = "a.test"
            listen = "{listen}"
            [[site.route]]
            cache = {{ rule = [{{ ttl = "1h" }}] }}
            proxy = "{}"
            "#,
            origin.url("").trim_end_matches('/')
        )
    };
    let config = cached("127.0.0.1:0", &origins[0]) + &cached("127.0.0.2:0", &origins[1]);
    let rig = start(Folder::new(), &config);
    let all = addresses(&rig);
    for _ in 0..2 {
        for (address, body) in [(all[0], "public"), (all[1], "internal")] {
            let url = format!("http://{address}/page");
            let got = curl(&["-H", "Host: a.test", "-D", "-", &url]).stdout;
            assert!(text(&got).ends_with(body), "{}", text(&got));
        }
    }
}

#[test]
fn address_shared_by_site_and_stream_routes_by_sni() {
    let folder = certified::folder(&[("a.test", "ec"), ("b.test", "ec")]);
    for name in ["a.test", "b.test"] {
        for kind in ["pem", "key"] {
            let file = format!("{name}.{kind}");
            folder.write(&format!("of/{file}"), std::fs::read(folder.at(&file)).unwrap());
        }
    }
    let tls = |name: &str| format!("tls = {{ certificate = \"of/{name}.pem\", key = \"of/{name}.key\" }}");
    let behind = Folder::new();
    for name in ["b.test.pem", "b.test.key"] {
        behind.write(&format!("of/{name}"), std::fs::read(folder.at(name)).unwrap());
    }
    let behind = certified::start(
        behind,
        &format!("{}{}", certified::LISTEN, certified::site("b.test", &tls("b.test"))),
    );
    let own = "{ address = \"127.0.0.2:0\", tls = true }";
    let config = format!(
        r#"
        listen = "127.0.0.1:0"

        [[route]]
        respond = "top"

        [[site]]
        hosts = "a.test"
        listen = {own}
        {}

        [[site.route]]
        respond = "a"

        [[stream]]
        listen = "127.0.0.2:0"
        names = "b.test"
        to = "{}"
        "#,
        tls("a.test"),
        behind.address
    );
    let rig = start(folder, &config);
    let own = addresses(&rig)[1];
    let ca = rig.folder.at("ca.pem");
    for (name, body) in [("a.test", "a"), ("b.test", "this is b.test")] {
        let resolve = format!("{name}:{}:127.0.0.2", own.port());
        let url = format!("https://{name}:{}/", own.port());
        let got = curl(&["--resolve", &resolve, "--cacert", ca.to_str().unwrap(), &url]);
        assert_eq!(text(&got.stdout), body, "{}", text(&got.stderr));
    }
}

#[test]
fn requests_without_tls_are_redirected_to_the_port_of_the_site() {
    let folder = certified::folder(&[("a.test", "ec")]);
    // A free port, which the kernel does not soon hand out to another process.
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }\n";
    let listen = format!("listen = [\"127.0.0.2:0\", {{ address = \"{free}\", tls = true }}]\n");
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        [[route]]
        respond = "top"
        {}
        "#,
        certified::site("a.test", &format!("{tls}{listen}"))
    );
    let rig = start(folder, &config);
    let own = addresses(&rig)[1];
    let got = curl(&["-H", "Host: a.test", "-D", "-", &format!("http://{own}/x")]);
    let wanted = format!("https://a.test:{}/x", free.port());
    assert!(text(&got.stdout).contains(&wanted), "{}", text(&got.stdout));
    let top = curl(&["-H", "Host: a.test", &format!("http://{}/x", rig.address)]);
    assert_eq!(text(&top.stdout), "top");
}

#[test]
fn metrics_and_explain_distinguish_sites_by_address() {
    let config = format!(
        r#"
        listen = "127.0.0.1:0"
        [control]
        listen = "unix:control.sock"
        [[route]]
        respond = "top"
        {}
        {}
        "#,
        site("a.test", "", "one"),
        site("a.test", "\"127.0.0.2:0\"", "other"),
    );
    let rig = start(Folder::new(), &config);
    let all = addresses(&rig);
    for address in [all[0], all[0], all[1]] {
        curl(&["-H", "Host: a.test", &format!("http://{address}/")]);
    }
    let socket = rig.folder.at("control.sock").display().to_string();
    let metrics = text(&curl(&["--unix-socket", &socket, "http://localhost/metrics"]).stdout);
    let count = |site: &str| {
        let of = |line: &&str| {
            line.starts_with("komainu_http_requests_total") && line.contains(&format!("site=\"{site}\""))
        };
        metrics.lines().find(of).and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    assert_eq!(
        (count("a.test"), count("a.test 127.0.0.2:0")),
        (Some("2".into()), Some("1".into())),
        "{metrics}"
    );
    let text_of = r#"
        listen = ":80"

        [[site]]
        hosts = "a.test"

        [[site.route]]
        respond = "x"

        [[site]]
        hosts = "a.test"
        listen = ":81"

        [[site.route]]
        files = "."
    "#;
    rig.folder.write("other.toml", text_of);
    let explain = |url: &str| {
        let path = rig.folder.at("other.toml");
        let said = komainu().arg("check").arg("-c").arg(path).args(["--explain", url]).output().unwrap();
        text(&said.stdout) + &text(&said.stderr)
    };
    assert!(explain("http://a.test/").contains("respond"), "{}", explain("http://a.test/"));
    assert!(explain("http://a.test:81/").contains("files"), "{}", explain("http://a.test:81/"));
}
