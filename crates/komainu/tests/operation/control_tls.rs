//! The control listener with TLS: its certificate, roles of client certificates, and reloads of both.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::certified::{folder, openssl};
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, kinds, komainu, listen, text};

const NAMES: [(&str, &str); 4] = [("localhost", "ec"), ("deploy", "ec"), ("chief", "ec"), ("guest", "ec")];
const TLS: &str = "tls = { certificate = \"localhost.pem\", key = \"localhost.key\", client = { ca = \"ca.pem\", required = false } }\n";
const CLIENTS: &str = r#"
    [[control.client]]
    name = "deployment"
    role = "operate"
    san = "DNS:deploy"
    [[control.client]]
    name = "the chief"
    role = "admin"
    subject = "CN=chief"
"#;

/// A configuration with these directives of `[control]`, followed by further tables.
fn configured(control: &str, tables: &str) -> String {
    format!(
        r#"
        threads = 1

        [log]
        level = "info"

        [control]
        listen = "127.0.0.1:0"
        {control}
        {tables}

        [[route]]
        respond = "x"
        "#
    )
}

fn start(folder: Folder, control: &str, tables: &str) -> Rig {
    Rig::config(folder, &configured(control, tables))
}

/// Port of the control listener.
fn port(rig: &Rig) -> String {
    let said = "the control listener is https://127.0.0.1:";
    eventually("the control listener is there", || rig.reported().contains(said));
    rig.reported().rsplit(said).next().unwrap().split_whitespace().next().unwrap().to_owned()
}

/// Sends a request with curl and returns the status and the body, or an error. `who` names the client
/// certificate; empty for none.
fn ask(rig: &Rig, port: &str, who: &str, path: &str, more: &[&str]) -> Result<(u16, String), String> {
    let at = |name: &str| rig.folder.at(name).to_str().unwrap().to_owned();
    let (url, ca) = (format!("https://localhost:{port}{path}"), at("ca.pem"));
    let cert = at(&format!("{who}.pem"));
    let key = at(&format!("{who}.key"));
    let mut arguments = vec!["-4", "--cacert", &ca, "-w", "\n%{http_code}"];
    if !who.is_empty() {
        arguments.extend(["--cert", &cert, "--key", &key]);
    }
    arguments.extend(more);
    arguments.push(&url);
    let Output { status, stdout, stderr } = curl(&arguments);
    if !status.success() {
        return Err(text(&stderr));
    }
    let said = text(&stdout);
    let (body, code) = said.rsplit_once('\n').unwrap();
    Ok((code.parse().unwrap(), body.to_owned()))
}

const POST: [&str; 4] = ["-H", "Content-Type: application/json", "-d", "{}"];
const PUT: [&str; 8] =
    ["-X", "PUT", "-H", "Content-Type: application/json", "-H", "If-Match: *", "-d", "\"60s\""];

#[test]
fn client_certificate_determines_role_on_control_listener() {
    let rig = start(folder(&NAMES), &format!("open = false\n{TLS}"), CLIENTS);
    let port = port(&rig);
    let status = |who: &str, path: &str, more: &[&str]| ask(&rig, &port, who, path, more).unwrap().0;
    let drain = "/v1/config/timeouts/drain?persist=false";
    for (who, wanted) in [
        ("", [403, 403, 403, 403]),
        ("guest", [403; 4]),
        ("deploy", [200, 403, 200, 403]),
        ("chief", [200; 4]),
    ] {
        let answers = [
            status(who, "/v1/status", &[]),
            status(who, "/v1/config", &["--http2"]),
            status(who, "/v1/logs/reopen", &POST),
            status(who, drain, &PUT),
        ];
        assert_eq!(answers, wanted, "{who}");
    }
    let (_, said) = ask(&rig, &port, "guest", "/metrics", &[]).unwrap();
    assert!(said.contains("[[control.client]]"), "{said}");
    let (_, said) = ask(&rig, &port, "deploy", drain, &PUT).unwrap();
    assert!(said.contains("needs the role `admin`") && said.contains("`deployment`"), "{said}");
    let (_, audit) = ask(&rig, &port, "chief", "/v1/audit", &[]).unwrap();
    assert!(audit.contains("the chief") && audit.contains("deployment"), "{audit}");
    // Any host name is accepted: a page of another origin has no client certificate to use.
    assert_eq!(status("deploy", "/v1/status", &["-H", "Host: ops.example"]), 200);
    // Without TLS nothing is readable.
    let clear = curl(&["-s", &format!("http://127.0.0.1:{port}/v1/status")]);
    assert!(!text(&clear.stdout).contains("pid"), "{}", text(&clear.stdout));
    let (_, document) = ask(&rig, &port, "deploy", "/v1/openapi.json", &[]).unwrap();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["components"]["securitySchemes"]["certificate"]["type"], "mutualTLS");
}

