//! A set that is cut in two: servers in network namespaces of their own, one of which loses the store.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cluster::{LeaseOutcome, StoreOptions};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::redis_server::Scratch;
use crate::{Server, block_on, eventually, options};

fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Namespaces of the store and of two servers, which reach the store and not each other.
struct Networks {
    names: [String; 3],
    redis: Option<Child>,
}

impl Networks {
    /// `None` without the rights.
    fn new(folder: &Scratch) -> Option<Networks> {
        let names = ["store", "one", "two"].map(|name| format!("komainu-{}-{name}", std::process::id()));
        let mut networks = Networks { names, redis: None };
        let [store, servers @ ..] = &networks.names;
        if !networks.names.iter().all(|name| ip(&format!("netns add {name}"))) {
            return None;
        }
        for (number, server) in servers.iter().enumerate() {
            let (subnet, link) = (format!("198.18.{number}"), format!("server{number}"));
            let made = [
                format!("-n {store} link add {link} type veth peer name store netns {server}"),
                format!("-n {store} addr add {subnet}.1/24 dev {link}"),
                format!("-n {store} link set {link} up"),
                format!("-n {server} addr add {subnet}.2/24 dev store"),
                format!("-n {server} link set store up"),
            ];
            assert!(made.iter().all(|words| ip(words)), "{made:?}");
        }
        let redis = Command::new("ip")
            .args(["netns", "exec", store, "redis-server", "--port", "6379", "--bind", "0.0.0.0"])
            .args(["--protected-mode", "no", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&folder.0)
            .stdout(Stdio::null())
            .spawn();
        networks.redis = Some(redis.unwrap());
        Some(networks)
    }

    /// Starts a server in its namespace; the threads that it starts are there too.
    fn server(&self, number: usize, name: &str) -> Server {
        let place = PathBuf::from("/run/netns").join(&self.names[number + 1]);
        let options: StoreOptions = options(name, &format!("redis://198.18.{number}.1"), |table| {
            table.timeout = Duration::from_millis(500);
            table.purge_timeout = Duration::from_millis(500);
        });
        let start = move || {
            let namespace = File::open(place).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            Server::start(options)
        };
        std::thread::spawn(start).join().unwrap()
    }

    /// Cuts the link of a server, or mends it.
    fn link(&self, number: usize, state: &str) {
        assert!(ip(&format!("-n {} link set server{number} {state}", self.names[0])));
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        if let Some(redis) = &mut self.redis {
            let _ = redis.kill();
            let _ = redis.wait();
        }
        self.names.iter().for_each(|name| _ = ip(&format!("netns del {name}")));
    }
}

#[test]
fn nothing_is_lost_when_a_set_is_cut_in_two() {
    let folder = Scratch::new();
    let Some(networks) = Networks::new(&folder) else {
        println!("SKIPPED: network namespaces need root and `ip`");
        return;
    };
    let (one, two) = (networks.server(0, "one"), networks.server(1, "two"));
    eventually("both reach the store", || one.store.status().servers.len() == 2 && two.store.status().is_up);
    one.write("a", "before");
    eventually("it arrives", || two.files.text("a").as_deref() == Some("before"));
    let lease = |server: &Server| block_on(server.store.lease("name"));
    let LeaseOutcome::Held(of_one) = lease(&one) else { panic!("nobody has it") };
    let purge = |server: &Server, order: &str| server.store.begin_purge(order.as_bytes().to_vec()).wait();

    networks.link(0, "down");
    eventually("the first server notices", || !one.store.status().is_up);
    assert!(matches!(lease(&one), LeaseOutcome::Away));
    assert!(matches!(lease(&two), LeaseOutcome::Elsewhere), "not before its time is over");
    one.files.put("certificate", "of the first");
    one.store.note_written("certificate", Some("name"));
    one.write("b", "of the first");
    two.write("c", "of the second");
    assert!(purge(&one, "by the first").error.is_some());
    assert_eq!(purge(&two, "by the second").error, None);
    // The lease ends by itself, and the other server orders.
    let mut of_two = None;
    eventually("the lease has ended", || {
        of_two = Some(lease(&two));
        matches!(of_two, Some(LeaseOutcome::Held(_)))
    });
    two.files.put("certificate", "of the second");
    two.store.note_written("certificate", Some("name"));
    assert!(two.store.exchange_blocking());

    networks.link(0, "up");
    eventually("the first server is back", || one.store.status().is_up);
    for server in [&one, &two] {
        eventually("both have all", || {
            ["b", "c", "certificate"].map(|name| server.files.text(name).unwrap_or_default())
                == ["of the first", "of the second", "of the second"]
        });
    }
    eventually("purges of both sides apply", || {
        one.purged().contains(&"by the second".to_owned())
            && two.purged().contains(&"by the first".to_owned())
    });
    assert!(matches!(lease(&one), LeaseOutcome::Elsewhere));
    drop((of_one, of_two));
}
