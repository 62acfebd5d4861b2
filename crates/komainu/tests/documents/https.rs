//! The page "HTTPS": each of its examples is run as written, except for addresses, directories and
//! authorities.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use crate::hosted;
use crate::hosted::server;
use crate::pebble::{Pebble, PebbleOptions, free_port};
use crate::rig;
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, komainu, text};

/// A fragment of each example, and the test that runs it or, if the example is only checked, the reason.
const EXAMPLES: [(&str, &str, &str); 15] = [
    ("sh", "komainu run --listen :8443", "command_line_examples_serve_https"),
    ("sh", "openssl req -x509", "command_line_examples_serve_https"),
    ("toml", "hsts  = true", "certificate_file_examples_serve_https"),
    ("sh", "renewal-hooks/deploy", "certificate_file_examples_serve_https"),
    ("toml", "min = \"1.3\"", "certificate_file_examples_serve_https"),
    ("sh", "openssl rand", "certificate_file_examples_serve_https"),
    ("toml", "ticket_keys", "certificate_file_examples_serve_https"),
    ("toml", "staff-ca.pem", "client_certificate_examples_verify_clients"),
    ("toml", "X-Client", "client_certificate_examples_verify_clients"),
    ("toml", "email = ", "automatic_certificate_example_obtains_certificates"),
    ("toml", "secret_file", "examples_of_external_authorities_are_valid"),
    ("toml", "shortlived", "examples_of_external_authorities_are_valid"),
    ("toml", "ask = ", "on_demand_example_issues_only_confirmed_names"),
    ("toml", "app.localhost", "local_name_example_serves_https"),
    ("text", "no site has this name", "certificate_file_examples_serve_https"),
];

/// The code blocks of the page, each with its language.
fn blocks() -> Vec<(String, String)> {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/https.md")).unwrap();
    let (mut blocks, mut open) = (Vec::new(), None::<(String, String)>);
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((_, block))) => block.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the only example that contains `part`.
fn example(part: &str) -> String {
    let mut found = blocks().into_iter().map(|(_, block)| block).filter(|block| block.contains(part));
    let block = found.next().unwrap_or_else(|| panic!("the page has an example with {part:?}"));
    assert!(found.next().is_none(), "{part:?} is of one example");
    block
}

/// Replaces fragments of a text, each of which must occur in it.
fn with(mut block: String, others: &[(&str, &str)]) -> String {
    for (part, other) in others {
        assert!(block.contains(part), "{part:?} stands in {block}");
        block = block.replace(part, other);
    }
    block
}

fn shell(folder: &Folder, script: &str) -> Output {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(folder.path())
        .env("PATH", path_with_komainu())
        .output()
        .unwrap()
}

fn succeeds(folder: &Folder, script: &str) -> String {
    let done = shell(folder, script);
    assert!(done.status.success(), "{script}\n{}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

/// `PATH` with the directory of the server's program in front.
fn path_with_komainu() -> std::ffi::OsString {
    let own = Path::new(env!("CARGO_BIN_EXE_komainu")).parent().unwrap().to_owned();
    std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&rig::search_path()))).unwrap()
}

