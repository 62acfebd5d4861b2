//! Certificates that the server obtains from Pebble and from the local authority, checked with curl.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;

use crate::pebble::{Pebble, PebbleOptions, free_port};
use crate::rig;
use crate::rig::{Folder, Rig, curl, eventually, komainu, text};

const NAME: &str = "a.komainu-test.com";

/// Ports of the server, at which Pebble validates names.
struct Ports {
    http: u16,
    tls: u16,
}

impl Ports {
    fn new() -> Ports {
        Ports { http: free_port(), tls: free_port() }
    }

    /// Starts Pebble, which validates at these ports; `None` if it is not built.
    fn pebble(&self, folder: &Folder) -> Option<Pebble> {
        let options = PebbleOptions { http_port: self.http, tls_port: self.tls, ..PebbleOptions::default() };
        Pebble::start(&folder.at("pebble"), &options)
    }

    /// A configuration for a private name, whose certificate is of the local authority.
    fn local_config(&self, name: &str) -> String {
        let Ports { http, tls } = self;
        format!(
            r#"
            listen = ["127.0.0.1:{http}", {{ address = "127.0.0.1:{tls}", tls = true }}]
            acme.state = "state"
            [[site]]
            hosts = "{name}"
            tls = "auto"
            [[site.route]]
            respond = "fine"
            "#
        )
    }

    /// A configuration for the name, with more settings of `[acme]`.
    fn config(&self, directory: &str, ca: &Path, acme: &str) -> String {
        let Ports { http, tls } = self;
        format!(
            r#"
            listen = ["127.0.0.1:{http}", {{ address = "127.0.0.1:{tls}", tls = true }}]

            [acme]
            state = "state"
            directory = "{directory}"
            ca = "{}"
            {acme}

            [[site]]
            hosts = ["{NAME}", "x.localhost"]
            tls = "auto"

            [[site.route]]
            respond = "fine"
            "#,
            ca.display()
        )
    }

    /// Sends a request through TLS that trusts only `root`.
    fn get(&self, name: &str, root: &Path) -> Output {
        let resolve = format!("{name}:{}:127.0.0.1", self.tls);
        let url = format!("https://{name}:{}/", self.tls);
        curl(&["--cacert", root.to_str().unwrap(), "--resolve", &resolve, "-w", "%{num_connects}", &url])
    }

    fn is_served(&self, name: &str, root: &Path) -> bool {
        let output = self.get(name, root);
        output.status.success() && text(&output.stdout) == "fine1"
    }

    /// Whether the TLS handshake for this name fails.
    fn is_refused(&self, name: &str) -> bool {
        let resolve = format!("{name}:{}:127.0.0.1", self.tls);
        let output = curl(&["-k", "--resolve", &resolve, &format!("https://{name}:{}/", self.tls)]);
        // curl's CURLE_SSL_CONNECT_ERROR.
        output.status.code() == Some(35)
    }
}

