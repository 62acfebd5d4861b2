//! TLS, users and Sentinels.

use std::fs;

use cluster::address::StoreAddress;
use cluster::{LeaseOutcome, StoreConnection};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::pebble::free_port;
use crate::redis_server::{Redis, Scratch};
use crate::{Server, block_on, eventually, options};

/// Writes an authority, and a certificate with its key for `localhost`.
fn certify(folder: &Scratch) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::default();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    folder.write("ca.pem", root.self_signed(&root_key).unwrap().pem());
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
    // Otherwise it has the name of its authority, and OpenSSL takes it for one that signs itself.
    leaf.distinguished_name.push(DnType::CommonName, "localhost");
    folder.write("cert.pem", leaf.signed_by(&key, &Issuer::new(root, root_key)).unwrap().pem());
    folder.write("key.pem", key.serialize_pem());
}

/// The user of docs/cluster.md, as the page has it.
fn documented_user() -> String {
    let page = fs::read_to_string("../../docs/cluster.md").unwrap();
    let start = page.find("user komainu on").unwrap();
    page[start..].split("```").next().unwrap().replace("PASSWORD", "secret")
}

#[test]
fn tls_with_client_certificates_and_users_is_spoken() {
    let folder = Scratch::new();
    certify(&folder);
    let port = free_port();
    let at = |name: &str| folder.0.join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    folder.write("users.conf", documented_user() + "user default off\n");
    let _redis = Redis::start(
        &folder.0,
        "redis",
        &[
            "--port",
            "0",
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &path("cert.pem"),
            "--tls-key-file",
            &path("key.pem"),
            "--tls-ca-cert-file",
            &path("ca.pem"),
            "--include",
            &path("users.conf"),
        ],
    );
    folder.write("password", "secret\n");
    folder.write("wrong", "another\n");
    let url = format!("rediss://komainu@localhost:{port}");
    let open = |ca: Option<&str>, client: bool, password: &str, url: &str| {
        let options = options("one", url, |table| {
            table.ca = ca.map(at);
            table.certificate = client.then(|| at("cert.pem"));
            table.certificate_key = client.then(|| at("key.pem"));
            table.password_file = Some(at(password));
        });
        block_on(async {
            let mut store = StoreConnection::open(&options).await?;
            store.command(&[b"PING"]).await
        })
    };
    assert_eq!(open(Some("ca.pem"), true, "password", &url).unwrap().text().unwrap(), "PONG");
    let refused = |outcome: Result<_, cluster::StoreError>| outcome.unwrap_err().to_string();
    assert!(refused(open(None, true, "password", &url)).contains("UnknownIssuer"));
    assert!(open(Some("ca.pem"), false, "password", &url).is_err(), "Redis wants a certificate");
    let text = refused(open(Some("ca.pem"), true, "wrong", &url));
    assert!(text.contains("WRONGPASS") || text.contains("assword"), "{text}");
    // The rights that the page gives the user are enough.
    let [one, two] = ["one", "two"].map(|name| {
        Server::start(options(name, &url, |table| {
            table.ca = Some(at("ca.pem"));
            table.certificate = Some(at("cert.pem"));
            table.certificate_key = Some(at("key.pem"));
            table.password_file = Some(at("password"));
        }))
    });
    one.store.receive_ticket_secrets(1_000, Box::new(|_, _| {}));
    one.write("a", "1");
    eventually("the other server has it", || two.files.text("a").is_some());
    assert!(matches!(block_on(one.store.lease("a")), LeaseOutcome::Held(_)));
    one.store.note_removed("a");
    eventually("all servers are there", || one.store.status().servers.len() == 2);
    assert_eq!(one.store.begin_purge(b"a".to_vec()).wait().applied, ["one", "two"]);
    assert!(one.store.exchange_blocking() && one.problems().is_empty(), "{:?}", one.problems());
    let other_name = url.replace("localhost", "127.0.0.1");
    assert!(refused(open(Some("ca.pem"), true, "password", &other_name)).contains("certificate"));
}

#[test]
fn sentinels_name_the_primary_also_after_a_failover() {
    let folder = Scratch::new();
    let ports: [u16; 3] = [(); 3].map(|()| free_port());
    let [first, second, sentinel] = ports.map(|port| port.to_string());
    let primary = Redis::start(&folder.0, "first", &["--port", &first]);
    let replica =
        Redis::start(&folder.0, "second", &["--port", &second, "--replicaof", &format!("127.0.0.1 {first}")]);
    eventually("the replica follows", || replica.ask("INFO replication").contains("master_link_status:up"));
    let configuration = folder.write(
        "sentinel.conf",
        format!(
            "port {sentinel}\nsentinel monitor main 127.0.0.1 {first} 1\nsentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 2000\n"
        ),
    );
    let _sentinel = {
        let mut command = std::process::Command::new("redis-server");
        command.arg(&configuration).arg("--sentinel").arg("--dir").arg(&folder.0);
        KillOnDrop(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    };
    let url = format!("redis://127.0.0.1:{sentinel}");
    let of = |name: &str| {
        options(name, "redis://127.0.0.1:1", |table| {
            // The first Sentinel cannot be reached.
            table.store.push(StoreAddress::parse(&url).unwrap());
            table.sentinel = Some("main".to_owned());
        })
    };
    let [one, two] = ["one", "two"].map(|name| Server::start(of(name)));
    one.write("a", "1");
    eventually("the other server has it", || two.files.text("a").is_some());
    // The replica is known to the Sentinel, so that it can follow the primary.
    eventually("the replica has it", || replica.ask("HGET komainu:1:times a").contains("$13"));
    drop(primary);
    eventually("the replica is the primary", || replica.ask("ROLE").contains("master"));
    one.write("b", "2");
    eventually("the servers use it", || two.files.text("b").as_deref() == Some("2"));
    let unknown = options("x", &url, |table| table.sentinel = Some("other".to_owned()));
    let text = block_on(StoreConnection::open(&unknown)).err().unwrap().to_string();
    assert!(text.contains("knows no primary \"other\""), "{text}");
    assert!(fs::exists(&configuration).unwrap());
}

struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_cluster_is_refused_by_its_name() {
    let folder = Scratch::new();
    let [port, bus] = [free_port(), free_port()].map(|port| port.to_string());
    let options_of_node = ["--port", &port, "--cluster-enabled", "yes", "--cluster-port", &bus];
    let redis = Redis::start(&folder.0, "redis", &options_of_node);
    let server = Server::start(options("one", &redis.url(), |_| {}));
    eventually("it is reported", || {
        let error = server.store.status().last_error;
        error.is_some_and(|text| text.contains("Redis Cluster is not supported"))
    });
}
