//! HTTPS: the real binary tested with openssl and curl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::certified::{GET, LISTEN, STAFF, fetch, folder, openssl, s_client, site, start};
use crate::rig;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, connect, curl, eventually, komainu, text};

#[test]
fn run_serves_directory_with_certificate_from_command_line() {
    let folder = Folder::new();
    folder.certify().write("www/a.txt", "a page").write("www/large", vec![b'x'; 3_000_000]);
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "--threads", "2", "--log-level", "info"]);
    command.arg("--tls-certificate").arg(folder.at("cert.pem")).arg("--tls-key").arg(folder.at("key.pem"));
    command.arg(folder.at("www"));
    let rig = Rig::start(command, folder);
    let ca = rig.folder.at("cert.pem");
    let url = |path: &str| format!("https://localhost:{}{path}", rig.address.port());
    let get = |path: &str| curl(&["--cacert", ca.to_str().unwrap(), &url(path)]);
    assert_eq!(text(&get("/a.txt").stdout), "a page");
    assert_eq!(get("/large").stdout, vec![b'x'; 3_000_000]);
    for (argument, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let format = "|%{http_version} %{scheme}";
        let got = curl(&[argument, "-w", format, "--cacert", ca.to_str().unwrap(), &url("/large")]).stdout;
        let (body, end) = got.split_at(3_000_000);
        assert!(body.iter().all(|&byte| byte == b'x'));
        assert_eq!(text(end), format!("|{version} HTTPS"));
    }
    let plain = rig.get("/a.txt");
    plain.expect_status(400);
    assert!(plain.text().contains("https://"), "{}", plain.text());
    rig.expect_report("the client speaks HTTP without TLS");
}

#[test]
fn sni_selects_certificate_and_unknown_names_are_refused() {
    let folder = folder(&[("a.test", "ec"), ("rsa.a.test", "rsa"), ("b.test", "ec")]);
    let both = "tls = { certificate = [\"a.test.pem\", \"rsa.a.test.pem\"], key = [\"a.test.key\", \"rsa.a.test.key\"] }";
    let one = "tls = { certificate = \"b.test.pem\", key = \"b.test.key\" }";
    let rig = start(folder, &format!("{LISTEN}{}{}", site("a.test", both), site("b.test", one)));
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
    assert_eq!(fetch(&rig, "b.test", &["--tlsv1.2", "--tls-max", "1.2"]).unwrap(), "this is b.test");
    let rsa = s_client(&rig, "-servername a.test -sigalgs RSA-PSS+SHA256:RSA+SHA256 -CAfile ca.pem", GET);
    assert!(rsa.contains("CN = rsa.a.test") && rsa.contains("this is a.test"), "{rsa}");
    let stranger = s_client(&rig, "-servername c.test", GET);
    assert!(stranger.contains("unrecognized name"), "{stranger}");
    let nameless = s_client(&rig, "-noservername", GET);
    assert!(nameless.contains("unrecognized name"), "{nameless}");
    eventually("both are logged", || {
        let log = rig.reported();
        log.contains("no site has this name (server name \"c.test\")")
            && log.contains("the client names no host")
    });
}