#[test]
fn control_listener_can_require_client_certificates() {
    let folder = folder(&NAMES);
    openssl(
        &folder,
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=chief \
         -addext basicConstraints=critical,CA:FALSE -keyout forged.key -out forged.pem 2>&1",
    );
    let rig = start(folder, &TLS.replace(", required = false", ""), CLIENTS);
    let port = port(&rig);
    assert!(ask(&rig, &port, "", "/v1/status", &[]).is_err());
    assert!(ask(&rig, &port, "forged", "/v1/status", &[]).is_err());
    // The listener is open: any valid certificate may read.
    assert_eq!(ask(&rig, &port, "guest", "/v1/status", &[]).unwrap().0, 200);
    assert_eq!(ask(&rig, &port, "guest", "/v1/logs/reopen", &POST).unwrap().0, 403);
    assert_eq!(ask(&rig, &port, "chief", "/v1/logs/reopen", &POST).unwrap().0, 200);
}

/// Runs the program with certificates of the directory.
fn run(rig: &Rig, arguments: &[&str]) -> (bool, String) {
    let mut command: Command = komainu();
    command.args(arguments).env_remove("KOMAINU_TOKEN_FILE").current_dir(rig.folder.path());
    let done = command.output().unwrap();
    (done.status.success(), text(&done.stdout) + &text(&done.stderr))
}

#[test]
fn ctl_status_and_top_speak_tls() {
    let rig = start(folder(&NAMES), &format!("open = false\n{TLS}"), CLIENTS);
    let port = port(&rig);
    let to = format!("https://localhost:{port}");
    let pid = format!("\"pid\": {}", rig.child.id());
    let deploy = ["--cacert", "ca.pem", "--cert", "deploy.pem", "--key", "deploy.key"];
    let with = |first: &[&str], more: &[&str]| run(&rig, &[first, more].concat());
    let (good, said) = with(&["ctl", "--to", &to, "--json", "status"], &deploy);
    assert!(good && said.contains(&pid), "{said}");
    let (good, said) = with(&["ctl", "--to", &to, "reload"], &deploy);
    assert!(good, "{said}");
    let (good, said) = with(&["ctl", "--to", &to, "config", "set", "timeouts/drain", "60s"], &deploy);
    assert!(!good && said.contains("needs the role `admin`"), "{said}");
    let (good, said) = with(&["status", &to, "--json"], &deploy);
    assert!(good && said.contains(&pid), "{said}");
    let (good, said) = with(&["top", &to, "--once", "--json", "--every", "250ms"], &deploy);
    assert!(good && said.contains("\"server\""), "{said}");
    // The certificate's file may contain the key.
    let both = ["deploy.pem", "deploy.key"].map(|name| fs::read_to_string(rig.folder.at(name)).unwrap());
    rig.folder.write("both.pem", both.concat());
    let (good, said) = with(&["status", &to, "--json"], &["--cacert", "ca.pem", "--cert", "both.pem"]);
    assert!(good && said.contains(&pid), "{said}");
    // Errors name the cause.
    for (arguments, part) in [
        (&["status", &to][..], "issuer is not trusted"),
        (&["status", &to, "--cacert", "ca.pem"], "403"),
        (&["ctl", "--to", &to, "--cacert", "ca.pem", "status"], "[[control.client]]"),
        (&["status", &to, "--cacert", "none.pem"], "none.pem"),
        (&["status", &to, "--cacert", "ca.pem", "--cert", "deploy.pem", "--key", "ca.pem"], "deploy.pem"),
        (&["status", &format!("127.0.0.1:{port}"), "--cacert", "ca.pem"], "https://"),
        (&["ctl", "--cacert", "ca.pem", "status"], "name its address too"),
        (&["top", "--cert", "deploy.pem", "--once"], "name its address too"),
    ] {
        let (good, said) = run(&rig, arguments);
        assert!(!good && said.contains(part), "{arguments:?}: {said}");
    }
    let address = rig.address;
    let (good, said) = run(&rig, &["status", &format!("https://127.0.0.1:{port}"), "--cacert", "ca.pem"]);
    assert!(!good && said.contains("for another name"), "{said}");
    let (good, said) = run(&rig, &["status", &format!("https://{address}"), "--cacert", "ca.pem"]);
    assert!(!good && !said.contains("panicked"), "{said}");
}

