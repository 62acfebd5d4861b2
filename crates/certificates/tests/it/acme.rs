//! Certificates from Pebble, with all failures that it can simulate and with shifted clocks.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::pebble::{PebbleOptions, free_port};
use crate::rig::{Rig, Scratch, options, pebble};
use certificates::directives::{AcmeChallenge, AcmeDirectory, ExternalAccountBinding, MacKey};
use certificates::{DnsRecords, HttpChallenges, Options, Subject};

#[test]
fn a_certificate_is_obtained_stored_and_used_after_a_restart() {
    let scratch = Scratch::new("restart");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let rig = Rig::start(options(&scratch, &[&pebble]), &["a.komainu-test.com"], &challenges);
    let first = rig.obtained("a.komainu-test.com");
    let facts = first.info.clone().unwrap();
    assert_eq!(facts.subjects, [Subject::parse("a.komainu-test.com").unwrap()]);
    assert!(facts.issuer.starts_with("Pebble Intermediate CA"), "{}", facts.issuer);
    assert_eq!(first.directory.as_ref(), Some(&pebble.directory));
    // Pebble suggests a window of a day around the last third of the lifetime.
    let window = rig.until("a.komainu-test.com", "a window", |status| status.renew_at != first.renew_at);
    let renew_at = window.renew_at.unwrap();
    let third = facts.not_after - Duration::from_secs(30 * 86_400);
    let off = renew_at.duration_since(third).unwrap_or_else(|error| error.duration());
    assert!(off <= Duration::from_secs(2 * 86_400), "{off:?}");
    assert_eq!(challenges.response(b"/.well-known/acme-challenge/x"), None);
    assert_eq!(fs::read_dir(scratch.0.join("state/challenges")).unwrap().count(), 0);
    drop(rig);
    // No server listens at this directory: the stored certificate is used.
    let issued = pebble.issued();
    let mut again = options(&scratch, &[&pebble]);
    let rig = Rig::start(again.clone(), &["a.komainu-test.com"], &challenges);
    assert_eq!(rig.served.installs("a.komainu-test.com"), 1, "before the thread runs");
    assert_eq!(rig.obtained("a.komainu-test.com").info, Some(facts.clone()));
    // The stored account is reused for another name.
    let accounts = || fs::read_dir(scratch.0.join("state/accounts")).unwrap().map(|one| one.unwrap().path());
    let account = fs::read(accounts().next().unwrap()).unwrap();
    let both = ["a.komainu-test.com", "*.b.komainu-test.com"].map(|name| Subject::parse(name).unwrap());
    again.challenges.push(AcmeChallenge::Dns01);
    again.dns = Some(DnsRecords::Hook(vec![pebble.dns_hook().into()]));
    rig.renewer.serve(again.clone(), both.to_vec());
    rig.obtained("*.b.komainu-test.com");
    assert_eq!(accounts().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), [account]);
    assert_eq!(pebble.issued(), issued + 1);
    // A name that was removed is no longer served.
    rig.renewer.serve(again, both[1..].to_vec());
    let until = Instant::now() + Duration::from_secs(30);
    while rig.served.installs("a.komainu-test.com") > 0 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!rig.renewer.renew(&both[0]));
}

#[test]
fn bad_nonces_are_retried() {
    let scratch = Scratch::new("nonces");
    let challenges = HttpChallenges::default();
    let env = vec![("PEBBLE_WFE_NONCEREJECT", "50"), ("PEBBLE_AUTHZREUSE", "100")];
    let options_ = PebbleOptions { env, ..PebbleOptions::default() };
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], options_) else { return };
    let names = ["a.komainu-test.com", "b.komainu-test.com", "c.komainu-test.com", "d.komainu-test.com"];
    let rig = Rig::start(options(&scratch, &[&pebble]), &names, &challenges);
    for name in names {
        assert_eq!(rig.obtained(name).last_error, None, "{}", rig.served.log());
    }
    // A valid authorization requires no new challenge.
    assert!(rig.renewer.renew(&Subject::parse("a.komainu-test.com").unwrap()));
    let first = rig.obtained("a.komainu-test.com").info;
    rig.until("a.komainu-test.com", "another certificate", |status| status.info != first);
    assert!(pebble.log().contains("Configured to reject 50% of good nonces"), "{}", pebble.log());
}