#[test]
fn tls_versions_and_cipher_suites_are_negotiated() {
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    let strict = format!("{LISTEN}tls.min = \"1.3\"\n{}", site("a.test", tls));
    let rig = start(folder(&[("a.test", "ec")]), &strict);
    let say =
        |arguments: &str| s_client(&rig, &format!("-servername a.test -CAfile ca.pem {arguments}"), GET);
    let modern = say("-tls1_3");
    assert!(modern.contains("TLS_AES_128_GCM_SHA256") && modern.contains("this is a.test"), "{modern}");
    let chacha = say("-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256");
    assert!(chacha.contains("Cipher is TLS_CHACHA20_POLY1305_SHA256"), "{chacha}");
    let old = say("-tls1_2");
    assert!(old.contains("protocol version") && !old.contains("this is"), "{old}");
    eventually("it is logged", || rig.reported().contains("no shared TLS version"));
    let alpn = say("-alpn foo,http/1.1");
    assert!(alpn.contains("ALPN protocol: http/1.1"), "{alpn}");
    let alpn = say("-alpn http/1.1,h2");
    assert!(alpn.contains("ALPN protocol: h2"), "{alpn}");
    let alpn = say("-alpn http/1.0");
    assert!(alpn.contains("ALPN protocol: http/1.0") && alpn.contains("this is a.test"), "{alpn}");
    let lenient = start(folder(&[("a.test", "ec")]), &format!("{LISTEN}{}", site("a.test", tls)));
    let old = s_client(&lenient, "-servername a.test -tls1_2", GET);
    assert!(old.contains("ECDHE-ECDSA-AES128-GCM-SHA256") && old.contains("this is a.test"), "{old}");
    for (arguments, agreed) in [
        ("-tls1_3 -groups X25519:P-256", "X25519, 253 bits"),
        ("-tls1_3 -groups P-384:P-256", "ECDH, "),
        ("-tls1_2 -groups P-256", "ECDH, prime256v1, 256 bits"),
        ("-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384", "Cipher is TLS_AES_256_GCM_SHA384"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384", "Cipher is ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("-tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305", "Cipher is ECDHE-ECDSA-CHACHA20-POLY1305"),
        // The server's order of preference applies.
        (
            "-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256",
            "Cipher is TLS_AES_128_GCM_SHA256",
        ),
    ] {
        let said = s_client(&lenient, &format!("-servername a.test {arguments}"), GET);
        assert!(said.contains(agreed) && said.contains("this is a.test"), "{arguments}: {said}");
    }
    let no_group = s_client(&lenient, "-servername a.test -groups P-521", GET);
    assert!(!no_group.contains("this is"), "{no_group}");
    eventually("it is logged", || lenient.reported().contains("no shared key exchange group"));
    let ancient = s_client(&lenient, "-servername a.test -tls1_1 -cipher DEFAULT@SECLEVEL=0", GET);
    assert!(!ancient.contains("this is"), "{ancient}");
    let no_cipher = s_client(&lenient, "-servername a.test -tls1_2 -cipher AES128-SHA", GET);
    assert!(no_cipher.contains("handshake failure"), "{no_cipher}");
    eventually("it is logged", || lenient.reported().contains("no shared cipher suite"));
}

#[test]
fn sessions_resume_on_servers_that_share_ticket_keys() {
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    let shared = folder(&[("a.test", "ec")]);
    openssl(&shared, "openssl rand -out ticket.key 48; openssl rand -out other.key 48");
    let with = |keys: &str| format!("{LISTEN}tls.ticket_keys = {keys}\n{}", site("a.test", tls));
    // Each server removes its directory when it is dropped, so each gets a copy.
    let copy = |from: &Path| {
        let folder = Folder::new();
        openssl(&folder, &format!("cp {}/* .", from.display()));
        folder
    };
    for version in ["-tls1_3", "-tls1_2"] {
        let first = start(copy(shared.path()), &with("\"ticket.key\""));
        let session = shared.at("session");
        // TLS 1.3 tickets arrive together with the response.
        let out =
            s_client(&first, &format!("-servername a.test {version} -sess_out {}", session.display()), GET);
        assert!(out.contains("this is a.test") && out.contains("New, TLS"), "{out}");
        drop(first);
        let resume = |rig: &Rig| {
            let out =
                s_client(rig, &format!("-servername a.test {version} -sess_in {}", session.display()), GET);
            assert!(out.contains("this is a.test"), "{out}");
            out.contains("Reused, TLS")
        };
        let again = start(copy(shared.path()), &with("\"ticket.key\""));
        assert!(resume(&again), "{version}: after a restart");
        let rotated = start(copy(shared.path()), &with("[\"other.key\", \"ticket.key\"]"));
        assert!(resume(&rotated), "{version}: another server, that has the key beside a new one");
        let stranger = start(copy(shared.path()), &with("\"other.key\""));
        assert!(!resume(&stranger), "{version}");
        let off = format!("{LISTEN}tls.tickets = false\n{}", site("a.test", tls));
        let off = start(copy(shared.path()), &off);
        assert!(!resume(&off), "{version}: tickets off");
    }
}

const SUBJECT: &str = "response_headers.set = { X-Cipher = \"$tls_cipher\", X-Client = \"$tls_client_verify $tls_client_subject|$tls_client_san|$tls_version\" }\n";

#[test]
fn client_certificates_are_verified_per_site() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec"), ("c.test", "ec"), ("d.test", "ec")]);
    openssl(&folder, STAFF);
    let tls = |name: &str, client: &str| {
        format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\"{client} }}\n{SUBJECT}")
    };
    let required = tls("a.test", ", client = { ca = \"staff.pem\", crl = \"staff.crl\" }");
    let optional = tls("b.test", ", client = { ca = \"staff.pem\", required = false }");
    let unverified = tls("d.test", ", client = { ca = \"staff.pem\", unverified = true }");
    let sites = [
        site("a.test", &required),
        site("b.test", &optional),
        site("c.test", &tls("c.test", "")),
        site("d.test", &unverified),
    ]
    .concat();
    let rig = start(folder, &format!("{LISTEN}{sites}"));
    let by = |name: &str, who: &str| {
        let certificate = rig.folder.at(&format!("{who}.pem"));
        let key = rig.folder.at(&format!("{who}.key"));
        fetch(&rig, name, &["-i", "--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()])
    };
    let alice = by("a.test", "alice").unwrap();
    assert!(alice.contains("x-client: SUCCESS CN=alice,O=Staff|email:alice@a.test|TLSv1.3"), "{alice}");
    assert!(alice.contains("x-cipher: TLS_AES_128_GCM_SHA256"), "{alice}");
    assert!(fetch(&rig, "a.test", &[]).is_err(), "without one");
    for (who, reason) in
        [("mallory", "revoked"), ("nobody", "issuer of the client's certificate is not trusted")]
    {
        assert!(by("a.test", who).is_err(), "{who}");
        eventually(who, || rig.reported().contains(reason));
    }
    let mallory = by("b.test", "mallory").unwrap();
    assert!(mallory.contains("x-client: SUCCESS CN=mallory,O=Staff"), "no list says otherwise: {mallory}");
    let nobody = fetch(&rig, "b.test", &["-i"]).unwrap();
    assert!(nobody.contains("x-client: NONE ||TLSv1.3"), "{nobody}");
    // Any certificate will do, and none is believed.
    for who in ["alice", "mallory", "nobody"] {
        let any = by("d.test", who).unwrap();
        assert!(any.contains("x-client: NONE ||TLSv1.3"), "{who}: {any}");
    }
    assert!(fetch(&rig, "d.test", &["-i"]).unwrap().contains("x-client: NONE ||TLSv1.3"));
    // A connection established for one site is refused (421) for another with different client requirements.
    let request = GET.replace("a.test", "c.test");
    let misdirected = s_client(&rig, "-servername b.test", &request);
    assert!(misdirected.contains("HTTP/1.1 421 "), "{misdirected}");
    let smuggled = s_client(&rig, "-servername c.test", GET);
    assert!(smuggled.contains("HTTP/1.1 421 ") && !smuggled.contains("this is a.test"), "{smuggled}");
    // Without TLS no certificate is verified, whatever a proxy claims.
    let bare = Folder::new();
    for name in ["a.test.pem", "a.test.key", "staff.pem", "staff.crl"] {
        bare.write(name, std::fs::read(rig.folder.at(name)).unwrap());
    }
    let secured = "listen = [\"127.0.0.1:0\", { address = \"[::1]:0\", tls = true }]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let site = site("a.test", &format!("redirect_https = false\n{required}"));
    let rig = start(bare, &format!("{secured}{site}"));
    for more in ["", "X-Forwarded-Proto: https\r\n"] {
        for path in ["/", "/.well-known/acme-challenge/f"] {
            let mut stream = connect(rig.address);
            write!(stream, "GET {path} HTTP/1.1\r\nHost: a.test\r\n{more}Connection: close\r\n\r\n").unwrap();
            rig::read_answer(&mut stream).expect_status(421);
        }
    }
}

#[test]
fn scope_keeps_sites_of_others_off_a_connection() {
    let names = ["a.test", "b.test", "c.test", "d.test"];
    let folder = folder(&names.map(|name| (name, "ec")));
    let scoped = |name: &str, scope: &str| {
        site(name, &format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\"{scope} }}"))
    };
    let sites = [
        scoped("a.test", ", scope = \"one\""),
        scoped("b.test", ", scope = \"two\""),
        scoped("c.test", ", scope = \"one\""),
        scoped("d.test", ""),
    ];
    let rig = start(folder, &format!("{LISTEN}{}", sites.concat()));
    for (named, host, is_served) in [
        ("a.test", "a.test", true),
        ("a.test", "c.test", true),
        ("a.test", "b.test", false),
        ("b.test", "a.test", false),
        ("d.test", "a.test", false),
        // A site without a scope takes every connection.
        ("a.test", "d.test", true),
    ] {
        let request = GET.replace("a.test", host);
        let shown = s_client(&rig, &format!("-servername {named}"), &request);
        assert_eq!(shown.contains(&format!("this is {host}")), is_served, "{named} {host}: {shown}");
        assert_eq!(shown.contains("HTTP/1.1 421 "), !is_served, "{named} {host}: {shown}");
    }
}

