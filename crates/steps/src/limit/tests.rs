//! Tests of limit keys, and of limits across reloads.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::*;

fn keys(of: &RateLimit, clients: &[&str]) -> usize {
    let memory = MemoryBudget::default();
    let shared = SharedLimit::new(of, RouteLabels::default(), &memory);
    let key = |client: &&str| {
        let mut hasher = shared.hasher();
        let peer = match client.parse::<IpAddr>() {
            Ok(address) => Peer::Tcp(SocketAddr::new(address, 7)),
            Err(_) => Peer::Unix,
        };
        add_client(&mut hasher, peer, of);
        hasher.key()
    };
    clients.iter().map(key).collect::<HashSet<u64>>().len()
}

#[test]
fn clients_are_grouped_by_network_prefix() {
    let limit = RateLimit { ipv4_prefix: 32, ipv6_prefix: 64, ..RateLimit::default() };
    assert_eq!(keys(&limit, &["192.0.2.1", "192.0.2.2", "::ffff:192.0.2.1", "unix"]), 3);
    assert_eq!(keys(&limit, &["2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", "2001:db8:0:1::1"]), 2);
    let wide = RateLimit { ipv4_prefix: 24, ipv6_prefix: 48, ..RateLimit::default() };
    assert_eq!(keys(&wide, &["192.0.2.1", "192.0.2.200", "192.0.3.1"]), 2);
    assert_eq!(keys(&wide, &["2001:db8::1", "2001:db8:0:ffff::1", "2001:db8:1::1"]), 2);
    let one = RateLimit { ipv6_prefix: 128, ..RateLimit::default() };
    assert_eq!(keys(&one, &["2001:db8::1", "2001:db8::2"]), 2);
}

#[test]
fn query_parameters_are_found_by_exact_name() {
    for (query, value) in
        [("k=1", Some("1")), ("a=b&k=2&kk=3", Some("2")), ("key=1&k", None), ("", None), ("k=", Some(""))]
    {
        assert_eq!(parameter(query.as_bytes(), b"k").as_deref(), value.map(str::as_bytes), "{query}");
    }
}

#[test]
fn values_are_decoded_before_comparison() {
    for (query, value) in [
        ("k=%53ECRET", "SECRET"),
        ("%6b=SECRET", "SECRET"),
        ("%6B=%53%45CRET", "SECRET"),
        ("k=a+b", "a b"),
        ("k=a%20b", "a b"),
        ("k=a%2bb", "a+b"),
        ("k=100%", "100%"),
        ("k=%zz%4", "%zz%4"),
        ("k=a=b", "a=b"),
    ] {
        assert_eq!(parameter(query.as_bytes(), b"k").as_deref(), Some(value.as_bytes()), "{query}");
    }
    for cookie in ["SECRET", " SECRET ", "\"SECRET\"", "%53ECRET", "\"SECRE%54\""] {
        assert_eq!(*cookie_value(cookie.as_bytes()), *b"SECRET", "{cookie}");
    }
    assert_eq!(*cookie_value(b"\""), *b"\"");
}

#[test]
fn conflicting_values_are_treated_as_absent() {
    for query in ["k=j1&k=REAL", "k=REAL&k=j1", "k&k=REAL", "k=REAL&%6b=", "k=a&k=a&k=b"] {
        assert_eq!(parameter(query.as_bytes(), b"k"), None, "{query}");
    }
    assert_eq!(parameter(b"k=a&x=1&%6b=%61", b"k").as_deref(), Some(&b"a"[..]));
}

#[test]
fn unchanged_limit_keeps_its_counts_across_reloads() {
    let config = |rate: &str, path: &str| {
        let text = format!(
            r#"
            [[site]]
            hosts = ["a.test"]
            limit = "1/h"
            [[site.route]]
            path = "{path}"
            limit = "{rate}"
            respond = "x"
            "#
        );
        Config::parse(&text, "k.toml", std::path::Path::new("")).unwrap().0
    };
    let memory = MemoryBudget::new(1 << 30);
    let mut state = KeptState::default();
    let first = LimitPlan::new(&config("5/s", "/a"), &mut state, &memory);
    let held = memory.held_bytes();
    assert!(held > 0);
    let same = |plan: &LimitPlan, other: &LimitPlan| -> Vec<bool> {
        plan.all().zip(other.all()).map(|(one, other)| Arc::ptr_eq(one, other)).collect()
    };
    for (rate, path, kept) in
        [("5/s", "/a", [true, true]), ("6/s", "/a", [true, false]), ("5/s", "/b", [true, false])]
    {
        assert_eq!(same(&first, &LimitPlan::new(&config(rate, path), &mut state.successor(), &memory)), kept);
    }
    assert_eq!(memory.held_bytes(), held);
    drop((first, state));
    assert_eq!(memory.held_bytes(), 0);
}
