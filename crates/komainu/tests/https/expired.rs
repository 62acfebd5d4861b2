//! Client certificates that expire while their connections and sessions continue.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::certified::{GET, LISTEN, folder, s_client, site, start};
use crate::rig::{Folder, eventually, text};

/// Creates a client authority in `staff.pem`, `brief`, whose certificate expires at `end`, and `alice`.
fn staff(folder: &Folder, end: SystemTime) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "staff");
    folder.write("staff.pem", authority.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(authority, key);
    for (name, end) in [("brief", end), ("alice", end + Duration::from_secs(86_400))] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = end.into();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        folder
            .write(&format!("{name}.pem"), certificate.pem())
            .write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[test]
fn expired_client_certificate_ends_session_and_connection() {
    for required in [true, false] {
        // A busy machine may need longer to prepare the sessions.
        let is_done = [6, 25].into_iter().any(|seconds| certificate_expires(required, seconds));
        assert!(is_done, "the certificate expires before the test is prepared");
    }
}

/// Returns false if the certificate expires before its sessions are there, after so many seconds.
fn certificate_expires(required: bool, seconds: u64) -> bool {
    let folder = folder(&[("a.test", "ec")]);
    let end = SystemTime::now() + Duration::from_secs(seconds);
    staff(&folder, end);
    let prepared = |is_so: bool, said: &str| assert!(is_so || SystemTime::now() >= end, "{said}");
    let tls = format!(
        "tls = {{ certificate = \"a.test.pem\", key = \"a.test.key\", client = {{ ca = \"staff.pem\", required = {required} }} }}\n\
             response_headers.set = {{ X-Client = \"$tls_client_subject|\" }}"
    );
    let rig = start(folder, &format!("{LISTEN}{}", site("a.test", &tls)));
    let ask = |version: &str, who: &str, more: &str| {
        let certificate = format!("-cert {who}.pem -key {who}.key");
        let said = s_client(&rig, &format!("-servername a.test {version} {certificate} {more}"), GET);
        (said.contains("\nReused, "), said.contains(&format!("x-client: CN={who}|")), said)
    };
    for version in ["-tls1_2", "-tls1_3"] {
        for who in ["brief", "alice"] {
            let said = ask(version, who, &format!("-sess_out {who}{version}"));
            prepared(!said.0 && said.1, &format!("{who} {version}: {}", said.2));
            // The session that is resumed below.
            let said = ask(version, who, &format!("-sess_in {who}{version} -sess_out {who}{version}"));
            prepared(said.0 && said.1, &format!("{who} {version}: {}", said.2));
        }
    }
    let ids = ask("-tls1_2", "alice", "-no_ticket -sess_out ids");
    assert!(ids.1, "{}", ids.2);
    assert!(!ask("-tls1_2", "alice", "-no_ticket -sess_in ids").0, "by its ID");
    let mut kept = Command::new("openssl")
        .args(["s_client", "-quiet", "-servername", "a.test", "-cert", "brief.pem", "-key", "brief.key"])
        .args(["-connect", &rig.address.to_string()])
        .current_dir(rig.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = kept.stdin.take().unwrap();
    let mut output = kept.stdout.take().unwrap();
    let mut request = |close: &str| write!(input, "GET / HTTP/1.1\r\nHost: a.test\r\n{close}\r\n");
    let mut answer = [0; 4096];
    let sent = request("");
    let taken = output.read(&mut answer).unwrap();
    let said = text(&answer[..taken]);
    prepared(sent.is_ok() && said.starts_with("HTTP/1.1 200 "), &said);
    if SystemTime::now() >= end {
        kept.kill().unwrap();
        kept.wait().unwrap();
        return false;
    }
    eventually("it has expired", || SystemTime::now() > end + Duration::from_secs(2));
    for version in ["-tls1_2", "-tls1_3"] {
        let said = ask(version, "brief", &format!("-sess_in brief{version}"));
        assert!(!said.0 && !said.1, "{version}: {}", said.2);
        let said = ask(version, "alice", &format!("-sess_in alice{version}"));
        assert!(said.0 && said.1, "{version}: {}", said.2);
    }
    request("Connection: close\r\n").unwrap();
    let taken = output.read(&mut answer).unwrap();
    assert!(text(&answer[..taken]).starts_with("HTTP/1.1 421 "), "{}", text(&answer[..taken]));
    kept.wait().unwrap();
    true
}