fn start(folder: Folder, config: &str) -> Rig {
    folder.write("komainu.toml", format!("{}{config}", as_we_are()));
    let mut command = if config.contains("[apps.") { server() } else { komainu() };
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// The server's ports without TLS and with TLS.
fn ports(rig: &Rig) -> [Option<u16>; 2] {
    let status = hosted::status(rig);
    ["http://", "https://"].map(|scheme| {
        let urls = status["listen"].as_array().unwrap().iter().filter_map(|url| url.as_str());
        let url = urls.filter_map(|url| url.strip_prefix(scheme)).next()?;
        url.rsplit_once(':').unwrap().1.trim_end_matches('/').parse().ok()
    })
}

/// Requests `https://NAME/` with these curl arguments.
fn fetch(rig: &Rig, name: &str, arguments: &[&str]) -> Output {
    let port = ports(rig)[1].unwrap();
    let resolve = format!("{name}:{port}:127.0.0.1");
    let url = format!("https://{name}:{port}/");
    curl(&[&["--resolve", resolve.as_str(), &url][..], arguments].concat())
}

/// Commands that create `NAME.pem` and `NAME.key`, signed by `CA.pem`.
fn sign(ca: &str, name: &str, extensions: &str) -> String {
    format!(
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr
         printf '{extensions}\\n' > {name}.ext
         openssl x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem\n"
    )
}

/// Commands that create an authority, `CA.pem` and `CA.key`.
fn authority(ca: &str) -> String {
    format!(
        "exec 2>&1
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.pem\n"
    )
}

#[test]
fn each_example_has_its_test() {
    let tests = include_str!("https.rs");
    for (_, part, test) in EXAMPLES {
        example(part);
        assert!(tests.contains(&format!("fn {test}()")), "{test}");
    }
    for (language, block) in blocks() {
        let known = EXAMPLES.iter().any(|(of, part, _)| *of == language && block.contains(part));
        assert!(known, "an example without a test:\n{block}");
    }
}

#[test]
fn command_line_examples_serve_https() {
    let folder = Folder::new();
    folder.write("public/index.html", "welcome");
    let all = example("openssl req -x509");
    let (make, ask) = all.split_at(all.find("curl ").unwrap());
    succeeds(&folder, &format!("exec 2>&1\n{make}"));
    let words = with(example("komainu run"), &[(":8443", "127.0.0.1:0")]);
    let mut words = words.split_whitespace();
    assert_eq!(words.next(), Some("komainu"));
    let mut command = komainu();
    command.args(words).current_dir(folder.path());
    let rig = Rig::start(command, folder);
    let port = format!(":{}/", ports(&rig)[1].unwrap());
    for host in ["localhost", "127.0.0.1"] {
        let ask = with(ask.to_owned(), &[(":8443/", &port), ("localhost", host)]);
        assert_eq!(succeeds(&rig.folder, &ask), "welcome", "{host}");
    }
}

#[test]
fn certificate_file_examples_serve_https() {
    let folder = Folder::new();
    folder.write("public/index.html", "welcome");
    let names = "subjectAltName=DNS:example.com,DNS:www.example.com\\nbasicConstraints=CA:FALSE";
    succeeds(&folder, &format!("{}{}", authority("ca"), sign("ca", "example.com", names)));
    let place = format!("{}/", folder.path().display());
    succeeds(&folder, &with(example("openssl rand"), &[("/etc/komainu/", &place)]));
    let listen = "[\"127.0.0.1:0\", { address = \"127.0.0.1:0\", tls = true }]";
    let site = with(example("hsts  = true"), &[("[\":80\", \":443\"]", listen), ("/etc/ssl/", &place)]);
    let tls = example("ticket_keys").replace("/etc/komainu/", &place)
        + example("min = ").trim_start_matches("[tls]\n");
    let rig = start(folder, &format!("log.level = \"info\"\n{site}\n{tls}"));
    let root = rig.folder.at("ca.pem");
    let ca = ["--cacert", root.to_str().unwrap()];
    for name in ["example.com", "www.example.com"] {
        let answer = text(&fetch(&rig, name, &[&ca[..], &["-i"]].concat()).stdout);
        assert!(
            answer.to_lowercase().contains("\nstrict-transport-security: max-age=31536000\r"),
            "{answer}"
        );
        assert!(answer.ends_with("welcome"), "{answer}");
    }
    assert!(!fetch(&rig, "example.com", &[&ca[..], &["--tls-max", "1.2"]].concat()).status.success());
    let [http, https] = ports(&rig).map(Option::unwrap);
    let moved = curl(&["-i", "-H", "Host: example.com", &format!("http://127.0.0.1:{http}/a?b")]);
    let moved = text(&moved.stdout);
    assert!(moved.starts_with("HTTP/1.1 308 "), "{moved}");
    assert!(moved.contains(&format!("https://example.com:{https}/a?b\r")), "{moved}");
    // The reasons of failed handshakes are logged in the words of the page.
    fetch(&rig, "old.example.com", &[]);
    for line in example("no site has this name").lines() {
        let words = line.split_once("192.0.2.").unwrap().1.split_once(": ").unwrap().1;
        eventually(words, || rig.reported().contains(words));
    }
    // Certbot runs this after it has written new files.
    succeeds(&rig.folder, &format!("exec 2>&1; {}", sign("ca", "example.com", names)));
    let serial = succeeds(&rig.folder, "openssl x509 -noout -serial -in example.com.pem");
    let hook = format!("exec komainu reload --pid {}", rig.child.id());
    let hook = with(example("renewal-hooks"), &[("exec komainu reload", &hook)]);
    rig.folder.write("hook", hook);
    succeeds(&rig.folder, "sh ./hook");
    let shown = format!(
        "openssl s_client -connect 127.0.0.1:{https} -servername example.com < /dev/null 2>&1 | openssl x509 -noout -serial"
    );
    assert_eq!(succeeds(&rig.folder, &shown), serial);
}

#[test]
fn client_certificate_examples_verify_clients() {
    let folder = Folder::new();
    let client = "extendedKeyUsage=clientAuth";
    let script = [
        authority("ca"),
        sign("ca", "admin", "subjectAltName=DNS:admin.example.com"),
        authority("staff-ca"),
        sign("staff-ca", "alice", client),
        sign("staff-ca", "mallory", client),
        "touch index; echo 01 > crlnumber
         printf '[ca]\\ndefault_ca=c\\n[c]\\ndatabase=index\\ncrlnumber=crlnumber\\ndefault_md=sha256\\ndefault_crl_days=2\\n' > ca.conf
         openssl ca -config ca.conf -cert staff-ca.pem -keyfile staff-ca.key -revoke mallory.pem
         openssl ca -config ca.conf -cert staff-ca.pem -keyfile staff-ca.key -gencrl -out staff.crl\n"
            .to_owned(),
    ];
    succeeds(&folder, &script.concat());
    let app = "sub { my $subject = $_[0]{SSL_CLIENT_S_DN}; [200, [], [\"app: $subject\"]] }";
    folder.write("admin.psgi", app);
    // An upstream server that responds with the field.
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in upstream.incoming() {
            let mut client = client.unwrap();
            let lines =
                BufReader::new(&client).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let named = lines.filter(|line| line.to_lowercase().starts_with("x-client: "));
            let body = named.collect::<Vec<_>>().join("\n");
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = client.write_all((head + &body).as_bytes());
        }
    });
    let proxied = with(
        example("X-Client"),
        &[("proxy = ", "path = \"/proxied\"\nproxy = "), ("127.0.0.1:3000", &address)],
    );
    let config =
        with(example("staff-ca.pem"), &[("[[site.route]]\n", &format!("{proxied}\n[[site.route]]\n"))]);
    let listen = "listen = { address = \"127.0.0.1:0\", tls = true }\n";
    let rig = start(
        folder,
        &format!(
            r#"
            {listen}
            {config}
            [apps.admin]
            psgi = "admin.psgi"
            workers = 1
            "#
        ),
    );
    let port = ports(&rig)[1].unwrap();
    let ask = |path: &str, who: &str| {
        let file = |name: String| rig.folder.at(&name).display().to_string();
        let ca = file("ca.pem".into());
        let certificate = file(format!("{who}.pem"));
        let key = file(format!("{who}.key"));
        let (resolve, url) = (
            format!("admin.example.com:{port}:127.0.0.1"),
            format!("https://admin.example.com:{port}{path}"),
        );
        let field = "X-Client: CN=mallory";
        let output = curl(&[
            "--cacert",
            &ca,
            "--cert",
            &certificate,
            "--key",
            &key,
            "-H",
            field,
            "--resolve",
            &resolve,
            &url,
        ]);
        output.status.success().then(|| text(&output.stdout))
    };
    assert_eq!(ask("/", "alice").unwrap(), "app: CN=alice");
    assert_eq!(ask("/proxied", "alice").unwrap().to_lowercase(), "x-client: cn=alice");
    assert_eq!(ask("/", "mallory"), None);
    assert!(!fetch(&rig, "admin.example.com", &["-k"]).status.success(), "without a certificate");
}