#[test]
fn failed_validation_is_reported_and_retried() {
    let scratch = Scratch::new("failing");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    pebble.dns("set-servfail", "a.komainu-test.com");
    let names = ["a.komainu-test.com", "blocked.komainu-test.com"];
    let rig = Rig::start(options(&scratch, &[&pebble]), &names, &challenges);
    let failed = rig.until(names[0], "an error", |status| status.last_error.is_some());
    let text = &failed.last_error.as_ref().unwrap().1;
    assert!(
        text.contains(&pebble.directory) && text.contains("http-01") && text.contains("could not resolve"),
        "{text}"
    );
    assert!(failed.retry_at.is_some() && failed.info.is_none());
    let blocked = rig.until(names[1], "an error", |status| status.last_error.is_some());
    assert!(blocked.last_error.unwrap().1.contains("rejectedIdentifier"));
    pebble.dns("clear-servfail", "a.komainu-test.com");
    let obtained = rig.obtained(names[0]);
    assert_eq!((obtained.last_error, obtained.retry_at), (None, None));
}

#[test]
fn certificate_is_renewed_when_due() {
    let scratch = Scratch::new("renewal");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let name = "a.komainu-test.com";
    let rig = Rig::start(options(&scratch, &[&pebble]), &[name, "x.localhost"], &challenges);
    let first = rig.obtained(name);
    let private = rig.obtained("x.localhost");
    let renew_at = rig.until(name, "a window", |status| status.renew_at != first.renew_at).renew_at.unwrap();
    // Nothing happens until a minute before that time; otherwise there would be a third certificate below.
    let to_then = renew_at.duration_since(SystemTime::now()).unwrap().as_secs();
    rig.moved_s.store(to_then - 60, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(pebble.issued(), 1);
    rig.moved_s.store(to_then + 1, Ordering::Relaxed);
    let second = rig.until(name, "a renewed certificate", |status| status.info != first.info);
    assert!(second.last_error.is_none());
    // The certificate of the private name is valid for a week, and is renewed as well.
    rig.until("x.localhost", "a renewed certificate", |status| status.info != private.info);
    assert!(rig.served.installs("x.localhost") >= 2);
}

#[test]
fn unreachable_directory_is_retried_and_replaced_by_another() {
    let scratch = Scratch::new("fallback");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let down = AcmeDirectory::at(format!("https://127.0.0.1:{}/dir", free_port()));
    let mut first = options(&scratch, &[&pebble]);
    first.directories.insert(0, down.clone());
    let name = "a.komainu-test.com";
    let rig = Rig::start(first.clone(), &[name], &challenges);
    let obtained = rig.obtained(name);
    assert_eq!(obtained.directory.as_ref(), Some(&pebble.directory));
    assert!(rig.served.log().contains(&format!("{}: cannot connect", down.url)), "{}", rig.served.log());
    drop(rig);
    // Without another directory, orders are retried while the existing certificate is served.
    let only = Options { directories: vec![down.clone()], ..first };
    let rig = Rig::start(only.clone(), &[name], &challenges);
    assert_eq!(rig.served.installs(name), 1);
    let errors = |rig: &Rig| rig.served.log().matches("cannot connect").count();
    let until = Instant::now() + Duration::from_secs(30);
    while errors(&rig) < 3 {
        assert!(Instant::now() < until, "{}", rig.served.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    // A certificate is kept when its directory is no longer configured.
    assert!(rig.obtained(name).info == obtained.info);
}

#[test]
fn accounts_are_bound_externally_and_recreated_if_unknown() {
    let scratch = Scratch::new("accounts");
    let challenges = HttpChallenges::default();
    // 32 zero bytes as base64url.
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let with = PebbleOptions { external: vec![("kid-1", key)], ..PebbleOptions::default() };
    let Some(pebble_) = pebble(&scratch, vec![challenges.clone()], with.clone()) else { return };
    let mut bound = options(&scratch, &[&pebble_]);
    let name = "a.komainu-test.com";
    let rig = Rig::start(bound.clone(), &[name], &challenges);
    let refused = rig.until(name, "an error", |status| status.last_error.is_some());
    assert!(refused.last_error.unwrap().1.contains("externalAccountRequired"));
    bound.directories[0].eab = Some(ExternalAccountBinding { id: "kid-1".into(), key: MacKey(vec![0; 32]) });
    rig.renewer.serve(bound.clone(), vec![Subject::parse(name).unwrap()]);
    let first = rig.obtained(name);
    // Replace the stored account by one that Pebble does not know.
    let account = fs::read_dir(scratch.0.join("state/accounts")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&account).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["id"] = format!("{}x", value["id"].as_str().unwrap()).into();
    fs::write(&account, value.to_string()).unwrap();
    rig.renewer.renew(&Subject::parse(name).unwrap());
    rig.until(name, "another certificate", |status| status.info != first.info);
}

/// Several orders begin at the same time without an account.
#[test]
fn several_names_share_one_account() {
    let scratch = Scratch::new("account");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let names = ["a.komainu-test.com", "b.komainu-test.com", "c.komainu-test.com", "d.komainu-test.com"];
    let rig = Rig::start(options(&scratch, &[&pebble]), &names, &challenges);
    names.iter().for_each(|name| _ = rig.obtained(name));
    assert_eq!(rig.served.log().matches("made an account").count(), 1, "{}", rig.served.log());
}

#[test]
fn unknown_profile_is_reported_and_valid_profile_used() {
    let scratch = Scratch::new("profiles");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let mut profile = options(&scratch, &[&pebble]);
    profile.directories[0].profile = Some("cheap".into());
    let name = "a.komainu-test.com";
    let rig = Rig::start(profile.clone(), &[name], &challenges);
    let refused = rig.until(name, "an error", |status| status.last_error.is_some()).last_error.unwrap().1;
    assert!(refused.contains("no profile \"cheap\"") && refused.contains("shortlived"), "{refused}");
    profile.directories[0].profile = Some("shortlived".into());
    rig.renewer.serve(profile, vec![Subject::parse(name).unwrap()]);
    rig.obtained(name);
}

/// Two servers share a state folder; the authority's requests reach them alternately.
#[test]
fn servers_sharing_a_directory_answer_each_others_challenges() {
    let scratch = Scratch::new("shared");
    let tables = [HttpChallenges::default(), HttpChallenges::default()];
    let Some(pebble) = pebble(&scratch, tables.to_vec(), PebbleOptions::default()) else { return };
    let names = ["a.komainu-test.com", "b.komainu-test.com", "c.komainu-test.com"];
    let rigs = tables.each_ref().map(|table| Rig::start(options(&scratch, &[&pebble]), &names, table));
    for name in names {
        let both = rigs.each_ref().map(|rig| rig.obtained(name).info);
        assert_eq!(both[0], both[1], "{name}");
    }
    assert_eq!(pebble.issued(), names.len(), "{}", rigs[0].served.log());
}

#[test]
fn unwritable_state_directory_is_reported() {
    let scratch = Scratch::new("folder");
    let state = scratch.0.join("state");
    fs::write(&state, "a file").unwrap();
    let options = Options {
        directories: vec![AcmeDirectory::at(format!("https://127.0.0.1:{}/dir", free_port()))],
        email: None,
        challenges: vec![AcmeChallenge::Http01],
        dns: None,
        ask: None,
        state_folder: state.clone(),
        cluster: None,
        roots_pem: Vec::new(),
    };
    let rig = Rig::start(options, &["a.komainu-test.com", "b.localhost"], &HttpChallenges::default());
    let failed = rig.until("b.localhost", "an error", |status| status.last_error.is_some());
    let text = failed.last_error.unwrap().1;
    assert!(text.contains(state.to_str().unwrap()) && text.contains("[acme] state"), "{text}");
    // The folder is used as soon as it is available; all earlier checks log a single line.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.served.log().matches("no certificate can be obtained").count(), 1, "{}", rig.served.log());
    fs::remove_file(&state).unwrap();
    rig.obtained("b.localhost");
    assert!(Path::new(&state).is_dir());
}

/// Starts a server for `ask`, which confirms names that begin with `good` or `foreign`, refuses `bad`, fails
/// for `broken`, and does not answer about others. Returns its URL and the queried names.
fn confirmer(refused: &Arc<Mutex<Vec<String>>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/check?key=1", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let theirs = asked.clone();
    let refused = refused.clone();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&client).read_line(&mut line);
            let name = line.split_once("/check?key=1&domain=").and_then(|(_, rest)| rest.split(' ').next());
            let name = name.unwrap_or_default().to_owned();
            theirs.lock().unwrap().push(name.clone());
            let status = match name.split('.').next().unwrap_or_default() {
                _ if refused.lock().unwrap().contains(&name) => "404 Not Found",
                "good" | "foreign" => "200 OK",
                "bad" => "403 Forbidden",
                "moved" => "302 Found",
                "broken" => "500 Internal Server Error",
                _ => {
                    silent.push(client);
                    continue;
                }
            };
            let _ = write!(client, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        }
    });
    (url, asked)
}

