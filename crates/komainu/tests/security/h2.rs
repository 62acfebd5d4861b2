//! The table of docs/security.md for HTTP/2: memory and work that a client can cause.

use std::io::{ErrorKind, Read, Write};

use crate::bounds::{Client, bytes, hold, resident_bytes, work};
use crate::rig::{Folder, Rig, as_we_are, komainu, text};
use bench::attack::attacks::{ATTACKS, AttackTurn};
use bench::attack::wire::*;

/// Concurrent streams that the server allows.
const STREAMS: usize = 128;
/// Error codes of GOAWAY frames.
const PROTOCOL_ERROR: u8 = 1;
const CALM: u8 = 11;
/// Total growth allowed while the server is flooded, including buffers of pools.
const FLOODED_BYTES: u64 = 24 << 20;

fn server() -> Rig {
    let folder = Folder::new();
    folder.write("www/small", "s").write("www/large", vec![b'l'; 3_000_000]);
    let listen = "listen = { address = \"127.0.0.1:0\", h2c = true }\nthreads = 1\n";
    folder.write(
        "komainu.toml",
        format!(
            r#"
            {listen}
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

fn target(path: &str) -> AttackTarget {
    AttackTarget { authority: "a".into(), path: path.into(), is_https: false }
}

fn streams(request: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..STREAMS).flat_map(|at| request(stream_id(at))).collect()
}

fn held(state: &str, count: usize, sent: &[Vec<u8>]) {
    let rig = server();
    let sent = bytes(sent.concat());
    let push = |client: &mut Client| _ = client.push();
    drop(hold(&rig, state, count, || Client::new(&rig).sends(&sent), push));
    rig.get("/small").expect(200, "s");
}

#[test]
fn http2_streams_of_one_client_stay_within_bounds() {
    let small = target("/small");
    let large = target("/large");
    let shut = client_start(&[(INITIAL_WINDOW_SIZE, 0)]);
    let open = [client_start(&[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]), window_update(0, 0x7fff_0000)].concat();
    held("HTTP/2, idle after a request", 500, &[client_start(&[]), small.get(1)]);
    held("HTTP/2, 128 responses, windows of 0", 40, &[shut.clone(), streams(|id| large.get(id))]);
    held("HTTP/2, 128 responses, nothing read", 40, &[open, streams(|id| large.get(id))]);
    let byte = |id| frame(kind::DATA, 0, id, b"x");
    let bodies = [client_start(&[]), streams(|id| large.post(id)), streams(byte).repeat(8)];
    held("HTTP/2, 128 bodies byte by byte", 40, &bodies);
    let begun =
        frame(kind::HEADERS, END_STREAM, 1, &[small.header_block(false), vec![0, 1, b'x', 0x7f]].concat());
    let more = frame(kind::CONTINUATION, 0, 1, &[0x81; 16_000]).repeat(2);
    held("HTTP/2, header block begun", 200, &[client_start(&[]), begun, more]);
    let references = |at: usize| {
        let mut block = large.header_block(false);
        match at {
            0 => push_indexed(&mut block, b"x", &[b'v'; 4_000]),
            _ => block.extend([0xbe; 7]),
        }
        frame(kind::HEADERS, END_STREAM | END_HEADERS, stream_id(at), &block)
    };
    let bombs = (0..STREAMS).flat_map(references).collect();
    held("HTTP/2, heads that unpack to 28 KB", 40, &[shut, bombs]);
}

/// Returns the error code of the GOAWAY frame with which the server ended the connection.
fn ended_with(bytes: &[u8]) -> Option<u8> {
    let frames = bytes.windows(17).filter(|frame| frame[3..9] == [kind::GOAWAY, 0, 0, 0, 0, 0]);
    frames.map(|frame| frame[16]).find(|code| *code > 0)
}

/// Attacks on one connection until the server ends it, and returns all that the server sent.
fn until_ended(rig: &Rig, name: &str) -> Vec<u8> {
    let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
    let target = target("/small");
    let mut stream = rig.connect();
    let mut reply = Vec::new();
    let mut piece = vec![0; 65_536];
    stream.write_all(&client_start(&[])).unwrap();
    for turn in 0..100_000 {
        let AttackTurn::Send(bytes) = (attack.turn)(&target, turn) else { panic!("{name} stays as it is") };
        if stream.write_all(&bytes).is_err() {
            break;
        }
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut piece) {
            Ok(len @ 1..) => reply.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => break,
        }
        stream.set_nonblocking(false).unwrap();
    }
    stream.set_nonblocking(false).unwrap();
    // Linux still delivers data received before a reset.
    while let Ok(len @ 1..) = stream.read(&mut piece) {
        reply.extend_from_slice(&piece[..len]);
    }
    reply
}

#[test]
fn http2_floods_are_ended_within_bounds() {
    let rig = server();
    let flood = |state: &str, name: &str| {
        let before = resident_bytes(&rig);
        work(&rig, state, || {
            for _ in 0..10 {
                let code = ended_with(&until_ended(&rig, name));
                let is_right = match name {
                    // After half of its credit the client is limited to one stream at a time, so the next
                    // increment of 0 is for a refused stream.
                    "made-you-reset" => [Some(CALM), Some(PROTOCOL_ERROR)].contains(&code),
                    // A client that has sent GOAWAY and has no open request is disconnected without one.
                    "goaway-races" => [Some(CALM), None].contains(&code),
                    _ => code == Some(CALM),
                };
                assert!(is_right, "{name}: ended with {code:?}");
                // Other clients are served meanwhile.
                rig.get("/small").expect(200, "s");
            }
            10
        });
        let grown = resident_bytes(&rig).saturating_sub(before);
        assert!(grown <= FLOODED_BYTES, "{name}: {grown} bytes more");
    };
    flood("HTTP/2, rapid reset", "rapid-reset");
    flood("HTTP/2, MadeYouReset", "made-you-reset");
    flood("HTTP/2, CONTINUATION frames without end", "continuation-flood");
    flood("HTTP/2, empty CONTINUATION frames", "empty-continuation");
    flood("HTTP/2, heads that unpack to 48 MB", "hpack-bomb");
    flood("HTTP/2, references to a large field, windows of 0", "indexed-references");
    flood("HTTP/2, empty DATA frames", "empty-data");
    flood("HTTP/2, PING frames", "ping-flood");
    flood("HTTP/2, SETTINGS frames", "settings-flood");
    flood("HTTP/2, PRIORITY frames", "priority-flood");
    flood("HTTP/2, PRIORITY_UPDATE frames", "priority-update-flood");
    flood("HTTP/2, WINDOW_UPDATE frames", "window-update-flood");
    flood("HTTP/2, windows opened byte by byte", "dripped-window");
    flood("HTTP/2, changes of the table's size", "table-size-flood");
    flood("HTTP/2, GOAWAY frames between requests", "goaway-races");
}

#[test]
fn bench_attack_reports_how_a_server_ends_attacks() {
    let rig = server();
    let attack = |more: &[&str]| {
        komainu().args(["bench", "attack", "--quiet", "-d", "300ms"]).args(more).output().unwrap()
    };
    let url = rig.url("/small");
    let only = ["--only", "rapid-reset", "--only", "zero-window", "--only", "slow-loris"];
    let output = attack(&[&["--json", &url], &only[..]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let attacks = report["attacks"].as_array().unwrap_or_else(|| panic!("{}", text(&output.stderr)));
    assert_eq!(attacks.len(), 3);
    for attack in attacks {
        assert!(
            attack["sent_bytes"].as_u64() > Some(0) && attack["connections"].as_u64() >= Some(4),
            "{attack}"
        );
        assert!(attack["memory_bytes"].is_u64() && attack["cpu_ns"].is_u64(), "{attack}");
        assert!(attack["during"]["responses"].as_u64() > Some(0), "{attack}");
        assert_ne!(attack["verdict"], "did not answer");
    }
    assert!(attacks[0]["goaway"]["ENHANCE_YOUR_CALM"].as_u64() >= Some(1), "{}", attacks[0]);
    assert_eq!(attacks[1]["open"], attacks[1]["connections"], "what holds little is left open");
    let table = text(&attack(&["--only", "ping-flood", &url]).stdout);
    assert!(table.contains("ENHANCE_YOUR_CALM") && table.contains("how the server ended it"), "{table}");
    let refused = attack(&["http://192.0.2.1/"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("--force"));
    assert!(text(&attack(&["--list"]).stdout).contains("CVE-2026-49975"));
}
