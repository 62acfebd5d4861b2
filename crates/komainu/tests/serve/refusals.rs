//! Requests that are refused while their clients send long bodies: every client reads the response.

use std::net::SocketAddr;
use std::process::{Command, Output};

use crate::rig::h3_client::H3Client;
use crate::rig::{Folder, Rig, as_we_are, curl, installed, komainu, listener, text};

/// More than the server reads of a refused body at full speed, and than all buffers on the way hold.
const BODY_BYTES: usize = 17 << 20;

/// Paths, and the status with which each is refused.
const REFUSED: [(&str, &str); 3] = [("/large", "413"), ("/private", "401"), ("/forbidden", "403")];

const ROUTES: &str = r#"
    [[site]]
    redirect_https = false
    error_pages = { "4xx" = "refused.html" }

    [[site.route]]
    path = "/open"
    respond = "open"

    [[site.route]]
    path = "/private"
    auth = { basic = "users" }
    respond = "private"

    [[site.route]]
    path = "/forbidden"
    deny = ["127.0.0.0/8", "::1"]
    respond = "forbidden"

    [[site.route]]
    path = "/large"
    limits = { body = "1KiB" }
    proxy = "ORIGIN"
"#;

/// Sends all of a body, as http.client and the packages on it do, and reads the response only afterwards.
const PYTHON: &str = r#"
import http.client, ssl, sys
scheme, port, path, framing, size = sys.argv[1:]
body = b'x' * int(size)
if scheme == 'https':
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection('127.0.0.1', port, context=context, timeout=60)
else:
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
pieces = (body[at:at + 65536] for at in range(0, len(body), 65536))
connection.request('POST', path, body=pieces if framing == 'chunked' else body, encode_chunked=framing == 'chunked',
                   headers={'Transfer-Encoding': 'chunked'} if framing == 'chunked' else {})
response = connection.getresponse()
print(response.status, response.read().decode())
"#;

/// Starts an upstream server that reads and never answers. Returns its URL.
fn reading_origin() -> String {
    let listener = listener();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    url
}

fn start(listen: &str) -> Rig {
    let folder = Folder::new();
    folder
        .certify()
        .write("users", "")
        .write("refused.html", "refused")
        .write("body", vec![b'x'; BODY_BYTES]);
    let routes = ROUTES.replace("ORIGIN", &reading_origin());
    folder.write("komainu.toml", format!("{}{listen}{routes}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

/// A server without TLS and one with it.
fn both() -> [(&'static str, Rig); 2] {
    let clear = start("listen = { address = \"127.0.0.1:0\", h2c = true }\n");
    let secure = start(
        "listen = [{ address = \"127.0.0.1:0\", tls = true }]\n\
         tls.default = { certificate = \"cert.pem\", key = \"key.pem\" }\n",
    );
    [("http", clear), ("https", secure)]
}

fn shown(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn http1_client_that_sends_its_whole_body_reads_the_refusal() {
    let Some(python) = installed("python3") else { return };
    for (scheme, rig) in both() {
        let port = rig.listens.port().to_string();
        for (path, status) in REFUSED {
            for framing in ["length", "chunked"] {
                let mut client = Command::new(&python);
                client.args(["-c", PYTHON, scheme, &port, path, framing, &BODY_BYTES.to_string()]);
                let said = shown(&client.output().unwrap());
                assert_eq!(said, format!("{status} refused\n"), "{scheme} {path} {framing}");
            }
        }
    }
}

#[test]
fn curl_reads_the_refusal_over_every_version() {
    for (scheme, rig) in both() {
        let body = format!("@{}", rig.folder.at("body").display());
        let http2 = if scheme == "http" { "--http2-prior-knowledge" } else { "--http2" };
        for (path, status) in REFUSED {
            for version in ["--http1.1", http2] {
                // curl waits a second for `100 Continue` and would send nothing.
                for framing in ["Expect:", "Transfer-Encoding: chunked"] {
                    let url = format!("{scheme}://{}{path}", rig.listens);
                    let fields = ["-H", "Expect:", "-H", framing];
                    let mut arguments =
                        vec!["-k", version, "-w", " %{http_code}", "--data-binary", &body, &url];
                    arguments.extend(fields);
                    let said = shown(&curl(&arguments));
                    assert_eq!(said, format!("refused {status}"), "{version} {framing} {url}");
                }
            }
        }
    }
}

#[test]
fn node_reads_the_refusal_over_http2() {
    let Some(node) = installed("node") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/http2.mjs");
    for (scheme, rig) in both() {
        for (path, status) in REFUSED {
            let url = format!("{scheme}://localhost:{}", rig.listens.port());
            let mut client = Command::new(&node);
            client.args([script, "upload", &url, path, &BODY_BYTES.to_string()]);
            let said = shown(&client.env("NODE_EXTRA_CA_CERTS", rig.folder.at("cert.pem")).output().unwrap());
            assert_eq!(said, format!("{status} refused 0\n"), "{url}{path}");
        }
    }
}

#[test]
fn http3_client_reads_the_refusal_and_goes_on() {
    let [_, (_, rig)] = both();
    let server: SocketAddr = rig.listens;
    let body = vec![b'x'; BODY_BYTES];
    let length = BODY_BYTES.to_string();
    let mut client = H3Client::connect(server, "localhost");
    for (path, status) in REFUSED {
        for fields in [&[("content-length", &length[..])][..], &[]] {
            let id = client.send("POST", path, fields, &body);
            let answer = client.finish(id);
            let seen = (answer.status.to_string(), answer.text(), answer.is_whole, answer.reset);
            assert_eq!(seen, (status.to_owned(), "refused".to_owned(), true, None), "{path} {fields:?}");
            // The client may finish: Chromium reads no response before.
            client.drive("the end of the request", |client| client.is_sent(id));
            assert!(!client.response(id).is_stopped, "{path} {fields:?}");
        }
    }
    assert_eq!(client.get("/open").text(), "open");
    assert_eq!(client.lost, None);
}