#[test]
fn reload_replaces_control_certificates_and_toggles_tls() {
    let rig = start(folder(&NAMES), TLS, CLIENTS);
    let port = port(&rig);
    let file = rig.folder.at("komainu.toml");
    let first = fs::read_to_string(&file).unwrap();
    let mut kept = kept(&rig, &port);
    assert_eq!(kept.status(), 200);
    // A new certificate of the listener keeps open connections.
    openssl(
        &rig.folder,
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=second -keyout second.key -out second.csr 2>&1
         openssl x509 -req -in second.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile localhost.ext -out second.pem 2>&1",
    );
    let reload = || {
        let before = rig.reported().matches("was read again").count();
        rig.signal("-HUP");
        eventually("the configuration is in force", || {
            rig.reported().matches("was read again").count() > before
        });
    };
    fs::write(&file, first.replace("localhost.pem", "second.pem").replace("localhost.key", "second.key"))
        .unwrap();
    reload();
    assert_eq!(kept.status(), 200);
    let shown = curl(&["-4", "-v", "-k", &format!("https://localhost:{port}/v1/status")]);
    assert!(text(&shown.stderr).contains("CN=second"), "{}", text(&shown.stderr));
    // New requirements for clients: an existing connection is closed after its next response.
    let strict = first.replace(", required = false", ", required = true");
    fs::write(&file, &strict).unwrap();
    reload();
    assert_eq!(kept.status(), 421);
    assert!(kept.is_over());
    assert!(ask(&rig, &port, "", "/v1/status", &[]).is_err());
    assert_eq!(ask(&rig, &port, "guest", "/v1/status", &[]).unwrap().0, 200);
    // A key that does not match rejects the new configuration.
    fs::write(&file, first.replace("localhost.key", "guest.key")).unwrap();
    rig.signal("-HUP");
    eventually("it is refused", || rig.reported().contains("the configuration was not changed"));
    rig.expect_report("`control.tls`");
    assert_eq!(ask(&rig, &port, "guest", "/v1/status", &[]).unwrap().0, 200);
    // TLS is switched off at the same address, and on again.
    let (start, rest) = first.split_once("tls = {").unwrap();
    let tables = rest.split_once('\n').unwrap().1.replace(CLIENTS, "");
    fs::write(&file, format!("{start}{tables}")).unwrap();
    reload();
    let clear = curl(&["-s", &format!("http://127.0.0.1:{port}/v1/status")]);
    assert!(text(&clear.stdout).contains("pid"), "{}", text(&clear.stdout));
    fs::write(&file, &first).unwrap();
    reload();
    assert_eq!(ask(&rig, &port, "", "/v1/status", &[]).unwrap().0, 200);
}

/// A persistent connection through TLS.
struct Kept(std::process::Child);

fn kept(rig: &Rig, port: &str) -> Kept {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Kept(client.current_dir(rig.folder.path()).spawn().unwrap())
}

impl Kept {
    /// Sends another request and returns its status.
    fn status(&mut self) -> u16 {
        let request = "GET /v1/upstreams HTTP/1.1\r\nHost: localhost\r\n\r\n";
        self.0.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        let output = self.0.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !bytes.ends_with(b"\r\n\r\n") {
            output.read_exact(&mut byte).unwrap();
            bytes.push(byte[0]);
        }
        let head = text(&bytes).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap().split_whitespace().next().unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        output.read_exact(&mut body).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Whether the server has closed the connection.
    fn is_over(&mut self) -> bool {
        matches!(self.0.stdout.as_mut().unwrap().read(&mut [0]), Ok(0))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The supervisor reads the key, which only root may read.
#[test]
fn control_tls_key_readable_only_by_root_is_loaded() {
    for kind in kinds() {
        let folder = folder(&NAMES);
        fs::set_permissions(folder.at("localhost.key"), fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("{}{kind}{}", listen(&folder), configured(TLS, CLIENTS));
        folder.write("komainu.toml", text);
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        let rig = Rig::start(command, folder);
        let port = port(&rig);
        assert_eq!(ask(&rig, &port, "deploy", "/v1/reload", &POST).unwrap().0, 200, "{kind}");
        assert_eq!(ask(&rig, &port, "deploy", "/v1/status", &[]).unwrap().0, 200, "{kind}");
    }
}

#[test]
fn check_verifies_control_tls_files() {
    let folder = folder(&NAMES);
    let check = |control: &str| {
        folder.write("komainu.toml", format!("{}{}", as_we_are(), configured(control, CLIENTS)));
        let done = komainu().args(["check", "--config"]).arg(folder.at("komainu.toml")).output().unwrap();
        (done.status.success(), text(&done.stderr))
    };
    assert_eq!(check(TLS), (true, String::new()));
    for (control, part) in [
        (TLS.replace("localhost.key", "none.key"), "none.key"),
        (TLS.replace("localhost.key", "guest.key"), "`control.tls`"),
        (TLS.replace("ca.pem", "localhost.key"), "client.ca"),
    ] {
        let (good, said) = check(&control);
        assert!(!good && said.contains(part), "{control}: {said}");
    }
}