#[test]
fn only_names_confirmed_by_the_ask_url_get_certificates() {
    let scratch = Scratch::new("ask");
    let challenges = HttpChallenges::default();
    let Some(pebble) = pebble(&scratch, vec![challenges.clone()], PebbleOptions::default()) else { return };
    let refused = Arc::default();
    let (url, asked) = confirmer(&refused);
    let with = || Options { ask: Some(url.clone()), ..options(&scratch, &[&pebble]) };
    let questions = |name: &str| asked.lock().unwrap().iter().filter(|one| *one == name).count();
    let good = "good.komainu-test.com";
    let rig = Rig::start(with(), &[], &challenges);
    let missing = rig.renewer.missing_names();
    let others = ["bad", "moved", "broken", "silent"].map(|label| format!("{label}.komainu-test.com"));
    let unasked = ["foo.local", "*.komainu-test.com", "127.0.0.1", "a b"];
    // Each client is in a network of its own.
    for (network, name) in (0u8..).zip(others.iter().map(String::as_str).chain(unasked).chain([good])) {
        let client = [10, 0, network, 1];
        // Clients retry several times.
        for _ in 0..3 {
            missing.report(name, Some(client.into()));
        }
    }
    rig.obtained(good);
    for name in &others {
        let until = Instant::now() + Duration::from_secs(60);
        while questions(name) == 0 {
            assert!(Instant::now() < until, "{name}\n{}", rig.served.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(questions(name), 1, "{name}");
    }
    assert_eq!((questions(good), asked.lock().unwrap().len()), (1, 5));
    assert_eq!(rig.renewer.statuses().len(), 1, "{:?}", rig.renewer.statuses());
    assert_eq!(pebble.issued(), 1);
    // After a restart it is served immediately, without a query; a name that is no longer confirmed is not
    // renewed.
    drop(rig);
    let rig = Rig::start(with(), &[], &challenges);
    assert_eq!(rig.served.installs(good), 1);
    assert_eq!(questions(good), 1);
    refused.lock().unwrap().push(good.to_owned());
    rig.obtained(good);
    assert!(rig.renewer.renew(&Subject::parse(good).unwrap()));
    let until = Instant::now() + Duration::from_secs(60);
    while rig.served.installs(good) > 0 || !rig.renewer.statuses().is_empty() {
        assert!(Instant::now() < until, "{:?}\n{}", rig.renewer.statuses(), rig.served.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(pebble.issued(), 1);
}
