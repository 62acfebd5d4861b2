//! Groups whose servers are replaced while they are used.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use http::Method;
use proxy::{CoreGroup, CurrentGroup, GroupOptions, GroupReload, KnownServers, RouteOptions};

use crate::rig::{Hop, Origin, Rig};

/// A proxy to a group that the test replaces.
struct Replaced {
    current: Arc<CurrentGroup>,
    known: KnownServers,
    rig: Rig,
}

impl Replaced {
    fn to(origins: &[&Origin]) -> Replaced {
        let mut groups = GroupReload::default();
        let shared = groups.build(options(origins)).unwrap();
        let current = Arc::new(CurrentGroup::new(shared.clone()));
        let route = Arc::new(RouteOptions::default());
        let theirs = current.clone();
        let rig = Rig::serving(1, shared, move |core, _| {
            Hop(CoreGroup::new(core, &theirs, Box::new(|_| ())).proxy(&route, None))
        });
        Replaced { current, known: groups.finish(), rig }
    }

    fn replace(&mut self, origins: &[&Origin]) {
        let next = self.known.replace(&self.current.get(), options(origins)).unwrap();
        self.current.replace(next);
    }

    fn bodies(&self, count: usize) -> Vec<String> {
        let mut bodies: Vec<String> = (0..count).map(|_| self.rig.get("/").text()).collect();
        bodies.sort();
        bodies.dedup();
        bodies
    }
}

fn options(origins: &[&Origin]) -> GroupOptions {
    GroupOptions::new(origins.iter().map(|origin| origin.server()).collect())
}

fn requests(current: &CurrentGroup, server: usize) -> u64 {
    current.get().counters(server).iter().map(|one| one.requests.value()).sum()
}

#[test]
fn connections_and_counts_of_servers_that_stay_are_kept() {
    let one = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none");
    let two = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo");
    let mut replaced = Replaced::to(&[&one]);
    assert_eq!(replaced.bodies(5), ["one"]);
    for round in 0..20 {
        replaced.replace(&[&one, &two]);
        assert_eq!(replaced.bodies(4), ["one", "two"], "{round}");
        replaced.replace(&[&one]);
        assert_eq!(replaced.bodies(2), ["one"], "{round}");
    }
    assert_eq!(one.connections(), 1);
    assert_eq!(requests(&replaced.current, 0), 5 + 20 * (2 + 2));
}

#[test]
fn requests_end_at_a_server_that_leaves_and_its_connections_close() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let leaving = Origin::start(move |mut caller, _| {
        while let Some(request) = caller.request() {
            if request.starts_with(b"GET /slow") {
                held.lock().unwrap().recv().unwrap();
            }
            caller.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold");
        }
    });
    let staying = Origin::answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew");
    let mut replaced = Replaced::to(&[&leaving]);
    let mut slow = replaced.rig.client();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    leaving.wait_seen("GET /slow");
    assert_eq!(replaced.bodies(3), ["old"]);
    replaced.replace(&[&staying]);
    assert_eq!(replaced.bodies(3), ["new"]);
    release.send(()).unwrap();
    assert_eq!(slow.response(Method::Get).unwrap().text(), "old");
    let until = Instant::now() + Duration::from_secs(30);
    while leaving.open() > 0 {
        assert!(Instant::now() < until, "connections to a server that has left stay open");
        thread::sleep(Duration::from_millis(5));
    }
}
