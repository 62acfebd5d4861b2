//! An authority that breaks the rules: its orders fail, and the certificate before stays in use.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::authority::MockAuthority;
use crate::rig::{Rig, Scratch};
use certificates::directives::{AcmeChallenge, AcmeDirectory};
use certificates::{HttpChallenges, Options, Subject};

const NAME: &str = "a.komainu-test.com";

fn options(scratch: &Scratch, authority: &MockAuthority) -> Options {
    Options {
        directories: vec![AcmeDirectory::at(authority.directory())],
        email: None,
        challenges: vec![AcmeChallenge::Http01],
        dns: None,
        ask: None,
        state_folder: scratch.0.join("state"),
        cluster: None,
        roots_pem: authority.root_pem.clone().into_bytes(),
    }
}

fn until(rig: &Rig, what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "{what}\n{}", rig.served.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the authority has been asked for the renewal window this number of times more.
fn until_windows(rig: &Rig, authority: &MockAuthority, number: usize) {
    let before = authority.count("/window");
    until(rig, "queries for the window", || authority.count("/window") >= before + number);
}

#[test]
fn backdated_certificate_is_not_renewed_before_it_was_kept_for_an_hour() {
    let scratch = Scratch::new("backdated");
    let authority = MockAuthority::start();
    let challenges = HttpChallenges::default();
    for _ in 0..2 {
        let rig = Rig::start(options(&scratch, &authority), &[NAME], &challenges);
        rig.obtained(NAME);
        until_windows(&rig, &authority, 5);
        assert_eq!(authority.count("/certificate"), 1, "{}", rig.served.log());
    }
    let rig = Rig::start(options(&scratch, &authority), &[NAME], &challenges);
    rig.obtained(NAME);
    rig.moved_s.store(3_700, Ordering::Relaxed);
    until(&rig, "a renewal", || authority.count("/certificate") == 2);
    until_windows(&rig, &authority, 5);
    assert_eq!(authority.count("/certificate"), 2, "{}", rig.served.log());
}

#[test]
fn rules_that_an_authority_breaks_fail_its_orders() {
    let scratch = Scratch::new("hostile");
    let authority = MockAuthority::start();
    let rig = Rig::start(options(&scratch, &authority), &[NAME], &HttpChallenges::default());
    rig.obtained(NAME);
    let stored = scratch.0.join("state/certificates").join(format!("{NAME}.pem"));
    let over_http = "over `http://`";
    let not_followed = "redirects are not followed";
    for (mode, words) in [
        ("nonce over HTTP", over_http),
        ("order over HTTP", over_http),
        ("window over HTTP", over_http),
        ("location over HTTP", over_http),
        ("authorization over HTTP", over_http),
        ("challenge over HTTP", over_http),
        ("finalize over HTTP", over_http),
        ("certificate over HTTP", over_http),
        ("nonce of no URL", "is not a URL"),
        ("/dir", "no ACME directory"),
        ("/order", not_followed),
        ("/certificate", not_followed),
        ("many authorizations", "20001 authorizations"),
        ("another authorization", "is for victim.komainu-test.com"),
        ("wildcard authorization", "is for *.a.komainu-test.com"),
        ("token of a path", "token \"../../x\\r\\n\""),
        ("long token", "token \"ttt"),
        ("another name", "also for victim.komainu-test.com"),
        ("no name", "is not for a.komainu-test.com"),
        ("more names", "also for *.com"),
        ("mail address", "also for"),
        ("another key", "another key"),
        ("an authority", "an authority"),
        ("for clients", "not for servers"),
        ("ended", "valid until"),
        ("ends soon", "valid until"),
        ("begins later", "valid from"),
        ("text", "\"garbage\""),
        ("a key", "\"-----BEGIN PRIVATE KEY-----\""),
        ("broken chain", "no certificate"),
        ("cut chain", "cut off"),
        ("long chain", "11 certificates"),
        ("empty chain", "no certificate"),
    ] {
        let first = rig.until(NAME, "success", |status| status.last_error.is_none() && status.info.is_some());
        let before = fs::read(&stored).unwrap();
        let logged = rig.served.log().len();
        authority.set_mode(mode);
        assert!(rig.renewer.renew(&Subject::parse(NAME).unwrap()));
        let failed = rig.until(NAME, mode, |status| status.last_error.is_some() || status.info != first.info);
        assert_eq!(failed.info, first.info, "{mode}");
        let (_, text) = failed.last_error.unwrap();
        assert!(text.contains(words), "{mode}: {text}");
        assert!(failed.retry_at.is_some(), "{mode}");
        assert_eq!(fs::read(&stored).unwrap(), before, "{mode}");
        assert!(!rig.served.log()[logged..].contains("obtained from"), "{mode}: {}", rig.served.log());
        authority.set_mode("honest");
        assert!(rig.renewer.renew(&Subject::parse(NAME).unwrap()));
    }
    assert_eq!(authority.count("plain"), 0, "connections without TLS");
}

#[test]
fn wait_without_end_does_not_end_renewals() {
    let scratch = Scratch::new("wait");
    let authority = MockAuthority::start();
    let rig = Rig::start(options(&scratch, &authority), &[NAME], &HttpChallenges::default());
    rig.obtained(NAME);
    authority.set_mode("endless wait");
    rig.renewer.renew(&Subject::parse(NAME).unwrap());
    rig.until(NAME, "an error", |status| status.last_error.is_some());
    authority.set_mode("honest");
    let issued = authority.count("/certificate");
    // The longest wait that an authority may ask for is a week.
    rig.moved_s.store(8 * 86_400, Ordering::Relaxed);
    rig.renewer.renew(&Subject::parse(NAME).unwrap());
    until(&rig, "another certificate", || authority.count("/certificate") > issued);
}

#[test]
fn certificate_that_cannot_be_served_does_not_replace_the_one_before() {
    let scratch = Scratch::new("unusable");
    let authority = MockAuthority::start();
    let rig = Rig::start(options(&scratch, &authority), &[NAME], &HttpChallenges::default());
    let first = rig.obtained(NAME);
    let stored = scratch.0.join("state/certificates").join(format!("{NAME}.pem"));
    let before = fs::read(&stored).unwrap();
    rig.served.refuses.store(true, Ordering::Relaxed);
    rig.renewer.renew(&Subject::parse(NAME).unwrap());
    let failed = rig.until(NAME, "an error", |status| status.last_error.is_some());
    assert!(failed.last_error.unwrap().1.contains("cannot be served"));
    assert!(failed.info == first.info && failed.retry_at.is_some());
    assert_eq!(fs::read(&stored).unwrap(), before);
}
