//! Sets of servers with one Redis server.

use cluster::{LeaseOutcome, StoreEvent};

use crate::redis_server::{Redis, Scratch};
use crate::{Server, block_on, eventually, options};

#[test]
fn files_reach_all_servers_and_outlive_a_store_that_lost_everything() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let url = redis.url();
    let [one, two] = ["one", "two"].map(|name| Server::start(options(name, &url, |_| {})));
    one.write("a", "1");
    eventually("the other server has it", || two.files.text("a").as_deref() == Some("1"));
    two.write("a", "2");
    eventually("the first server has the newer one", || one.files.text("a").as_deref() == Some("2"));
    one.write("first", "one");
    eventually("the other server has the first", || two.files.text("first").is_some());
    two.write("first", "two");
    eventually("the first one is kept", || two.files.text("first").as_deref() == Some("one"));
    drop(redis);
    // Nobody can be asked, and nothing stops.
    eventually("it is reported", || !one.store.status().is_up && !two.store.status().is_up);
    one.write("b", "3");
    assert!(!one.store.exchange_blocking());
    let redis = Redis::start(&folder.0, "redis", &[]);
    eventually("what was written meanwhile arrives", || two.files.text("b").as_deref() == Some("3"));
    let third = Server::start(options("third", &redis.url(), |_| {}));
    eventually("a new server has all", || {
        ["a", "b", "first"].map(|name| third.files.text(name).unwrap_or_default()) == ["2", "3", "one"]
    });
    for server in [&one, &two] {
        assert_eq!(server.count(|event| matches!(event, StoreEvent::Away(_))), 1);
        eventually("it is reported", || server.count(|event| *event == StoreEvent::Back) == 1);
    }
    one.files.0.lock().unwrap().remove("b");
    one.store.note_removed("b");
    eventually("it is gone", || two.files.text("b").is_none() && third.files.text("b").is_none());
}

#[test]
fn a_lease_has_one_holder_and_what_a_former_holder_writes_is_refused() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let [one, two] = ["one", "two"].map(|name| Server::start(options(name, &redis.url(), |_| {})));
    let lease = |server: &Server| block_on(server.store.lease("name"));
    let LeaseOutcome::Held(first) = lease(&one) else { panic!("nobody has it") };
    assert!(matches!(lease(&two), LeaseOutcome::Elsewhere));
    one.files.put("a", "made under the lease");
    one.store.note_written("a", Some("name"));
    drop(first);
    // What was made under a lease is there before it ends.
    let mut second = None;
    eventually("the lease has ended", || {
        second = Some(lease(&two));
        matches!(second, Some(LeaseOutcome::Held(_)))
    });
    assert!(two.store.exchange_blocking());
    assert_eq!(two.files.text("a").as_deref(), Some("made under the lease"));
    drop(second);
    let mut first = None;
    eventually("the lease has ended", || {
        first = Some(lease(&one));
        matches!(first, Some(LeaseOutcome::Held(_)))
    });
    // The store loses the lease, and another server gets it.
    redis.ask("DEL komainu:1:lease:name");
    let LeaseOutcome::Held(second) = lease(&two) else { panic!("it was lost") };
    two.files.put("a", "of the holder");
    two.store.note_written("a", Some("name"));
    assert!(two.store.exchange_blocking());
    one.files.put("a", "of the former holder");
    one.store.note_written("a", Some("name"));
    eventually("the former holder has what is valid", || {
        one.files.text("a").as_deref() == Some("of the holder")
    });
    assert!(two.store.exchange_blocking());
    assert_eq!(two.files.text("a").as_deref(), Some("of the holder"));
    drop((first, second));
    drop(redis);
    eventually("it cannot be asked", || matches!(lease(&one), LeaseOutcome::Away));
}

#[test]
fn purges_are_acknowledged_replayed_and_kept_while_the_store_is_away() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let url = redis.url();
    let start = |name| Server::start(options(name, &url, |_| {}));
    let [one, two, three] = ["one", "two", "three"].map(start);
    let purge = |server: &Server, order: &str| server.store.begin_purge(order.as_bytes().to_vec()).wait();
    // A server that has just started is not waited for before it has said that it is there.
    eventually("all servers are there", || one.store.status().servers.len() == 3);
    let report = purge(&one, "a");
    assert_eq!(report.applied, ["one", "three", "two"], "{report:?}");
    assert_eq!((&report.missing[..], &report.error), (&[][..], &None));
    for other in [&two, &three] {
        assert!(other.purged().contains(&"a".to_owned()), "{:?}", other.purged());
    }
    assert_eq!(one.purged(), [""; 0], "its own purges do not come back");
    // A server that is away gets what it has missed when it is back.
    drop(three);
    assert_eq!(purge(&two, "b").error, None);
    let three = start("three");
    eventually("it is replayed", || three.purged().contains(&"b".to_owned()));
    drop(redis);
    eventually("the store is away", || !two.store.status().is_up && !one.store.status().is_up);
    let report = purge(&one, "c");
    assert!(report.error.is_some() && report.applied.is_empty(), "{report:?}");
    let _redis = Redis::start(&folder.0, "redis", &[]);
    for other in [&two, &three] {
        eventually("it arrives afterwards", || other.purged().contains(&"c".to_owned()));
    }
    assert!(!two.purged().contains(&"everything".to_owned()));
}

