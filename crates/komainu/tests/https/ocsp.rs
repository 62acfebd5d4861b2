//! OCSP stapling: the real binary with `openssl ocsp` and `openssl s_client -status`, and faulty certificate
//! files.

use std::process::{Command, Stdio};

use crate::responder::{Answer, Responder};
use crate::rig::{Folder, Rig, as_we_are, eventually, komainu, text};

/// OCSP part of the output of `openssl s_client -status`.
fn status(server: &Rig, name: &str, version: &str) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &server.address.to_string(), "-servername", name, "-status", version])
        .arg("-CAfile")
        .arg(server.folder.at("ca.pem"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    text(&output.stdout)
}

#[test]
fn ocsp_response_is_stapled_for_certificate_files() {
    let folder = Folder::new();
    let responder = Responder::start(folder.path());
    responder.certificate("a.test", 0x1001, "");
    responder.certificate("must.test", 0x1002, "tlsfeature=status_request\\n");
    let site = |name: &str| {
        format!(
            r#"
            [[site]]
            hosts = "{name}"
            tls = {{ certificate = "{name}.pem", key = "{name}.key" }}
            [[site.route]]
            respond = "x"
            "#
        )
    };
    folder.write(
        "komainu.toml",
        format!(
            "{}listen = [{{ address = \"127.0.0.1:0\", tls = true }}]\n{}{}",
            as_we_are(),
            site("a.test"),
            site("must.test")
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let server = Rig::start(command, folder);
    for name in ["a.test", "must.test"] {
        for version in ["-tls1_3", "-tls1_2"] {
            eventually("a response is stapled", || {
                status(&server, name, version).contains("OCSP Response Status: successful")
            });
            let shown = status(&server, name, version);
            assert!(
                shown.contains("Cert Status: good") && shown.contains("Verify return code: 0"),
                "{shown}"
            );
        }
    }
    // A reload rereads the files and keeps the OCSP responses, although the responder fails.
    *responder.answer.lock().unwrap() = Answer::Status(503);
    server.signal("-HUP");
    eventually("the configuration was read again", || {
        server.reported().contains("the configuration was read again")
    });
    for name in ["a.test", "must.test"] {
        eventually("a response is stapled", || {
            status(&server, name, "-tls1_3").contains("OCSP Response Status: successful")
        });
    }
}

#[test]
fn must_staple_certificate_without_response_is_reported() {
    let folder = Folder::new();
    let responder = Responder::start(folder.path());
    responder.certificate("must.test", 0x1002, "tlsfeature=status_request\\n");
    *responder.answer.lock().unwrap() = Answer::Status(503);
    let config = |certificate: &str| {
        format!(
            r#"
            {}
            listen = [{{ address = "127.0.0.1:0", tls = true }}]
            [[site]]
            hosts = "must.test"
            tls = {{ certificate = "{certificate}", key = "must.test.key" }}
            [[site.route]]
            respond = "x"
            "#,
            as_we_are()
        )
    };
    // Without the issuer's certificate in the file, no OCSP request can be made.
    folder.write("alone.toml", config("must.test.leaf"));
    let checked = komainu().arg("check").arg("-c").arg(folder.at("alone.toml")).output().unwrap();
    let warned = text(&checked.stderr);
    assert!(checked.status.success(), "{warned}");
    assert!(warned.contains("must-staple") && warned.contains("must.test.leaf"), "{warned}");
    folder.write("komainu.toml", config("must.test.pem"));
    let checked = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
    assert!(!text(&checked.stderr).contains("must-staple"), "{}", text(&checked.stderr));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let server = Rig::start(command, folder);
    eventually("a warning", || server.reported().contains("clients refuse it without"));
    let log = server.reported();
    assert!(log.contains("must.test.pem") && log.contains("status 503"), "{log}");
    assert!(status(&server, "must.test", "-tls1_3").contains("no response sent"));
}

#[test]
fn bad_client_ca_or_crl_file_is_reported_with_remedy() {
    let folder = Folder::new();
    Responder::start(folder.path()).certificate("a.test", 0x1001, "");
    let mut command = Command::new("openssl");
    command.args(["x509", "-in", "ca.pem", "-outform", "der", "-out", "ca.der"]).current_dir(folder.path());
    assert!(command.status().unwrap().success());
    folder.write("broken.crl", "-----BEGIN X509 CRL-----\nMAMCAQE=\n-----END X509 CRL-----\n");
    for (client, file, words) in [
        ("{ ca = \"a.test.key\" }", "a.test.key", "no certificate"),
        ("{ ca = [\"ca.pem\", \"ca.der\"] }", "ca.der", "openssl x509 -inform der"),
        ("{ ca = \"ca.pem\", crl = \"ca.pem\" }", "ca.pem", "openssl ca -gencrl"),
        ("{ ca = \"ca.pem\", crl = \"ca.der\" }", "ca.der", "openssl crl -inform der"),
        ("{ ca = \"ca.pem\", crl = \"broken.crl\" }", "broken.crl", "openssl crl -noout -text"),
    ] {
        let config = format!(
            r#"
            {}
            listen = [{{ address = "127.0.0.1:0", tls = true }}]
            [[site]]
            hosts = "a.test"
            tls = {{ certificate = "a.test.pem", key = "a.test.key", client = {client} }}
            [[site.route]]
            respond = "x"
            "#,
            as_we_are()
        );
        folder.write("komainu.toml", config);
        let checked = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        let said = text(&checked.stderr);
        let place = folder.at(file).display().to_string();
        assert!(said.contains("`tls` (the site in line ") && said.contains(&place), "{said}");
        assert!(!checked.status.success() && said.contains(words), "{said}");
    }
}