/// Starts Pebble and returns it with an example that orders from it, adapted to Pebble's ports.
fn ordering(folder: &Folder, part: &str) -> Option<(Pebble, String)> {
    let http = free_port();
    let tls = free_port();
    let options = PebbleOptions { http_port: http, tls_port: tls, ..PebbleOptions::default() };
    let pebble = Pebble::start(&folder.at("pebble"), &options)?;
    folder.write("root.pem", pebble.issuing_root());
    let listen = format!("[\"127.0.0.1:{http}\", {{ address = \"127.0.0.1:{tls}\", tls = true }}]");
    let acme = format!(
        r#"
        [acme]
        state = "state"
        directory = "{}"
        ca = "{}"
        "#,
        pebble.directory,
        pebble.directory_root().display()
    );
    let config = with(example(part), &[("[\":80\", \":443\"]", &listen), ("[acme]\n", &acme)]);
    Some((pebble, config))
}

#[test]
fn automatic_certificate_example_obtains_certificates() {
    let folder = Folder::new();
    let Some((_pebble, config)) = ordering(&folder, "email = ") else { return };
    folder.write("www/index.html", "welcome");
    let place = folder.at("www").display().to_string();
    let rig = start(folder, &with(config, &[("/srv/www", &place)]));
    let root = rig.folder.at("root.pem");
    for name in ["example.com", "www.example.com"] {
        eventually(name, || {
            text(&fetch(&rig, name, &["--cacert", root.to_str().unwrap()]).stdout) == "welcome"
        });
    }
}

