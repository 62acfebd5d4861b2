//! `komainu bench attack --http3` against the real binary.

use crate::bounds::resident_bytes;
use crate::rig::{Folder, Rig, as_we_are, komainu, text};

/// Memory that one attack may cost the server: 4 MiB for each of 50 connections (docs/http3.md), and what the
/// allocator keeps.
const GROWTH_BYTES_MAX: u64 = 256 << 20;

fn server() -> Rig {
    let folder = Folder::new();
    folder.certify().write("www/file", "f".repeat(20_000));
    folder.write(
        "komainu.toml",
        format!(
            r#"
            listen = {{ address = "127.0.0.1:0", tls = true }}
            threads = 1
            tls.default = {{ certificate = "cert.pem", key = "key.pem" }}
            {}
            [[route]]
            files = "www"
            "#,
            as_we_are()
        ),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    Rig::start(command, folder)
}

fn attack(arguments: &[&str]) -> std::process::Output {
    komainu().args(["bench", "attack", "-k", "--quiet"]).args(arguments).output().unwrap()
}

/// Whether an attack has reached the server, which has served the ordinary client meanwhile, and has answered the
/// attack as it should.
fn has_met(attack: &serde_json::Value) -> bool {
    let is_some = |count: &serde_json::Value| count.as_u64() > Some(0);
    let answers_as_expected = match attack["attack"].as_str().unwrap() {
        "h3-priority-update-flood" => is_some(&attack["connection_close"]["H3_EXCESSIVE_LOAD"]),
        "h3-zero-window" => is_some(&attack["open"]) && attack["open"] == attack["connections"],
        "quic-version-flood" => is_some(&attack["replies"]["Version Negotiation"]),
        "quic-handshake-flood" => attack["replies"].as_object().unwrap().values().any(is_some),
        "quic-garbage" => true,
        _ => is_some(&attack["connections"]),
    };
    answers_as_expected
        && attack["sent_bytes"].as_u64() > Some(1_000)
        && is_some(&attack["during"]["responses"])
}

fn holds_little(attack: &serde_json::Value) -> bool {
    attack["memory_bytes"].as_u64() < Some(GROWTH_BYTES_MAX)
}

#[test]
fn server_serves_others_during_all_attacks_over_quic() {
    let mut rig = server();
    let url = format!("https://{}/file", rig.listens);
    let run = |arguments: &[&str]| {
        let output = attack(&[arguments, &["--json", &url]].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        report["attacks"].as_array().cloned().unwrap_or_else(|| panic!("{}", text(&output.stderr)))
    };
    let attacks = run(&["--http3", "-d", "500ms"]);
    assert_eq!(attacks.len(), bench::attack::quic_attacks::QUIC_ATTACKS.len());
    for (attack, defined) in attacks.iter().zip(bench::attack::quic_attacks::QUIC_ATTACKS) {
        // On a busy machine the time may be too short to see anything.
        let mut attack = attack.clone();
        for longer in ["5s", "20s"] {
            if !has_met(&attack) && holds_little(&attack) {
                attack = run(&["--only", defined.name, "-d", longer]).remove(0);
            }
        }
        assert!(has_met(&attack) && holds_little(&attack) && attack["attack"] == defined.name, "{attack}");
    }
    assert!(resident_bytes(&rig) > 0 && rig.child.try_wait().unwrap().is_none(), "the server is alive");
}

#[test]
fn attacks_over_quic_are_listed_and_need_tls() {
    let list = text(&attack(&["--list"]).stdout);
    assert!(list.contains("h3-rapid-reset") && list.contains("rapid-reset "), "{list}");
    let marked = list.lines().filter(|line| line.ends_with("(--http3)"));
    assert_eq!(marked.count(), bench::attack::quic_attacks::QUIC_ATTACKS.len());
    let alone = text(&attack(&["--list", "--http3"]).stdout);
    assert!(alone.lines().all(|line| line.ends_with("(--http3)")), "{alone}");
    let clear = attack(&["--http3", "http://127.0.0.1:1/"]);
    assert!(text(&clear.stderr).contains("HTTP/3 needs an https:// URL"), "{}", text(&clear.stderr));
    let foreign = attack(&["--http3", "https://192.0.2.1/"]);
    assert!(text(&foreign.stderr).contains("--force"), "{}", text(&foreign.stderr));
}
