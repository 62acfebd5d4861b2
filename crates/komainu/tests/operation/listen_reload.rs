//! Changes of `listen` by a reload.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use crate::hosted;
use crate::hosted::{Client, status};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, is_root, komainu, text};

fn start(kind: &str) -> Rig {
    let folder = Folder::new();
    folder.write("www/a", "A");
    folder.write("komainu.toml", config(kind, "\"127.0.0.1:0\""));
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

fn config(kind: &str, listen: &str) -> String {
    format!(
        r#"
        listen = [{listen}]
        threads = 3
        {kind}
        [[route]]
        files = "www"
        "#
    )
}

/// Reloads with a new configuration; returns whether it was accepted, and the output.
fn reload(rig: &Rig, text: &str) -> (bool, String) {
    rig.folder.write("komainu.toml", text);
    let done = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
    (done.status.success(), self::text(&done.stdout) + &self::text(&done.stderr))
}

#[track_caller]
fn reload_in_order(rig: &Rig, text: &str) {
    let (done, said) = reload(rig, text);
    assert!(done, "{said}");
}

/// Addresses that the server reports to serve on.
fn addresses(rig: &Rig) -> Vec<String> {
    let listen = status(rig)["listen"].clone();
    listen.as_array().unwrap().iter().map(|address| address.as_str().unwrap().to_owned()).collect()
}

fn port_of(address: &str) -> SocketAddr {
    address.strip_prefix("http://").unwrap().parse().unwrap()
}

/// Each thread has a socket, so several connections are needed to reach all of them.
fn serves(address: SocketAddr) {
    for _ in 0..12 {
        assert_eq!(Client::new(address).get("/a"), (200, "A".into()));
    }
}

#[test]
fn reload_adds_keeps_and_removes_listen_addresses() {
    for kind in rig::kinds() {
        let rig = start(kind);
        let mut kept = Client::new(rig.address);
        assert_eq!(kept.get("/a").0, 200);
        let unix = rig.folder.at("web.sock");
        let more = format!("\"127.0.0.1:0\", \"127.0.0.2:0\", \"unix:{}\"", unix.display());
        reload_in_order(&rig, &config(kind, &more));
        let now = addresses(&rig);
        assert_eq!(now.len(), 3);
        assert_eq!(port_of(&now[0]), rig.address, "it is the same socket");
        let second = port_of(&now[1]);
        serves(rig.address);
        serves(second);
        let curl = rig::curl(&["--unix-socket", &unix.display().to_string(), "http://localhost/a"]);
        assert_eq!(text(&curl.stdout), "A");
        // The first address is closed; its connections stay open.
        reload_in_order(&rig, &config(kind, &format!("\"{second}\"")));
        assert_eq!(addresses(&rig), [now[1].clone()]);
        eventually("nobody listens there", || TcpStream::connect(rig.address).is_err());
        assert_eq!(kept.get("/a"), (200, "A".into()));
        assert!(!unix.exists());
        serves(second);
        // The address is opened again, at the same port.
        reload_in_order(&rig, &config(kind, &format!("\"{second}\", \"{}\"", rig.address)));
        serves(rig.address);
        serves(second);
    }
}

#[test]
fn reload_with_occupied_address_changes_nothing() {
    for kind in rig::kinds() {
        let rig = start(kind);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let blocker = TcpListener::bind("127.0.0.1:0").unwrap();
        let blocked = blocker.local_addr().unwrap();
        let (done, said) = reload(&rig, &config(kind, &format!("\"{taken}\", \"{blocked}\"")));
        assert!(!done && said.contains(&blocked.to_string()) && said.contains("listens there"), "{said}");
        assert!(said.contains("was not changed"), "{said}");
        serves(rig.address);
        eventually("what was bound is closed again", || TcpStream::connect(taken).is_err());
        drop(blocker);
        // A process just started by another test may still hold a copy of the socket.
        let both = config(kind, &format!("\"{taken}\", \"{blocked}\""));
        eventually("both addresses are free", || reload(&rig, &both).0);
        serves(taken);
        serves(blocked);
    }
}

#[test]
fn reload_changes_proxy_protocol_on_the_same_socket() {
    for kind in rig::kinds() {
        let rig = start(kind);
        let with = "{ address = \"127.0.0.1:0\", proxy_protocol = [\"127.0.0.1\"] }";
        reload_in_order(&rig, &config(kind, with));
        assert_eq!(port_of(&addresses(&rig)[0]), rig.address);
        let announced = || {
            let mut client = Client::new(rig.address);
            client
                .send("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\nGET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.answer().0
        };
        for _ in 0..6 {
            assert_eq!(announced(), 200);
        }
        reload_in_order(&rig, &config(kind, "\"127.0.0.1:0\""));
        serves(rig.address);
        assert_eq!(announced(), 400);
    }
}

#[test]
fn no_connection_fails_while_listen_addresses_change() {
    for kind in rig::kinds() {
        let rig = start(kind);
        // Clients keep connecting while addresses change.
        let address = rig.address;
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let theirs = stop.clone();
        let clients = std::thread::spawn(move || {
            let mut count = 0;
            while !theirs.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(Client::new(address).get("/a").0, 200);
                count += 1;
            }
            count
        });
        for round in 0..6 {
            let second = if round % 2 == 0 { ", \"127.0.0.3:0\"" } else { "" };
            reload_in_order(&rig, &config(kind, &format!("\"127.0.0.1:0\"{second}")));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(clients.join().unwrap() > 0);
    }
}

#[test]
fn supervisor_passes_privileged_port_to_restarted_server() {
    if !is_root() {
        return eprintln!("SKIPPED: only root can start a server with a supervisor");
    }
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let first: u16 = first.trim().parse().unwrap();
    let port = (600..first.max(601)).find(|port| TcpListener::bind(("127.0.0.2", *port)).is_ok());
    let Some(port) = port else { return eprintln!("SKIPPED: this system keeps no port for root") };
    let kind = "user = \"65534\"\ngroup = \"65534\"\n";
    let rig = start(kind);
    let address: SocketAddr = ([127, 0, 0, 2], port).into();
    reload_in_order(&rig, &config(kind, &format!("\"127.0.0.1:0\", \"{address}\"")));
    serves(address);
    let pid = status(&rig)["pid"].as_u64().unwrap() as u32;
    assert!(hosted::kill(pid, "-KILL"));
    serves(address);
    serves(rig.address);
    assert_eq!(addresses(&rig).len(), 2);
}

#[test]
fn privileged_port_error_names_every_remedy() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let first: u16 = first.trim().parse().unwrap();
    if first <= 81 {
        return eprintln!("SKIPPED: this system keeps no port for root");
    }
    let folder = Folder::new();
    // The build directory may be unreadable for that user, so the program is copied.
    rig::copy_program(&folder.at("komainu"));
    let arguments = ["run", "--listen", "127.0.0.1:81", "."];
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(folder.at("komainu"));
        command
    } else {
        Command::new(folder.at("komainu"))
    };
    let refused = command.args(arguments).current_dir(folder.path()).output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    for part in [
        "127.0.0.1:81",
        "CAP_NET_BIND_SERVICE",
        "AmbientCapabilities=",
        "sysctl net.ipv4.ip_unprivileged_port_start=81",
        "`user`",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn reload_adds_and_removes_included_files() {
    for kind in rig::kinds() {
        let rig = start(kind);
        let config = |more: &str| {
            format!(
                r#"
                include = ["sites/*.toml"]
                listen = "127.0.0.1:0"
                threads = 3
                {kind}
                {more}
                [[route]]
                files = "www"
                "#
            )
        };
        let seen = |host: &str| {
            let curl = rig::curl(&["-H", &format!("Host: {host}"), &format!("http://{}/", rig.address)]);
            text(&curl.stdout)
        };
        let site = |name: &str| {
            format!(
                r#"
                [[site]]
                hosts = "{name}.test"
                [[site.route]]
                respond = {{ status = 200, body = "{name} ${{GREETING:-hello}}" }}
                "#
            )
        };
        // A pattern may match no file, which is reported if it is likely to be a mistake.
        let (done, said) = reload(&rig, &config(""));
        assert!(done && said.contains("no file matches it"), "{said}");
        fs::create_dir(rig.folder.at("sites")).unwrap();
        let (done, said) = reload(&rig, &config(""));
        assert!(done && !said.contains("no file matches"), "{said}");
        rig.folder.write("sites/b.tml", site("b"));
        let (done, said) = reload(&rig, &config(""));
        assert!(done && said.contains("`include = \"sites/*.toml\"` in "), "{said}");
        assert!(said.contains("komainu.toml:2: no file matches it"), "{said}");
        rig.folder.write("sites/b.toml", site("b"));
        rig.folder.write("sites/a.toml", site("a"));
        reload_in_order(&rig, &config(""));
        assert_eq!((seen("a.test"), seen("b.test")), ("a hello".into(), "b hello".into()));
        // An error names its file, and the old configuration stays active.
        rig.folder.write("sites/a.toml", "\n[[sit]]\n");
        let (done, said) = reload(&rig, &config(""));
        assert!(!done && said.contains("sites/a.toml:2:"), "{said}");
        assert_eq!(seen("a.test"), "a hello");
        fs::remove_file(rig.folder.at("sites/a.toml")).unwrap();
        reload_in_order(&rig, &config(""));
        assert_ne!(seen("a.test"), "a hello");
        let (done, said) = reload(
            &rig,
            r#"
            include = "none.toml"
            [[route]]
            files = "www"
            "#,
        );
        assert!(!done && said.contains("`include = \"none.toml\"` in "), "{said}");
        assert!(said.contains("komainu.toml:2"), "{said}");
        // A FIFO does not block the reload, and circular includes are rejected.
        let fifo = Command::new("mkfifo").arg(rig.folder.at("sites/c.toml")).status().unwrap();
        assert!(fifo.success());
        let (done, said) = reload(&rig, &config(""));
        assert!(!done && said.contains("c.toml: this is not a file"), "{said}");
        fs::remove_file(rig.folder.at("sites/c.toml")).unwrap();
        rig.folder.write("sites/c.toml", "include = [\"../komainu.toml\", \"../sites/c.toml\"]\n");
        let (done, said) = reload(&rig, &config(""));
        assert!(!done && said.contains("files would include each other without end"), "{said}");
        fs::remove_file(rig.folder.at("sites/c.toml")).unwrap();
        // A configuration without routes is reported.
        let (done, said) = reload(&rig, &format!("listen = \"127.0.0.1:0\"\nthreads = 3\n{kind}"));
        assert!(done && said.contains("every request is answered 404"), "{said}");
        reload_in_order(&rig, &config(""));
        // An empty file is rejected as a probable accident.
        let (done, said) = reload(&rig, "# nothing\n");
        assert!(!done && said.contains("says nothing"), "{said}");
        assert_eq!(seen("b.test"), "b hello");
    }
}
