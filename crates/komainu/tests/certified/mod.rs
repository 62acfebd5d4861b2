//! Servers with certificates made by openssl, and their clients: openssl and curl.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use std::io::Write;
use std::process::{Command, Stdio};

use crate::rig::{Folder, Rig, as_we_are, curl, komainu, text};

/// Runs a script of openssl commands in the directory.
pub fn openssl(folder: &Folder, script: &str) {
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
}

/// Commands that create an authority in `ca.pem`, and for each name `NAME.pem` and `NAME.key`, signed by it.
fn authority(names: &[(&str, &str)]) -> String {
    let mut script = "exec 2>&1
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority \
            -keyout ca.key -out ca.pem\n"
        .to_owned();
    for (name, sort) in names {
        let key = match *sort {
            "rsa" => "rsa:2048",
            _ => "ec -pkeyopt ec_paramgen_curve:prime256v1",
        };
        script += &format!(
            "openssl req -newkey {key} -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr
             printf 'subjectAltName=DNS:%s\\nbasicConstraints=CA:FALSE\\n' {} > {name}.ext
             openssl x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem\n",
            name.trim_start_matches("rsa.")
        );
    }
    script
}

/// Creates a directory with certificates and a page for each site.
pub fn folder(names: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    openssl(&folder, &authority(names));
    folder
}

#[allow(dead_code)] // not every test program uses it
pub const LISTEN: &str = "listen = [{ address = \"127.0.0.1:0\", tls = true }]\n";

/// Starts a server from a configuration that contains `listen`.
pub fn start(folder: Folder, text: &str) -> Rig {
    folder.write("komainu.toml", format!("{}{text}", as_we_are()));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

pub fn site(name: &str, tls: &str) -> String {
    format!(
        r#"
        [[site]]
        hosts = ["{name}"]
        {tls}
        [[site.route]]
        respond = "this is {name}"
        "#
    )
}

/// Runs `openssl s_client` with `request` on its standard input and returns its output.
pub fn s_client(rig: &Rig, arguments: &str, request: &str) -> String {
    let mut client = Command::new("timeout")
        .args(["30", "openssl", "s_client", "-ign_eof", "-connect", &rig.address.to_string()])
        .args(arguments.split_whitespace())
        .current_dir(rig.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The connection may have been refused and the client have exited.
    let _ = client.stdin.take().unwrap().write_all(request.as_bytes());
    let output = client.wait_with_output().unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

/// Fetches a page by curl with these arguments; returns its body, or curl's error.
pub fn fetch(rig: &Rig, name: &str, arguments: &[&str]) -> Result<String, String> {
    let url = format!("https://{name}:{}/", rig.address.port());
    let resolve = format!("{name}:{}:127.0.0.1", rig.address.port());
    let ca = rig.folder.at("ca.pem");
    let mut all = vec!["--resolve", &resolve, "--cacert", ca.to_str().unwrap()];
    all.extend(arguments);
    all.push(&url);
    let output = curl(&all);
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

/// Creates a client authority in `staff.pem`, the clients `alice` and `mallory`, and `staff.crl`, which
/// revokes `mallory`.
pub const STAFF: &str = r#"exec 2>&1
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=staff -keyout staff.key -out staff.pem
    touch index; echo 01 > crlnumber
    printf '[ca]\ndefault_ca=c\n[c]\ndatabase=index\ncrlnumber=crlnumber\ndefault_md=sha256\ndefault_crl_days=2\n' > ca.conf
    for name in alice mallory; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/O=Staff/CN=$name" -keyout $name.key -out $name.csr
        printf 'subjectAltName=email:%s@a.test\nextendedKeyUsage=clientAuth\n' $name > $name.ext
        openssl x509 -req -in $name.csr -CA staff.pem -CAkey staff.key -CAcreateserial -days 2 -extfile $name.ext -out $name.pem
    done
    openssl ca -config ca.conf -cert staff.pem -keyfile staff.key -revoke mallory.pem
    openssl ca -config ca.conf -cert staff.pem -keyfile staff.key -gencrl -out staff.crl
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=nobody -addext basicConstraints=critical,CA:FALSE -keyout nobody.key -out nobody.pem"#;
