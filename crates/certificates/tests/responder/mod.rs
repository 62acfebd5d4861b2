//! An authority created by `openssl`, and its OCSP responder: `openssl ocsp` behind a listener that can
//! falsify responses.

#![allow(dead_code, clippy::unwrap_used, reason = "support of several tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Behaviour of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Responds like `openssl ocsp`, with a validity of several days.
    Honest,
    /// Responds with the status of another certificate.
    Another,
    /// Responds with the signature of another authority.
    Foreign,
    /// Responds with an HTTP status and no OCSP response.
    Status(u16),
    /// Redirects to another URL.
    Moved,
    /// Sends a head that never ends.
    EndlessHead,
    /// Sends a body that never ends.
    EndlessBody,
    /// Sends nothing.
    Silent,
    /// Sends bytes that are not an OCSP response.
    Nonsense,
}

/// A running responder and its authority. It runs until the process ends.
pub(crate) struct Responder {
    folder: PathBuf,
    port: u16,
    pub(crate) answer: Arc<Mutex<Answer>>,
    pub(crate) requests: Arc<AtomicUsize>,
}

fn openssl(folder: &Path, script: &str) {
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Responder {
    /// Creates the authority in a folder, and starts its responder.
    pub(crate) fn start(folder: &Path) -> Responder {
        fs::create_dir_all(folder).unwrap();
        let mut script = String::new();
        for name in ["ca", "other"] {
            script += &format!(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 20 -subj /CN={name} \
                 -keyout {name}.key -out {name}.pem 2>&1\n"
            );
        }
        openssl(folder, &script);
        fs::write(folder.join("index.txt"), "").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new(Answer::Honest));
        let requests = Arc::new(AtomicUsize::new(0));
        let theirs = answer.clone();
        let counted = requests.clone();
        let folder_ = folder.to_owned();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for (number, client) in listener.incoming().enumerate() {
                let client = client.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                match *theirs.lock().unwrap() {
                    Answer::Silent => silent.push(client),
                    other => answer_one(client, other, &folder_, number),
                }
            }
        });
        Responder { folder: folder.to_owned(), port, answer, requests }
    }

    /// Creates `NAME.pem`, which includes the issuer's certificate, and `NAME.key`, for a certificate that
    /// names the responder. `more` contains additional lines of extensions.
    pub(crate) fn certificate(&self, name: &str, serial: u32, more: &str) {
        let port = self.port;
        let script = format!(
            "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} -keyout {name}.key \
             -out {name}.csr 2>&1
             printf 'subjectAltName=DNS:{name}\\nbasicConstraints=CA:FALSE\\n\
             authorityInfoAccess=OCSP;URI:http://127.0.0.1:{port}/ocsp\\n{more}' > {name}.ext
             openssl x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -set_serial {serial} -days 20 -extfile {name}.ext \
             -out {name}.leaf 2>&1
             cat {name}.leaf ca.pem > {name}.pem
             printf 'V\\t330101000000Z\\t\\t%04X\\tunknown\\t/CN={name}\\n' {serial} >> index.txt"
        );
        openssl(&self.folder, &script);
    }

    /// Returns the port of the responder's URL.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Revokes all certificates.
    pub(crate) fn revoke_all(&self) {
        let index = fs::read_to_string(self.folder.join("index.txt")).unwrap();
        let revoked = index.replace("V\t330101000000Z\t\t", "R\t330101000000Z\t260101000000Z\t");
        fs::write(self.folder.join("index.txt"), revoked).unwrap();
    }
}

/// Answers one request of a connection.
fn answer_one(mut client: TcpStream, answer: Answer, folder: &Path, number: usize) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut line = String::new();
    let mut len = 0;
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut request = vec![0; len];
    if reader.read_exact(&mut request).is_err() {
        return;
    }
    // The server closes the connection once it has received enough, so errors are ignored.
    let _ = match answer {
        Answer::Honest | Answer::Another | Answer::Foreign => {
            let response = respond(folder, answer, &request, number);
            send(&mut client, "200 OK", &response)
        }
        Answer::Status(status) => send(&mut client, &format!("{status} Status"), b""),
        Answer::Moved => client
            .write_all(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
        Answer::Nonsense => send(&mut client, "200 OK", b"this is no response"),
        Answer::EndlessHead => {
            let begun = client.write_all(b"HTTP/1.1 200 OK\r\n");
            begun.and_then(|()| {
                (0..1_000_000).try_for_each(|_| client.write_all(b"X-Filler: xxxxxxxxxxxxxxxxxxxxxxxx\r\n"))
            })
        }
        Answer::EndlessBody => {
            let begun = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            begun.and_then(|()| (0..1_000_000).try_for_each(|_| client.write_all(&[0x30; 1_024])))
        }
        Answer::Silent => Ok(()),
    };
}

fn send(client: &mut TcpStream, status: &str, body: &[u8]) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
    client.write_all(body)
}

/// Returns the response of `openssl ocsp` to a request.
fn respond(folder: &Path, answer: Answer, request: &[u8], number: usize) -> Vec<u8> {
    let of = |name: &str| folder.join(format!("{name}-{number}"));
    fs::write(of("request"), request).unwrap();
    let (signer, asked) = match answer {
        Answer::Foreign => ("other", format!("-reqin request-{number}")),
        // The status of a serial number that was not requested.
        Answer::Another => ("ca", "-issuer ca.pem -serial 0x0fff -no_nonce".to_owned()),
        _ => ("ca", format!("-reqin request-{number}")),
    };
    let asked = if answer == Answer::Another {
        openssl(folder, &format!("openssl ocsp {asked} -reqout another-{number} >&2"));
        format!("-reqin another-{number}")
    } else {
        asked
    };
    openssl(
        folder,
        &format!(
            "openssl ocsp -index index.txt -CA ca.pem -rsigner {signer}.pem -rkey {signer}.key -ndays 4 {asked} \
             -respout response-{number} >&2"
        ),
    );
    fs::read(of("response")).unwrap()
}
