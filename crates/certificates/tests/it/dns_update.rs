//! DNS-01 challenges by dynamic update (RFC 2136) of BIND's zones, validated by Pebble.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::named::{Named, SECRET};
use crate::pebble::{Pebble, PebbleOptions};
use crate::rig::{Rig, Scratch, options};
use certificates::directives::AcmeChallenge;
use certificates::{DnsRecords, DnsServer, HttpChallenges, Options, Subject, TsigKey};

/// Returns the server with a key of this name, algorithm and secret.
fn server(port: u16, name: &str, algorithm: &str, secret: &str) -> DnsServer {
    let key = TsigKey::parse(secret.as_bytes(), Some(name), Some(algorithm)).unwrap();
    DnsServer { host: "127.0.0.1".into(), port, zone: None, key, wait: Duration::ZERO }
}

fn start(scratch: &Scratch) -> Option<(Pebble, Named)> {
    let named = Named::start(&scratch.0.join("named"))?;
    let asks = PebbleOptions { dns_port: Some(named.port), ..PebbleOptions::default() };
    Some((Pebble::start(&scratch.0.join("pebble"), &asks)?, named))
}

fn with(scratch: &Scratch, pebble: &Pebble, dns: DnsServer) -> Options {
    let dns = Some(DnsRecords::Update(dns));
    Options { challenges: vec![AcmeChallenge::Dns01], dns, ..options(scratch, &[pebble]) }
}

#[test]
fn dns_challenge_records_are_set_and_removed_by_update() {
    let scratch = Scratch::new("rfc2136");
    let Some((pebble, named)) = start(&scratch) else { return };
    // A name and the wildcard below it share one record name with two values.
    let names =
        ["*.w.komainu-test.com", "w.komainu-test.com", "deep.er.komainu-test.com", "alias.komainu-test.com"];
    let challenges = HttpChallenges::default();
    let first = with(&scratch, &pebble, server(named.port, "komainu", "hmac-sha256", SECRET));
    let rig = Rig::start(first, &names, &challenges);
    for name in names {
        let status = rig.obtained(name);
        assert_eq!(status.info.unwrap().subjects, [Subject::parse(name).unwrap()], "{}", named.log());
    }
    assert!(!rig.served.log().contains("warn"), "{}", rig.served.log());
    let log = named.log();
    assert_eq!(log.matches("adding an RR").count(), 4, "{log}");
    assert_eq!(log.matches("deleting an RR").count(), 4, "{log}");
    // The record of an alias is set at its target.
    assert!(log.contains("adding an RR at 'elsewhere.other.komainu-test.com' TXT"), "{log}");
    // Another algorithm, and a configured zone.
    let given = DnsServer {
        zone: Some("komainu-test.com".into()),
        ..server(named.port, "komainu-384", "hmac-sha384", SECRET)
    };
    rig.renewer.serve(with(&scratch, &pebble, given), vec![Subject::parse("b.komainu-test.com").unwrap()]);
    rig.obtained("b.komainu-test.com");
}

#[test]
fn errors_of_the_dns_server_name_the_cause() {
    let scratch = Scratch::new("rfc2136-errors");
    let Some((pebble, named)) = start(&scratch) else { return };
    let port = named.port;
    let good = || server(port, "komainu", "hmac-sha256", SECRET);
    let name = "a.komainu-test.com";
    let challenges = HttpChallenges::default();
    let rig = Rig::start(
        with(&scratch, &pebble, server(port, "nokey", "hmac-sha256", SECRET)),
        &[name],
        &challenges,
    );
    let failed = |cause: &str| {
        let holds = |status: &certificates::CertificateStatus| {
            status.last_error.as_ref().is_some_and(|(_, text)| text.contains(cause))
        };
        rig.until(name, cause, holds).last_error.unwrap().1
    };
    let text = failed("BADKEY");
    assert!(text.contains("nokey (hmac-sha256)") && text.contains(&format!("127.0.0.1:{port}")), "{text}");
    let other_secret = SECRET.replace('a', "b");
    let zone = |zone: &str| DnsServer { zone: Some(zone.into()), ..good() };
    let cases = [
        (server(port, "komainu", "hmac-sha256", &other_secret), "BADSIG"),
        (server(port, "nobody", "hmac-sha256", SECRET), "REFUSED"),
        (zone("other.com"), "is not in the zone other.com"),
        (zone("com"), "NOTAUTH"),
        (server(1, "komainu", "hmac-sha256", SECRET), "cannot connect"),
    ];
    for (server, cause) in cases {
        rig.renewer.serve(with(&scratch, &pebble, server), vec![Subject::parse(name).unwrap()]);
        failed(cause);
    }
    rig.renewer.serve(with(&scratch, &pebble, good()), vec![Subject::parse(name).unwrap()]);
    assert_eq!(rig.obtained(name).last_error, None);
    // A name for which the server has no zone.
    rig.renewer.serve(with(&scratch, &pebble, good()), vec![Subject::parse("a.komainu-other.com").unwrap()]);
    let holds = |status: &certificates::CertificateStatus| status.last_error.is_some();
    let text = rig.until("a.komainu-other.com", "an error", holds).last_error.unwrap().1;
    assert!(text.contains("no zone for _acme-challenge.a.komainu-other.com"), "{text}");
    // The clock of this machine is an hour fast.
    rig.moved_s.store(3_600, Ordering::Relaxed);
    let name = "b.komainu-test.com";
    rig.renewer.serve(with(&scratch, &pebble, good()), vec![Subject::parse(name).unwrap()]);
    let holds = |status: &certificates::CertificateStatus| status.last_error.is_some();
    let text = rig.until(name, "an error", holds).last_error.unwrap().1;
    assert!(text.contains("BADTIME"), "{text}");
}
