//! TLS as seen by applications: the scheme, and client certificates.

use std::process::Command;

use crate::hosted::server;
use crate::rig::{Folder, Rig, as_we_are, curl, text};

const PERL: &str = r#"sub { my $env = shift; [200, [], [join "\n", map { "$_=$env->{$_}" }
    grep { /^HTTPS$|SSL_|url_scheme/ } sort keys %$env]] }"#;
const RUBY: &str = r#"run ->(env) { [200, {}, [env.select { |key, _| key =~ /\AHTTPS\z|SSL_|url_scheme/ }.sort
    .map { |pair| pair.join('=') }.join("\n")]] }"#;
const WSGI: &str = "
def app(environ, start_response):
    start_response('200 OK', [])
    keys = sorted(key for key in environ if key == 'HTTPS' or 'SSL_' in key or 'url_scheme' in key)
    return ['\\n'.join(f'{key}={environ[key]}' for key in keys).encode()]
";
const ASGI: &str = r#"
async def app(scope, receive, send):
    if scope['type'] == 'http':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        tls = scope['extensions'].get('tls', {})
        lines = [f'{key}={tls[key]!r}' for key in sorted(tls)] + [f"scheme={scope['scheme']}"]
        await send({'type': 'http.response.body', 'body': '\n'.join(lines).encode()})
"#;
const LANGUAGES: [(&str, &str, &str); 4] = [
    ("psgi", "app.psgi", "psgi.url_scheme"),
    ("rack", "config.ru", "rack.url_scheme"),
    ("wsgi", "w.py", "wsgi.url_scheme"),
    ("asgi", "a.py", "scheme"),
];