fn start(folder: Folder, config: &str) -> Rig {
    folder.write("komainu.toml", format!("{}{config}", rig::as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Runs `komainu cert …` for a server.
fn cert(rig: &Rig, words: &[&str]) -> String {
    let pid = rig.child.id().to_string();
    let output = komainu().arg("cert").args(words).args(["--pid", &pid]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Stops the server with SIGTERM and returns its directory.
fn stopped(mut rig: Rig) -> Folder {
    rig.signal("-TERM");
    rig.ended();
    std::mem::replace(&mut rig.folder, Folder::new())
}

fn issuing_root(pebble: &Pebble, folder: &Folder) -> std::path::PathBuf {
    folder.write("root.pem", pebble.issuing_root());
    folder.at("root.pem")
}

/// Asserts that all files are accessible to their owner only.
fn assert_private(folder: &Path) {
    let metadata = fs::metadata(folder).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o077, 0, "{}", folder.display());
    if metadata.is_dir() {
        fs::read_dir(folder).unwrap().for_each(|entry| assert_private(&entry.unwrap().path()));
    }
}

#[test]
fn http_01_certificate_is_stored_renewed_and_reused() {
    let folder = Folder::new();
    let ports = Ports::new();
    let Some(pebble) = ports.pebble(&folder) else { return };
    let root = issuing_root(&pebble, &folder);
    let config = ports.config(&pebble.directory, &pebble.directory_root(), "challenge = \"http-01\"");
    let rig = start(folder, &config);
    eventually("a certificate", || ports.is_served(NAME, &root));
    // Requests without TLS are redirected, except those of the ACME challenge.
    let redirected =
        curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &format!("Host: {NAME}"), &rig.url("/")]);
    assert_eq!(text(&redirected.stdout), "308");
    let listed = cert(&rig, &["list"]);
    assert!(
        listed.contains(NAME) && listed.contains("Pebble Intermediate CA") && listed.contains("in 89 d"),
        "{listed}"
    );
    let shown = || cert(&rig, &["show", NAME]);
    let first = shown();
    assert!(first.contains(&pebble.directory), "{first}");
    assert_private(&rig.folder.at("state"));
    // Renews the certificate immediately.
    cert(&rig, &["renew", NAME]);
    let serial = |text: &str| text.lines().find(|line| line.starts_with("serial")).unwrap().to_owned();
    eventually("another certificate", || serial(&shown()) != serial(&first));
    assert!(ports.is_served(NAME, &root));
    let last = serial(&shown());
    // After a restart without the authority, stored certificates are served from the first connection on.
    let issued = pebble.issued();
    assert_eq!(issued, 2);
    let folder = stopped(rig);
    drop(pebble);
    let state = folder.at("state");
    let output = komainu().args(["cert", "show", NAME, "--state"]).arg(&state).output().unwrap();
    assert_eq!(serial(&text(&output.stdout)), last);
    let rig = start(folder, &config);
    assert!(ports.is_served(NAME, &root), "{}", rig.reported());
    assert_eq!(serial(&cert(&rig, &["show", NAME])), last);
}

#[test]
fn tls_alpn_01_obtains_a_certificate() {
    let folder = Folder::new();
    let ports = Ports::new();
    let Some(pebble) = ports.pebble(&folder) else { return };
    let root = issuing_root(&pebble, &folder);
    let config = ports.config(&pebble.directory, &pebble.directory_root(), "challenge = \"tls-alpn-01\"");
    let rig = start(folder, &config);
    eventually("a certificate", || ports.is_served(NAME, &root));
    assert!(!pebble.log().contains("http-01 validation"), "{}", rig.reported());
}

/// Names without a certificate are refused at once, without waiting for the directory.
#[test]
fn unreachable_acme_directory_does_not_delay_handshakes() {
    let folder = Folder::new();
    let ports = Ports::new();
    folder.certify();
    let ca = folder.at("cert.pem");
    let rig = start(folder, &ports.config(&format!("https://127.0.0.1:{}/dir", free_port()), &ca, ""));
    // The certificate of the private name is available nevertheless.
    let root = rig.folder.at("state/local/root.crt");
    assert!(ports.is_served("x.localhost", &root), "{}", text(&ports.get("x.localhost", &root).stderr));
    assert!(ports.is_refused(NAME));
    let refusal = text(&ports.get(NAME, &root).stderr);
    assert!(refusal.contains("unrecognized name"), "{refusal}");
    eventually("an error", || cert(&rig, &["list"]).contains("cannot connect"));
    let shown = cert(&rig, &["show", NAME]);
    assert!(shown.contains("next attempt") && !shown.contains("issuer"), "{shown}");
    rig.expect_report("cannot connect");
    let all: serde_json::Value = serde_json::from_str(&cert(&rig, &["list", "--json"])).unwrap();
    let of = |name: &str| all.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    let left = |name: &str| of(name)["expires_in_s"].as_i64();
    assert!(of(NAME)["last_error"].as_str().unwrap().contains("cannot connect"), "{all}");
    assert!(of(NAME)["retry_at"].is_u64() && of(NAME)["not_after"].is_null(), "{all}");
    assert!(of("x.localhost")["renew_at"].as_u64() < of("x.localhost")["not_after"].as_u64(), "{all}");
    assert!(of("x.localhost")["renew_at"].is_u64() && of("x.localhost")["last_error"].is_null(), "{all}");
    assert_eq!(left(NAME), None, "there is none yet");
    assert!(left("x.localhost").is_some_and(|left| (6 * 86_400..=7 * 86_400).contains(&left)), "{all}");
    let again = cert(&rig, &["show", "x.localhost"]);
    assert!(
        again.contains("Komainu local authority") && (again.contains("in 7 d") || again.contains("in 6 d")),
        "{again}"
    );
}

#[test]
fn local_root_survives_restart_and_reload_adds_names() {
    let folder = Folder::new();
    let ports = Ports::new();
    let rig = start(folder, &ports.local_config("x.localhost"));
    let root = rig.folder.at("state/local/root.crt");
    let first = fs::read(&root).unwrap();
    assert!(ports.is_served("x.localhost", &root));
    rig.folder.write("komainu.toml", rig::as_we_are().to_owned() + &ports.local_config("y.localhost"));
    rig.signal("-HUP");
    eventually("the other name", || ports.is_served("y.localhost", &root));
    eventually("the name is gone", || !ports.is_served("x.localhost", &root));
    let folder = stopped(rig);
    // The certificates exist only in the server's memory.
    let state = folder.at("state").display().to_string();
    let said = text(&komainu().args(["cert", "list", "--state", &state]).output().unwrap().stdout);
    assert!(
        said.starts_with(&format!("no certificate is stored in {state}, but a local authority")),
        "{said}"
    );
    let rig = start(folder, &ports.local_config("x.localhost"));
    let root = rig.folder.at("state/local/root.crt");
    assert_eq!(fs::read(&root).unwrap(), first);
    assert!(ports.is_served("x.localhost", &root));
}

/// A server started as root changes to another user, who owns the state directory.
#[test]
fn state_directory_belongs_to_server_user() {
    if !rig::is_root() {
        return;
    }
    let folder = Folder::new();
    let ports = Ports::new();
    let config = format!("user = \"nobody\"\n{}", ports.local_config("x.localhost"));
    folder.write("komainu.toml", config);
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let state = rig.folder.at("state");
    let root = state.join("local/root.crt");
    assert!(ports.is_served("x.localhost", &root), "{}", rig.reported());
    let owner = fs::metadata(&state).unwrap().uid();
    let mode = fs::metadata(&state).unwrap().mode() & 0o777;
    assert_eq!((owner != 0, mode), (true, 0o700));
    assert_private(&state);
    stopped(rig);
}

#[test]
fn unwritable_state_directory_is_logged_and_server_serves() {
    let folder = Folder::new();
    let ports = Ports::new();
    folder.write("state", "a file");
    let config = format!(
        r#"
        listen = ["127.0.0.1:{}", {{ address = "127.0.0.1:{}", tls = true }}]
        acme.state = "state"
        [[site]]
        hosts = "x.localhost"
        tls = "auto"
        redirect_https = false
        [[site.route]]
        respond = "fine"
        "#,
        ports.http, ports.tls
    );
    let rig = start(folder, &config);
    eventually("a line of the log", || rig.reported().contains("no certificate can be obtained"));
    rig.expect_report("[acme] state");
    let served = curl(&["-H", "Host: x.localhost", &rig.url("/")]);
    assert_eq!(text(&served.stdout), "fine");
    assert!(ports.is_refused("x.localhost"));
}

#[test]
fn cert_list_reports_damaged_state_directory() {
    let folder = Folder::new();
    let list = |state: &Path| {
        let output = komainu().args(["cert", "list", "--state"]).arg(state).output().unwrap();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let (is_listed, said) = list(&folder.at("none"));
    assert!(!is_listed && said.contains("none cannot be read: ") && !said.contains("server"), "{said}");
    folder.write("some/file", "");
    let (is_listed, said) = list(&folder.at("some"));
    assert!(!is_listed && said.contains("no folder `certificates`"), "{said}");
    folder
        .write("state/certificates/a.test.pem", "nonsense")
        .write("state/certificates/b.test.pem", [0xff, 0xfe]);
    folder.write("state/certificates/b.test.json", "{").write("state/certificates/c.test.pem/file", "");
    let (is_listed, said) = list(&folder.at("state"));
    assert!(is_listed, "{said}");
    for (name, words) in
        [("a.test", "there is no certificate in it"), ("b.test", "UTF-8"), ("c.test", "directory")]
    {
        // The error is on the lines below the name.
        let below = said.split_once(&format!("\n{name} ")).unwrap_or_default().1;
        let below = below.split_once(".test ").map_or(below, |(own, _)| own);
        let own = below.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(own.contains("the stored certificate is not used: ") && own.contains(words), "{said}");
    }
}

/// Uses an empty `PATH` and a home directory of its own, so that the system's trust store is not changed.
#[test]
fn trust_does_not_create_an_authority() {
    let folder = Folder::new();
    folder.write("empty/file", "").write("file", "");
    for state in ["none", "empty", "file"] {
        let mut command = komainu();
        command.args(["trust", "--state"]).arg(folder.at(state)).env("PATH", folder.at("empty"));
        let output = command.env("HOME", folder.at("empty")).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let expected = format!("there is no local authority in {}: start", folder.at(state).display());
        assert!(said.contains(&expected), "{said}");
    }
    assert!(!folder.at("none").exists());
    assert_eq!(fs::read_dir(folder.at("empty")).unwrap().count(), 1);
}

#[test]
fn broken_local_authority_is_reported() {
    let folder = Folder::new();
    let ports = Ports::new();
    folder.write("state/local/authority.pem", "nonsense");
    let rig = start(folder, &ports.local_config("x.localhost"));
    eventually("an error", || rig.reported().contains("state/local/authority.pem cannot be read"));
    rig.expect_report("remove the file");
}

/// Client connections trigger certificates below a wildcard for names that the `ask` URL confirms.
#[test]
fn on_demand_certificate_is_issued_after_ask_confirms_name() {
    let folder = Folder::new();
    let ports = Ports::new();
    let Some(pebble) = ports.pebble(&folder) else { return };
    let root = issuing_root(&pebble, &folder);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let acme = format!("challenge = \"http-01\"\nask = \"http://{}/\"", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&client).read_line(&mut line);
            let status = if line.contains("domain=b.") { "200 OK" } else { "404 Not Found" };
            let _ = write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let config = ports.config(&pebble.directory, &pebble.directory_root(), &acme);
    let rig = start(folder, &config.replace(NAME, "*.komainu-test.com"));
    assert!(ports.is_refused("b.komainu-test.com"), "there is none yet");
    assert!(ports.is_refused("c.komainu-test.com"));
    eventually("a certificate", || ports.is_served("b.komainu-test.com", &root));
    eventually("a line of the log", || {
        rig.reported().contains("c.komainu-test.com: `ask` refuses it with status 404")
    });
    assert!(ports.is_refused("c.komainu-test.com"));
    assert_eq!(pebble.issued(), 1, "{}", rig.reported());
}

/// Servers older than `komainu cert` do not know the command.
#[test]
fn cert_list_reports_server_older_than_the_command() {
    // A nested directory, so that other tests do not find this server.
    let folder = Folder::new();
    let sockets = folder.at("run");
    fs::create_dir(&sockets).unwrap();
    let older = UnixListener::bind(sockets.join("4000000.sock")).unwrap();
    std::thread::spawn(move || {
        for client in older.incoming() {
            let mut client = client.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&client).read_line(&mut line);
            let _ = writeln!(
                client,
                "{{\"error\": \"unknown command \\\"certificates\\\": send \\\"status\\\"\"}}"
            );
        }
    });
    let list = |arguments: &[&str]| {
        let mut command = komainu();
        command.args(["cert", "list"]).args(arguments).env("RUNTIME_DIRECTORY", &sockets);
        let output = command.output().unwrap();
        (output.status.success(), text(&output.stderr))
    };
    let (is_listed, said) = list(&["--pid", "4000000"]);
    assert!(
        !is_listed && said.contains("process 4000000: this server is older than `komainu cert`"),
        "{said}"
    );
    // With another server present, this is only a warning.
    let mut command = komainu();
    command.env("RUNTIME_DIRECTORY", &sockets).args(["run", "--listen", "127.0.0.1:0"]).arg(folder.path());
    let rig = Rig::start(command, Folder::new());
    let (is_listed, said) = list(&[]);
    assert!(is_listed && said.contains("warning: process 4000000: this server is older"), "{said}");
    drop(rig);
}