#[test]
fn on_demand_example_issues_only_confirmed_names() {
    let folder = Folder::new();
    let Some((pebble, config)) = ordering(&folder, "ask = ") else { return };
    // A single server acts both as the `ask` endpoint, which confirms one name, and as the upstream server.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let lines =
                BufReader::new(&client).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let line = lines.collect::<Vec<_>>().into_iter().next().unwrap_or_default();
            let is_known =
                line.starts_with("GET / ") || line.starts_with("GET /check?domain=shop.example.net ");
            let status = if is_known { "200 OK" } else { "404 Not Found" };
            let _ = write!(client, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 4\r\n\r\nshop");
        }
    });
    let rig = start(folder, &with(config, &[("127.0.0.1:9000", &address), ("127.0.0.1:3000", &address)]));
    let root = rig.folder.at("root.pem");
    let ask = |name: &str| text(&fetch(&rig, name, &["--cacert", root.to_str().unwrap()]).stdout);
    eventually("a certificate", || ask("shop.example.net") == "shop");
    assert_eq!(ask("other.example.net"), "");
    eventually("a refusal", || {
        rig.reported().contains("other.example.net: `ask` refuses it with status 404")
    });
    assert_eq!(pebble.issued(), 1, "{}", rig.reported());
}

/// Only checks these examples, because they name a DNS server and authorities on the internet.
/// crates/control/tests/it/dns_update.rs makes DNS updates against BIND, and crates/control/tests/it/acme.rs
/// orders from several directories, with external accounts and profiles.
#[test]
fn examples_of_external_authorities_are_valid() {
    let folder = Folder::new();
    folder.write(
        "dns.key",
        "key \"komainu\" { algorithm hmac-sha256; secret \"c2VjcmV0LXNlY3JldC1zZWNyZXQ=\"; };\n",
    );
    let private = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    std::fs::set_permissions(folder.at("dns.key"), private).unwrap();
    let key = folder.at("dns.key").display().to_string();
    let site = r#"
        [[site]]
        hosts = ["example.com"]
        tls = "auto"
        [[site.route]]
        respond = "x"
    "#;
    for acme in [with(example("secret_file"), &[("/etc/komainu/dns.key", &key)]), example("shortlived")] {
        folder.write("komainu.toml", format!("listen = [\":80\", \":443\"]\n{acme}\n{site}"));
        let output = komainu().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{acme}\n{}", text(&output.stderr));
    }
}

#[test]
fn local_name_example_serves_https() {
    let folder = Folder::new();
    folder.write("public/index.html", "welcome");
    let ports_of_the_page = [("127.0.0.1:8080", "127.0.0.1:0"), ("127.0.0.1:8443", "127.0.0.1:0")];
    let config = with(example("app.localhost"), &ports_of_the_page);
    let rig = start(folder, &format!("acme.state = \"state\"\n{config}"));
    let root = rig.folder.at("state/local/root.crt");
    for name in ["app.localhost", "127.0.0.1"] {
        eventually(name, || {
            text(&fetch(&rig, name, &["--cacert", root.to_str().unwrap()]).stdout) == "welcome"
        });
    }
}