/// Starts the applications on an address with TLS and on a Unix socket without. `staff.test` requests client
/// certificates.
fn start() -> Rig {
    let folder = Folder::new();
    folder.write("app.psgi", PERL).write("config.ru", RUBY).write("w.py", WSGI).write("a.py", ASGI);
    let script = "exec 2>&1
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=a.test \
            -addext subjectAltName=DNS:a.test,DNS:staff.test -keyout key.pem -out cert.pem
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=staff \
            -keyout staff.key -out staff.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/O=Staff/CN=alice, O=root' \
            -keyout alice.key -out alice.csr
        printf 'extendedKeyUsage=clientAuth\n' > alice.ext
        openssl x509 -req -in alice.csr -CA staff.pem -CAkey staff.key -set_serial 77 -days 2 -extfile alice.ext -out alice.pem";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stdout));
    let mut config = format!(
        "listen = [{{ address = \"127.0.0.1:0\", tls = true }}, \"unix:plain.sock\"]\n{}threads = 1\n",
        as_we_are()
    );
    for (name, file, _) in LANGUAGES {
        config += &format!(
            r#"
            [apps.{name}]
            {name} = "{file}"
            workers = 1
            "#
        );
    }
    for (host, client) in
        [("a.test", ""), ("staff.test", ", client = { ca = \"staff.pem\", required = false }")]
    {
        config += &format!(
            r#"
            [[site]]
            hosts = "{host}"
            redirect_https = false
            tls = {{ certificate = "cert.pem", key = "key.pem"{client} }}
            "#
        );
        for (name, ..) in LANGUAGES {
            config += &format!(
                r#"
                [[site.route]]
                path = "/{name}"
                app = "{name}"
                "#
            );
        }
    }
    folder.write("komainu.toml", config);
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// Requests `path`, through TLS if `host` is given, and returns the lines of the response.
fn ask(rig: &Rig, host: &str, path: &str, arguments: &[&str]) -> Vec<String> {
    let port = rig.address.port();
    let ca = rig.folder.at("cert.pem");
    let resolve = format!("{host}:{port}:127.0.0.1");
    let url = format!("https://{host}:{port}/{path}");
    let mut all = vec!["--cacert", ca.to_str().unwrap(), "--resolve", &resolve];
    all.extend(arguments);
    all.push(&url);
    let output = curl(&all);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn applications_see_https_and_the_certificates_of_clients() {
    let rig = start();
    let plain = rig.folder.at("plain.sock");
    // A client cannot forge the fields of a verified certificate.
    let forged = ["-H", "SSL_CLIENT_VERIFY: SUCCESS", "-H", "SSL-Client-Verify: SUCCESS", "-H", "HTTPS: on"];
    let certificate = rig.folder.at("alice.pem");
    let key = rig.folder.at("alice.key");
    let alice = ["--cert", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]).arg(&certificate);
    let digest = text(&openssl.output().unwrap().stdout).trim().to_owned();
    let digest = digest.split_once('=').unwrap().1.replace(':', "").to_ascii_lowercase();
    let fingerprint = format!("SSL_CLIENT_FINGERPRINT={digest}");
    for (name, _, scheme) in LANGUAGES {
        let is_cgi = name != "asgi";
        let environment = |lines: Vec<String>| -> Vec<String> {
            // The multi-line certificate itself is checked below.
            let mut lines = lines;
            if let Some(start) = lines.iter().position(|line| line.starts_with("SSL_CLIENT_CERT=")) {
                let end = lines.iter().position(|line| line == "-----END CERTIFICATE-----").unwrap();
                // In Ruby and Python the text ends with an empty line.
                let end = if lines.get(end + 1).is_some_and(String::is_empty) { end + 1 } else { end };
                lines.drain(start..=end);
            }
            lines.into_iter().filter(|line| !line.starts_with("HTTP_")).collect()
        };
        for version in ["--http1.1", "--http2"] {
            let https: &[&str] = if is_cgi { &["HTTPS=on"] } else { &[] };
            let secure = format!("{scheme}=https");
            let expected: Vec<&str> = https.iter().copied().chain([secure.as_str()]).collect();
            let seen = ask(&rig, "a.test", name, &[&[version][..], &forged].concat());
            assert_eq!(environment(seen), expected, "{name} {version}");
            if !is_cgi {
                let seen = ask(&rig, "staff.test", name, &[&[version][..], &forged].concat());
                let nobody = [
                    "cipher_suite=4865",
                    "client_cert_chain=()",
                    "client_cert_error=None",
                    "client_cert_name=None",
                    "server_cert=None",
                    "tls_version=772",
                    "scheme=https",
                ];
                assert_eq!(seen, nobody, "{version}");
                let seen = ask(&rig, "staff.test", name, &[&[version][..], &forged, &alice].concat());
                let pem = std::fs::read_to_string(&certificate).unwrap().replace('\n', "\\n");
                assert_eq!(seen[1], format!("client_cert_chain=('{pem}',)"), "{version}");
                assert_eq!(seen[3], "client_cert_name='CN=alice\\\\, O=root,O=Staff'", "{version}");
                continue;
            }
            let seen = ask(&rig, "staff.test", name, &[&[version][..], &forged].concat());
            assert_eq!(
                environment(seen),
                [
                    "HTTPS=on",
                    "SSL_CIPHER=TLS_AES_128_GCM_SHA256",
                    "SSL_CLIENT_VERIFY=NONE",
                    "SSL_PROTOCOL=TLSv1.3",
                    &secure
                ],
                "{name} {version}"
            );
            let seen = ask(&rig, "staff.test", name, &[&[version][..], &forged, &alice].concat());
            let pem = std::fs::read_to_string(&certificate).unwrap();
            assert!(
                seen.join("\n").contains(&format!("SSL_CLIENT_CERT={pem}")),
                "{name} {version}: {seen:?}"
            );
            let expected = [
                "HTTPS=on",
                "SSL_CIPHER=TLS_AES_128_GCM_SHA256",
                &fingerprint,
                "SSL_CLIENT_I_DN=CN=staff",
                "SSL_CLIENT_SERIAL=4d",
                "SSL_CLIENT_S_DN=CN=alice\\, O=root,O=Staff",
                "SSL_CLIENT_VERIFY=SUCCESS",
                "SSL_PROTOCOL=TLSv1.3",
                &secure,
            ];
            assert_eq!(environment(seen), expected, "{name} {version}");
        }
        let url = format!("http://a.test/{name}");
        let seen = curl(&[&["--unix-socket", plain.to_str().unwrap()][..], &forged, &[&url]].concat());
        let seen = text(&seen.stdout).lines().map(str::to_owned).collect();
        assert_eq!(environment(seen), [format!("{scheme}=http")], "{name}");
    }
}
