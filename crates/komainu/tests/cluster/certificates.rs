//! Certificates of a set: one order, and renewals while servers and the store fail.

use std::path::Path;

use crate::pebble::{Pebble, PebbleOptions, free_port};
use crate::rig::{self, Folder, Rig, curl, eventually, komainu, text};
use crate::store::Store;

const NAME: &str = "a.komainu-test.com";

/// A server of the set at its own ports.
struct Server {
    rig: Option<Rig>,
    http: u16,
    tls: u16,
}

impl Server {
    fn new(http: u16) -> Server {
        Server { rig: None, http, tls: free_port() }
    }

    fn start(&mut self, common: &Path, name: &str, pebble: &Pebble) {
        let folder = self.rig.take().map_or_else(Folder::new, |mut rig| {
            rig.signal("-KILL");
            rig.ended();
            std::mem::replace(&mut rig.folder, Folder::new())
        });
        let Server { http, tls, .. } = self;
        let config = format!(
            r#"
            {}
            listen = ["127.0.0.1:{http}", {{ address = "127.0.0.1:{tls}", tls = true }}]
            {}
            [acme]
            state = "state"
            directory = "{}"
            ca = "{}"

            [[site]]
            hosts = ["{NAME}"]
            tls = "auto"

            [[site.route]]
            respond = "fine"
            "#,
            rig::as_we_are(),
            Store::table(common, name),
            pebble.directory,
            pebble.directory_root().display()
        );
        folder.write("komainu.toml", config);
        let mut command = komainu();
        command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
        self.rig = Some(Rig::start(command, folder));
    }

    fn is_served(&self, root: &Path) -> bool {
        let resolve = format!("{NAME}:{}:127.0.0.1", self.tls);
        let url = format!("https://{NAME}:{}/", self.tls);
        let output = curl(&["--cacert", root.to_str().unwrap(), "--resolve", &resolve, &url]);
        output.status.success() && text(&output.stdout) == "fine"
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().unwrap()
    }

    fn cert(&self, words: &[&str]) -> String {
        let pid = self.rig().child.id().to_string();
        let output = komainu().arg("cert").args(words).args(["--pid", &pid]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn serial(&self) -> String {
        let shown = self.cert(&["show", NAME]);
        shown.lines().find(|line| line.starts_with("serial")).unwrap_or_default().to_owned()
    }
}

#[test]
fn three_servers_have_one_certificate_and_renew_it_once() {
    let common = Folder::new();
    // The authority asks only the first server, whoever orders.
    let first = free_port();
    let options = PebbleOptions { http_port: first, ..PebbleOptions::default() };
    let Some(pebble) = Pebble::start(&common.at("pebble"), &options) else { return };
    common.write("root.pem", pebble.issuing_root());
    let root = common.at("root.pem");
    let mut store = Some(Store::start(common.path()));
    let mut servers = [first, free_port(), free_port()].map(Server::new);
    for (server, name) in servers.iter_mut().zip(["one", "two", "three"]) {
        server.start(common.path(), name, &pebble);
    }
    for server in &servers {
        eventually("a certificate", || server.is_served(&root));
    }
    assert_eq!(pebble.issued(), 1, "{}", pebble.log());
    let serial = servers[0].serial();
    assert!(servers.iter().all(|server| server.serial() == serial));
    // The store has the private key only under the key of the servers.
    let stored = store.as_ref().unwrap().ask("HGETALL komainu:1:files");
    assert!(stored.contains(NAME) && !stored.contains("PRIVATE KEY"), "{stored}");

    // Another server than the one that is asked by the authority renews; one is killed meanwhile.
    servers[1].cert(&["renew", NAME]);
    servers[2].start(common.path(), "three", &pebble);
    for server in &servers {
        eventually("the renewed certificate", || ![&serial, ""].contains(&server.serial().as_str()));
    }
    eventually("all servers have the same", || {
        let serial = servers[0].serial();
        servers.iter().all(|server| server.serial() == serial && server.is_served(&root))
    });
    assert_eq!(pebble.issued(), 2, "{}", pebble.log());

    // The store is killed: everything is served, and a restart does not need it.
    drop(store.take());
    for server in &servers {
        eventually("it is reported", || server.rig().reported().contains("is away"));
    }
    servers[2].start(common.path(), "three", &pebble);
    assert!(servers.iter().all(|server| server.is_served(&root)));

    // A new store gets everything back, and a server that has lost its folder gets it from there.
    let store = Store::start(common.path());
    for server in &servers {
        eventually("it is reported", || server.rig().reported().contains("is back"));
        assert_eq!(server.rig().reported().matches("is away").count(), 1, "{}", server.rig().reported());
    }
    // "Is back" comes with the connection, the files follow.
    eventually("the store has the certificate again", || store.ask("HGETALL komainu:1:files").contains(NAME));
    let mut new = Server::new(free_port());
    new.start(common.path(), "four", &pebble);
    eventually("a certificate", || new.is_served(&root));
    assert_eq!(pebble.issued(), 2, "{}", pebble.log());
}