#[test]
fn plain_requests_are_redirected_and_hsts_is_sent() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec")]);
    let one =
        "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }\nhsts = true\nsecurity_headers = true";
    let other = "tls = { certificate = \"b.test.pem\", key = \"b.test.key\" }\nredirect_https = false\n\
        hsts = \"max-age=60; includeSubDomains\"";
    let listen = "listen = [\"127.0.0.1:0\", { address = \"127.0.0.1:0\", tls = true }]\n\
        trusted_proxies = [\"127.0.0.2\"]\n";
    let sites = [site("a.test", one), site("b.test", other), site("c.test", "tls = false")].concat();
    folder.write("komainu.toml", format!("{}{listen}{sites}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut port = |scheme: &str| -> u16 {
        let line = lines.next().unwrap().unwrap();
        let (_, address) =
            line.split_once(&format!("{scheme}://127.0.0.1:")).unwrap_or_else(|| panic!("{line}"));
        address.trim().parse().unwrap()
    };
    let plain = port("http");
    let secure = port("https");
    let ask = |host: &str, path: &str| {
        let mut stream = connect(([127, 0, 0, 1], plain).into());
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        rig::Answer::parse(bytes)
    };
    let redirected = ask("a.test:80", "/some%20where?x=1");
    let location = format!("https://a.test:{secure}/some%20where?x=1");
    redirected.expect_status(308).expect_field("Location", &location);
    redirected.expect_no_field("Strict-Transport-Security");
    let marked = ask("a.test", "/.well-known/acme-challenge/token");
    marked.expect(200, "this is a.test").expect_field("X-Frame-Options", "SAMEORIGIN");
    ask("b.test", "/").expect(200, "this is b.test").expect_no_field("Strict-Transport-Security");
    ask("c.test", "/").expect(200, "this is c.test").expect_no_field("X-Frame-Options");
    let ca = folder.at("ca.pem");
    let through = |name: &str| {
        let resolve = format!("{name}:{secure}:127.0.0.1");
        let url = format!("https://{name}:{secure}/");
        let head = text(&curl(&["-i", "--cacert", ca.to_str().unwrap(), "--resolve", &resolve, &url]).stdout);
        head.to_ascii_lowercase()
    };
    assert!(
        through("a.test").contains("strict-transport-security: max-age=31536000\r\n"),
        "{}",
        through("a.test")
    );
    assert!(through("b.test").contains("strict-transport-security: max-age=60; includesubdomains\r\n"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn redirects_are_turned_off_for_all_sites_and_on_again_for_one() {
    let secured = |name: &str| format!("tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\" }}\n");
    let listen =
        "redirect_https = false\nlisten = [\"127.0.0.1:0\", { address = \"127.0.0.1:0\", tls = true }]\n";
    let sites = site("a.test", &secured("a.test"))
        + &site("b.test", &(secured("b.test") + "redirect_https = true\n"));
    let rig = start(folder(&[("a.test", "ec"), ("b.test", "ec")]), &format!("{listen}{sites}"));
    for (host, status) in [("a.test", 200), ("b.test", 308)] {
        let mut stream = connect(rig.listens);
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        rig::read_answer(&mut stream).expect_status(status);
    }
}

#[test]
fn client_certificate_rejection_reason_is_logged() {
    let folder = folder(&[("a.test", "ec")]);
    openssl(&folder, STAFF);
    openssl(
        &folder,
        "exec 2>&1
        sign() { openssl x509 -req -in alice.csr -CA staff.pem -CAkey staff.key -CAcreateserial \"$@\"; }
        printf 'extendedKeyUsage=serverAuth\n' > server.ext
        printf 'basicConstraints=critical,CA:TRUE\n' > authority.ext
        sign -days -1 -extfile alice.ext -out expired.pem
        sign -days 2 -out version1.pem
        sign -days 2 -extfile server.ext -out purpose.pem
        sign -days 2 -extfile authority.ext -out authority.pem
        cat alice.key | tee expired.key version1.key purpose.key authority.key > /dev/null",
    );
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\", client = { ca = \"staff.pem\", crl = \"staff.crl\" } }";
    let rig = start(folder, &format!("{LISTEN}log.level = \"info\"\n{}", site("a.test", tls)));
    for (who, reason) in [
        ("expired", "the client's certificate has expired"),
        ("version1", "the client's certificate is of X.509 version 1"),
        ("purpose", "the client's certificate is for another purpose: its extendedKeyUsage lacks clientAuth"),
        ("authority", "the client's certificate is that of an authority (CA:TRUE)"),
        ("mallory", "the client's certificate is revoked"),
        ("nobody", "the issuer of the client's certificate is not trusted"),
    ] {
        let certificate = rig.folder.at(&format!("{who}.pem"));
        let key = rig.folder.at(&format!("{who}.key"));
        let before = rig.reported().len();
        let shown = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
        assert!(fetch(&rig, "a.test", &shown).is_err(), "{who}");
        eventually(who, || rig.reported()[before..].contains(reason));
    }
    assert!(!rig.reported().contains("certificate is not valid"), "{}", rig.reported());
}

#[test]
fn reload_applies_new_certificates_and_rejects_bad_ones() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec")]);
    openssl(&folder, "cp a.test.pem cert.pem; cp a.test.key key.pem");
    let tls = "tls = { certificate = \"cert.pem\", key = \"key.pem\" }";
    let rig = start(folder, &format!("{LISTEN}{}", site("a.test", tls)));
    let shown = || s_client(&rig, "-servername a.test -CAfile ca.pem -showcerts", GET);
    assert!(shown().contains("CN = a.test"));
    std::fs::write(rig.folder.at("cert.pem"), "no certificate").unwrap();
    rig.signal("-HUP");
    eventually("it is refused", || rig.reported().contains("the configuration was not changed"));
    rig.expect_report("cert.pem: there is no certificate");
    assert!(shown().contains("CN = a.test"), "the certificate stays");
    openssl(&rig.folder, "cp b.test.pem cert.pem");
    rig.signal("-HUP");
    eventually("another one's key", || rig.reported().contains("does not belong to the certificate"));
    openssl(&rig.folder, "cp b.test.key key.pem");
    rig.signal("-HUP");
    eventually("the new one is shown", || shown().contains("CN = b.test"));
    // Reloading a certificate that clients reject prints a warning.
    let reload = || {
        let output = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    openssl(&rig.folder, "cp a.test.pem cert.pem; cp a.test.key key.pem");
    assert_eq!(reload(), ("the new configuration is in use\n".into(), String::new()));
    openssl(
        &rig.folder,
        "exec 2>&1
        openssl x509 -req -in a.test.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days -1 -extfile a.test.ext -out cert.pem",
    );
    let (done, warned) = reload();
    assert_eq!(done, "the new configuration is in use\n");
    assert!(warned.starts_with("warning: `tls` (the site in line "), "{warned}");
    assert!(warned.contains("the certificate of a.test has expired, on 20"), "{warned}");
}

#[test]
fn certificate_errors_are_reported_at_start() {
    let folder = folder(&[("a.test", "ec")]);
    let check = |tls: &str| {
        folder.write("komainu.toml", format!("{}{LISTEN}{}", as_we_are(), site("a.test", tls)));
        let output = komainu().arg("start").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let missing = check("tls = { certificate = \"none.pem\" }");
    assert!(missing.contains("none.pem") && missing.contains("komainu.toml:6:"), "{missing}");
    let keyless = check("tls = { certificate = \"a.test.pem\" }");
    assert!(keyless.contains("no private key"), "{keyless}");
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    folder.write("ticket.key", "not a key");
    folder.write(
        "komainu.toml",
        format!("{}{LISTEN}tls.ticket_keys = \"ticket.key\"\n{}", as_we_are(), site("a.test", tls)),
    );
    for command in ["check", "start"] {
        let output = komainu().arg(command).arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("ticket.key"), "{command}: {said}");
    }
    // Also where no site needs them.
    folder.write(
        "komainu.toml",
        format!(
            "{}listen = \"127.0.0.1:0\"\ntls.ticket_keys = \"ticket.key\"\n[[route]]\nrespond = 204\n",
            as_we_are()
        ),
    );
    let output = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("ticket.key"), "{said}");
    let without = check("tls = false");
    assert!(without.contains("no site has `tls`") && without.contains("certificate = "), "{without}");
}

/// Warnings that `komainu check` prints for a valid configuration.
fn doubts(folder: &Folder, text: &str) -> String {
    folder.write("komainu.toml", format!("{}{text}", as_we_are()));
    let output = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    let said = rig::text(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn check_warns_of_certificates_that_clients_refuse() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec")]);
    openssl(
        &folder,
        "exec 2>&1; mkdir certs; cp b.test.pem b.test.key certs/
        openssl req -new -key a.test.key -subj /CN=a.test -out old.csr
        printf 'subjectAltName=DNS:a.test\n' > old.ext
        openssl x509 -req -in old.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days -1 -extfile old.ext -out old.pem
        openssl req -x509 -key a.test.key -subj /CN=a.test -days 2 -out cn.pem",
    );
    let check = |tls: &str| doubts(&folder, &format!("{LISTEN}{}", site("a.test", tls)));
    assert_eq!(check("tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }"), "");
    for (tls, words) in [
        (
            "{ certificate = \"old.pem\", key = \"a.test.key\" }",
            "old.pem: the certificate of a.test has expired, on 20",
        ),
        ("{ certificate = \"b.test.pem\", key = \"b.test.key\" }", "b.test.pem is for b.test"),
        ("\"certs\"", "no certificate is for a.test: "),
        ("{ certificate = \"cn.pem\", key = \"a.test.key\" }", "has no subjectAltName"),
    ] {
        let said = check(&format!("tls = {tls}"));
        assert!(said.starts_with("warning: `tls` (the site in line 4): ") && said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // A start logs the same warning and serves.
    let rig = start(folder, &format!("{LISTEN}{}", site("a.test", "tls = \"certs\"")));
    eventually("a warning", || {
        rig.reported().contains("warn: `tls` (the site in line 4): no certificate is for a.test")
    });
    assert!(fetch(&rig, "b.test", &[]).is_err(), "the site's hosts are others");
}

#[test]
fn certificate_expiry_is_reported_in_json() {
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    let rig = start(folder(&[("a.test", "ec")]), &format!("{LISTEN}{}", site("a.test", tls)));
    let pid = rig.child.id().to_string();
    let ask = |words: &[&str]| {
        let output = komainu().args(words).args(["--pid", &pid]).output().unwrap();
        assert!(output.status.success(), "{}", rig::text(&output.stderr));
        rig::text(&output.stdout)
    };
    let status: serde_json::Value = serde_json::from_str(&ask(&["status", "--json"])).unwrap();
    let listed: serde_json::Value = serde_json::from_str(&ask(&["cert", "list", "--json"])).unwrap();
    for one in [&status[0]["certificates"][0], &listed[0]] {
        assert_eq!(one["name"], "a.test");
        assert!(one["file"].as_str().unwrap().ends_with("/a.test.pem"), "{one}");
        // At most two days.
        assert!((86_400..=172_800).contains(&one["expires_in_s"].as_i64().unwrap()), "{one}");
    }
    let shown = ask(&["cert", "show", "a.test"]);
    assert!(shown.contains("read from") && !shown.contains("directory"), "{shown}");
}

#[test]
fn check_warns_of_names_without_automatic_certificates() {
    let folder = Folder::new();
    let check = |listen: &str, hosts: &str| {
        doubts(&folder, &format!("listen = {listen}\n{}", site(hosts, "tls = \"auto\"")))
    };
    let usual = "[\":80\", \":443\"]";
    for fine in ["example.com", "localhost", "app.localhost", "127.0.0.1", "93.184.216.34"] {
        assert_eq!(check(usual, fine), "", "{fine}");
    }
    for (hosts, words) in [
        ("*.example.org", "*.example.org: no certificate can be obtained: a wildcard needs dns-01"),
        ("foo.local", "foo.local: no public authority issues for this name"),
        ("nas", "nas: no authority issues certificates for this name"),
        ("www.example", "www.example: no authority issues"),
    ] {
        let said = check(usual, hosts);
        assert!(said.starts_with("warning: ") && said.contains(words), "{said}");
    }
}

#[test]
fn a_request_to_renegotiate_is_refused() {
    let rig = https("");
    let mut client = Command::new("openssl")
        .args(["s_client", "-tls1_2", "-servername", "a.test", "-connect", &rig.address.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    input.write_all(b"R\n").unwrap();
    // The client exits because of the server's alert, not because its input ended.
    let output = client.wait_with_output().unwrap();
    drop(input);
    assert!(text(&output.stderr).contains("no renegotiation"), "{}", text(&output.stderr));
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
}

#[test]
fn directory_of_certificates_is_loaded() {
    let folder = folder(&[("a.test", "ec"), ("b.test", "ec")]);
    openssl(&folder, "mkdir certs; mv a.test.pem b.test.pem a.test.key b.test.key certs/");
    let text = format!(
        r#"
        {LISTEN}
        [[site]]
        tls = "certs"
        [[site.route]]
        respond = "here"
        "#
    );
    let rig = start(folder, &text);
    for name in ["a.test", "b.test"] {
        assert_eq!(fetch(&rig, name, &[]).unwrap(), "here", "{name}");
    }
}

fn hello(rig: &Rig) -> Vec<u8> {
    // A ClientHello recorded from a real client.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Command::new("openssl")
        .args(["s_client", "-servername", "a.test", "-connect", &listener.local_addr().unwrap().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut rest).unwrap();
    drop(stream);
    client.wait().unwrap();
    assert!(rig.address.port() != 0);
    [&head[..], &rest[..]].concat()
}

fn https(limits: &str) -> Rig {
    let tls = "tls = { certificate = \"a.test.pem\", key = \"a.test.key\" }";
    start(folder(&[("a.test", "ec")]), &format!("{LISTEN}threads = 2\n{limits}{}", site("a.test", tls)))
}

#[test]
fn mutated_client_hellos_do_not_stop_a_core() {
    let rig = https("timeouts.head = \"1s\"\n");
    let hello = hello(&rig);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..1_000 {
        let mut bytes = hello.clone();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u8(..8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.splice(at..at, (0..random.usize(..64)).map(|_| 0xff)).for_each(drop),
            }
        }
        let mut stream = connect(rig.address);
        // The server may close the connection in the middle.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        rig::read_to_close(&mut stream);
    }
    for _ in 0..8 {
        assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
    }
    assert!(!rig.reported().contains("panicked"), "{}", rig.reported());
}

#[test]
fn stalled_tls_handshakes_time_out() {
    let rig = https("timeouts.head = \"500ms\"\n");
    let hello = hello(&rig);
    let silent = connect(rig.address);
    let mut half = connect(rig.address);
    half.write_all(&hello[..hello.len() / 2]).unwrap();
    let mut answered = connect(rig.address);
    answered.write_all(&hello).unwrap();
    let mut dripping = connect(rig.address);
    std::thread::spawn(move || {
        for byte in hello {
            if dripping.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    for mut stream in [silent, half, answered] {
        // The last connection has received the server's flight; then all are closed.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        rig::read_to_close(&mut stream);
    }
    eventually("it is logged", || rig.reported().contains("the TLS handshake took too long"));
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
}

#[test]
fn half_open_handshake_flood_does_not_block_others() {
    let rig = https("limits.connections = 1_500\n");
    let hello = hello(&rig);
    let mut flood: Vec<TcpStream> = Vec::new();
    for number in 0..2_000 {
        let mut stream = connect(rig.address);
        // Some clients send nothing, some half a ClientHello, some stall after the server's flight.
        let len = [0, hello.len() / 2, hello.len()][number % 3];
        let _ = stream.write_all(&hello[..len]);
        flood.push(stream);
    }
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
    drop(flood);
    assert_eq!(fetch(&rig, "a.test", &[]).unwrap(), "this is a.test");
}