#[test]
fn purge_that_a_server_cannot_read_is_missing_there() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let keys = [folder.write("one.key", [1; 48]), folder.write("two.key", [2; 48])];
    let start = |name, key: &std::path::PathBuf| {
        Server::start(options(name, &redis.url(), |table| {
            table.key = Some(key.clone());
            table.purge_timeout = std::time::Duration::from_secs(1);
        }))
    };
    let (one, two) = (start("one", &keys[0]), start("two", &keys[1]));
    eventually("both are there", || one.store.status().servers.len() == 2);
    for _ in 0..2 {
        let report = one.store.begin_purge(b"a".to_vec()).wait();
        assert_eq!((report.applied, report.missing), (vec!["one".to_owned()], vec!["two".to_owned()]));
    }
    assert!(!two.purged().contains(&"a".to_owned()));
}

#[test]
fn servers_that_the_store_makes_up_are_not_asked() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let key = folder.write("key", [7; 48]);
    let one = Server::start(options("one", &redis.url(), |table| {
        table.key = Some(key);
        table.peers = Some("127.0.0.1:8700".parse().unwrap());
    }));
    let names = || one.store.peers().iter().map(|peer| peer.name.clone()).collect::<Vec<_>>();
    eventually("it knows itself", || names() == ["one"]);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    redis.ask(&format!("HSET komainu:1:members evil \"{now} 0000000000000001 0-0 127.0.0.1:9\""));
    eventually("the store names another one", || one.store.status().servers.len() == 2);
    assert_eq!(names(), ["one"]);
}

#[test]
fn server_that_has_missed_too_many_purges_purges_everything() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let one = Server::start(options("one", &redis.url(), |_| {}));
    let two = Server::start(options("two", &redis.url(), |_| {}));
    eventually("both are there", || one.store.status().servers.len() == 2);
    assert_eq!(one.store.begin_purge(b"a".to_vec()).wait().applied, ["one", "two"]);
    assert_eq!(two.purged(), ["a"]);
    drop(two);
    // What the script does for the oldest of 10,000 entries.
    redis.ask("SET komainu:1:trimmed 99999999999999-0");
    let two = Server::start(options("two", &redis.url(), |_| {}));
    eventually("everything is purged", || two.purged().contains(&"everything".to_owned()));
    // It is reported after it was done.
    let is_reported = |text: &String| text.contains("everything in its cache is purged");
    eventually("it is reported", || two.problems().iter().any(is_reported));
}

#[test]
fn ticket_secrets_are_the_same_on_all_servers() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let secrets = ["one", "two"].map(|name| {
        let server = Server::start(options(name, &redis.url(), |_| {}));
        let (sender, received) = std::sync::mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        server.store.receive_ticket_secrets(
            1_000_000,
            Box::new(move |period, secret| _ = sender.lock().unwrap().send((period, secret))),
        );
        let receive = || received.recv_timeout(crate::PATIENCE).unwrap();
        let secrets = [receive(), receive()];
        drop(server);
        secrets
    });
    assert_eq!(secrets[0], secrets[1]);
    assert_eq!(secrets[0][0].0 + 1, secrets[0][1].0, "this period and the next");
    assert_ne!(secrets[0][0].1, secrets[0][1].1);
}

#[test]
fn values_of_the_store_are_encrypted_and_those_that_are_not_are_refused() {
    let folder = Scratch::new();
    let redis = Redis::start(&folder.0, "redis", &[]);
    let key = folder.write("key", [7; 48]);
    let with_key = |name| options(name, &redis.url(), |table| table.key = Some(key.clone()));
    let [one, two] = ["one", "two"].map(|name| Server::start(with_key(name)));
    one.write("a", "a secret text");
    one.write("b", "another text");
    eventually("it arrives", || two.files.text("b").is_some() && two.files.text("a").is_some());
    one.store.begin_purge(b"a purged text".to_vec()).wait();
    let stored = redis.ask("HGETALL komainu:1:files\r\nXRANGE komainu:1:purges - +");
    assert!(stored.contains("komainu") || stored.len() > 100, "{stored}");
    assert!(!stored.contains("text"), "{stored}");
    // The value of one name under another, one that is not encrypted, and garbage.
    let script = "local a = redis.call('HGET', 'komainu:1:files', 'a') \
                  for index, value in ipairs({a, 'Pplain', 'garbage', '', 'S'}) do \
                  local name = 'x' .. index \
                  redis.call('HSET', 'komainu:1:files', name, value) \
                  redis.call('HSET', 'komainu:1:times', name, '1') \
                  redis.call('ZADD', 'komainu:1:changes', redis.call('INCR', 'komainu:1:version'), name) end";
    redis.ask(&format!("EVAL \"{script}\" 0"));
    eventually("each is reported once", || two.problems().len() >= 5);
    one.write("c", "afterwards");
    eventually("others still arrive", || two.files.text("c").is_some());
    assert_eq!(two.problems().len(), 5, "{:?}", two.problems());
    assert!((1..=5).all(|index| two.files.text(&format!("x{index}")).is_none()));
    assert_eq!(two.store.status().refused, 5);
}
