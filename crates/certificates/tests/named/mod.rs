//! BIND's `named` on a local port: a primary server of zones that are changed by dynamic update.

#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr, reason = "support of several tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::pebble::{free_port, wait_for_port};

/// Secret of the server's keys, in base64.
pub(crate) const SECRET: &str = "a29tYWludS10ZXN0LXNlY3JldC1vZi0zMi1ieXRlcyE=";

/// A running server, stopped when it is dropped.
pub(crate) struct Named {
    child: Child,
    folder: PathBuf,
    pub(crate) port: u16,
}

impl Named {
    /// Starts the server with its files in `folder` and the primary zone `komainu-test.com`: the key
    /// `komainu` may change TXT records in it, the key `nobody` may not. Returns `None`, with a message on
    /// stderr, if it is not installed.
    pub(crate) fn start(folder: &Path) -> Option<Named> {
        let paths = ["/usr/sbin/named", "/usr/bin/named"];
        let Some(program) = paths.into_iter().find(|path| Path::new(path).exists()) else {
            eprintln!("SKIPPED: BIND's named is not installed: scripts/setup test");
            return None;
        };
        fs::create_dir_all(folder).unwrap();
        let port = free_port();
        let key = |name: &str, algorithm: &str| {
            format!("key \"{name}\" {{ algorithm {algorithm}; secret \"{SECRET}\"; }};\n")
        };
        let keys = key("komainu", "hmac-sha256")
            + &key("komainu-384", "hmac-sha384")
            + &key("nobody", "hmac-sha256");
        let shown = folder.display();
        let config = format!(
            r#"{keys}
options {{
    directory "{shown}"; managed-keys-directory "{shown}"; pid-file none; session-keyfile none;
    listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
    recursion no; dnssec-validation no; notify no;
}};
controls {{ }};
zone "komainu-test.com" {{
    type primary; file "zone";
    update-policy {{ grant komainu zonesub TXT; grant komainu-384 zonesub TXT; }};
}};
"#
        );
        fs::write(folder.join("named.conf"), config).unwrap();
        let zone = r"$TTL 60
@ IN SOA ns hostmaster 1 3600 600 86400 60
@ IN NS ns
ns IN A 127.0.0.1
_acme-challenge.alias IN CNAME elsewhere.other
elsewhere.other IN A 127.0.0.1
";
        fs::write(folder.join("zone"), zone).unwrap();
        let child = Command::new(program)
            .args(["-g", "-n", "1", "-c"])
            .arg(folder.join("named.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("named.log")).unwrap())
            .spawn()
            .unwrap();
        let named = Named { child, folder: folder.to_owned(), port };
        wait_for_port(port);
        Some(named)
    }

    /// Returns the server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("named.log")).unwrap_or_default()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
