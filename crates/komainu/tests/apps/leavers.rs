//! Endless responses in every language: client disconnects and HEAD end them and free their workers.

use std::fs;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use bench::attack::wire::*;
use quinn_proto::VarInt;
use rustix::net::sockopt;

use crate::hosted::{Client, native, server, start};
use crate::loops;
use crate::rig::h3_client::H3Client;
use crate::rig::{Folder, PATIENCE, Rig, as_we_are, eventually, listen, text};

const WSGI: &str = "\
import time
class Endless:
    def __iter__(self): return self
    def __next__(self):
        time.sleep(.02)
        return b'x' * 10
    def close(self):
        with open('wsgi-closed', 'a') as file: file.write('c')
def app(environ, start_response):
    start_response('200 OK', [])
    return Endless() if environ['PATH_INFO'].endswith('endless') else [b'pong']
";
const PERL: &str = "\
package Endless; sub getline { select undef, undef, undef, .02; 'x' x 10 }
sub close { open my $file, '>>', 'psgi-closed'; print $file 'c' }
package main;
sub { [200, [], $_[0]{PATH_INFO} =~ /endless/ ? bless({}, 'Endless') : ['pong']] }
";
const RUBY: &str = "\
class Endless
  def each; loop { sleep 0.02; yield 'x' * 10 }; end
  def close; File.write('rack-closed', 'c', mode: 'a'); end
end
run ->(env) { [200, {}, env['PATH_INFO'].end_with?('endless') ? Endless.new : ['pong']] }
";
const PHP: &str = "\
<?php
if (!str_ends_with($_SERVER['REQUEST_URI'], 'endless')) { echo 'pong'; exit; }
register_shutdown_function(fn() => file_put_contents(__DIR__ . '/../php-closed', 'c', FILE_APPEND));
while (ob_get_level()) ob_end_flush();
while (true) { echo str_repeat('x', 10); flush(); usleep(20000); }
";
const NATIVE: &str = r#"
#include "komainu_handler.h"
#include <stdio.h>
#include <unistd.h>
static int handle(komainu_request *request, void *process, void *thread) {
    const komainu_field *fields;
    size_t count = komainu_fields(request, &fields), at;
    int endless = 0, code = KOMAINU_OK;
    FILE *file;
    (void)process, (void)thread;
    for (at = 0; at < count; at++)
        if (fields[at].id == KOMAINU_TARGET)
            endless = fields[at].value_len > 13 && memcmp(fields[at].value + 8, "endless", 7) == 0;
    if (!endless)
        return komainu_reply(request, 200, "text/plain", "pong", 4);
    code = komainu_head(request, 200, NULL, 0);
    while (code == KOMAINU_OK) {
        code = komainu_write(request, "xxxxxxxxxx", 10, 0);
        usleep(20000);
    }
    if ((file = fopen("native-closed", "a"))) {
        fputc('c', file);
        fclose(file);
    }
    return code;
}
KOMAINU_HANDLER(.handle = handle)
"#;
const ASGI: &str = "\
import asyncio
class Endless:
    async def __call__(self, scope, receive, send):
        if scope['type'] != 'http': raise RuntimeError('no lifespan')
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        if not scope['path'].endswith('endless'):
            return await send({'type': 'http.response.body', 'body': b'pong'})
        try:
            while True:
                await send({'type': 'http.response.body', 'body': b'x' * 10, 'more_body': True})
                await asyncio.sleep(.02)
        finally:
            with open('asgi-closed', 'a') as file: file.write('c')
app = Endless()
";

/// Starts one worker for each language.
fn all() -> Rig {
    let folder = Folder::new();
    let listen = listen(&folder);
    all_at(folder, &listen)
}

/// Like [`all`], with this `listen` setting.
fn all_at(folder: Folder, listen: &str) -> Rig {
    folder.write("app.psgi", PERL).write("config.ru", RUBY).write("w.py", WSGI).write("a.py", ASGI);
    folder.write("web/index.php", PHP);
    native(&folder, NATIVE);
    let apps = [
        ("psgi", "psgi = \"app.psgi\""),
        ("rack", "rack = \"config.ru\"\nthreads = 1"),
        ("wsgi", "wsgi = \"w.py\"\nthreads = 1"),
        ("asgi", "asgi = \"a.py\"\nconcurrency = 1"),
        ("php", "php = \"web/index.php\""),
        ("native", "handler = \"n.so\""),
    ];
    let texts = apps.map(|(name, file)| {
        format!(
            r#"
            [[route]]
            path = "/{name}/*"
            app = "{name}"
            [apps.{name}]
            {file}
            workers = 1
            request_buffering = false
            "#
        )
    });
    folder.write("komainu.toml", format!("{listen}threads = 1\n{}{}", as_we_are(), texts.concat()));
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    for (name, _) in apps {
        // Loading an application may take longer than the time measured below.
        eventually(name, || ask(&rig, name).0 == 200);
    }
    rig
}

/// Asks for a short response: over HTTP/1, or HTTP/3 if the server has certificates.
fn ask(rig: &Rig, language: &str) -> (u16, String) {
    let path = format!("/{language}/short");
    if !rig.folder.at("cert.pem").exists() {
        return Client::new(rig.address).get(&path);
    }
    let answer = H3Client::connect(rig.listens, "localhost").get(&path);
    (answer.status, answer.text())
}

const LANGUAGES: [&str; 6] = ["psgi", "rack", "wsgi", "asgi", "php", "native"];

fn ends(rig: &Rig, language: &str) -> usize {
    fs::read(rig.folder.at(&format!("{language}-closed"))).map_or(0, |marks| marks.len())
}

fn is_free(rig: &Rig, language: &str, since: Instant) {
    assert_eq!(ask(rig, language), (200, "pong".into()), "{language}");
    // The previous response never ends. A busy machine takes a few seconds.
    assert!(since.elapsed() < PATIENCE, "{language}: {:?}", since.elapsed());
}

#[test]
fn head_request_for_endless_response_frees_its_worker() {
    let rig = all();
    for language in LANGUAGES {
        is_free(&rig, language, Instant::now());
        let since = Instant::now();
        let mut client = Client::new(rig.address);
        for _ in 0..3 {
            // The connection stays usable.
            client.send(format!("HEAD /{language}/endless HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert!(client.head().starts_with("HTTP/1.1 200"), "{language}");
        }
        is_free(&rig, language, since);
        eventually(&format!("{language}: each was ended"), || ends(&rig, language) == 3);
    }
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

#[test]
fn a_client_that_resets_its_connection_frees_its_worker() {
    let rig = all();
    for language in LANGUAGES {
        is_free(&rig, language, Instant::now());
        for _ in 0..3 {
            let mut stream = rig.connect();
            stream
                .write_all(format!("GET /{language}/endless HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
                .unwrap();
            stream.read_exact(&mut [0; 200]).unwrap();
            let since = Instant::now();
            sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            is_free(&rig, language, since);
        }
        eventually(&format!("{language}: each was ended"), || ends(&rig, language) == 3);
    }
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

#[test]
fn an_http2_client_that_leaves_frees_its_worker() {
    let rig = all_at(Folder::new(), "listen = { address = \"127.0.0.1:0\", h2c = true }\n");
    for language in LANGUAGES {
        let ways = ["RST_STREAM", "GOAWAY and the end", "the end of the connection", "its reset"];
        for (at, way) in ways.into_iter().enumerate() {
            let what = format!("{language}: {way}");
            let mut stream = loops::http2(&rig, &format!("/{language}/endless"), 1);
            let mut begun = Vec::new();
            while !text(&begun).contains("xxxxxxxxxx") {
                let mut piece = [0; 4096];
                let len = stream.read(&mut piece).unwrap();
                assert!(len > 0, "{what}: {}", text(&begun));
                begun.extend_from_slice(&piece[..len]);
            }
            let since = Instant::now();
            match way {
                "RST_STREAM" => stream.write_all(&rst_stream(1, 8)).unwrap(),
                "its reset" => sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap(),
                "the end of the connection" => {}
                _ => stream.write_all(&frame(kind::GOAWAY, 0, 0, &[0; 8])).unwrap(),
            }
            let kept = (way == "RST_STREAM").then_some(stream);
            is_free(&rig, language, since);
            eventually(&format!("{what}: it was ended"), || ends(&rig, language) == at + 1);
            drop(kept);
        }
    }
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

#[test]
fn an_http2_head_request_frees_its_worker() {
    let rig = all_at(Folder::new(), "listen = { address = \"127.0.0.1:0\", h2c = true }\n");
    for language in LANGUAGES {
        let mut client = rig.connect();
        let path = format!("/{language}/endless");
        let target = AttackTarget { authority: "a".into(), path, is_https: false };
        // `:method: HEAD` instead of the indexed `GET`.
        let block = [b"\x02\x04HEAD", &target.header_block(false)[1..]].concat();
        let head = frame(kind::HEADERS, END_STREAM | END_HEADERS, 1, &block);
        client.write_all(&[client_start(&[]), head].concat()).unwrap();
        let since = Instant::now();
        eventually(&format!("{language}: it was ended"), || ends(&rig, language) == 1);
        is_free(&rig, language, since);
    }
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

#[test]
fn an_http3_client_that_leaves_frees_its_worker() {
    let folder = Folder::new();
    folder.certify();
    let listen = "listen = [{ address = \"127.0.0.1:0\", tls = true }]\n\
                  tls.default = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    let rig = all_at(folder, listen);
    let code = VarInt::from_u32(0x10c);
    for language in LANGUAGES {
        // PHP reads the content first, and only a request that is incomplete can be reset.
        let ways: &[&str] = match language {
            "php" => &["HEAD", "STOP_SENDING", "CONNECTION_CLOSE"],
            _ => &["HEAD", "STOP_SENDING", "RESET_STREAM", "both", "CONNECTION_CLOSE"],
        };
        for (at, way) in ways.iter().copied().enumerate() {
            let what = format!("{language}: {way}");
            let mut client = H3Client::connect(rig.listens, "localhost");
            let path = format!("/{language}/endless");
            if way == "HEAD" {
                let answer = client.ask("HEAD", &path, &[], b"");
                assert_eq!((answer.status, answer.is_whole), (200, true), "{what}");
            } else {
                let id = client.open("POST", &path, &[]);
                client.push(id, b"begun", language == "php");
                client.drive(&what, |client| client.response(id).text().contains("xxxxxxxxxx"));
                if way == "RESET_STREAM" || way == "both" {
                    client.quic.send_stream(id).reset(code).unwrap();
                }
                if way == "STOP_SENDING" || way == "both" {
                    client.quic.recv_stream(id).stop(code).unwrap();
                }
                if way == "CONNECTION_CLOSE" {
                    client.quic.close(Instant::now(), VarInt::from_u32(0x100), bytes::Bytes::new());
                }
                client.turn();
            }
            let since = Instant::now();
            is_free(&rig, language, since);
            eventually(&format!("{what}: it was ended"), || {
                client.exchange();
                ends(&rig, language) == at + 1
            });
        }
    }
    assert!(!rig.reported().contains("Traceback"), "{}", rig.reported());
}

/// Slots of `concurrent` and of `queue` stay occupied while a worker runs for a client that has disconnected.
#[test]
fn abandoned_requests_occupy_their_slots_until_they_end() {
    const APP: &str = "\
sub note { open my $file, '>>', 'run'; syswrite $file, $_[0] }
sub { note('+'); select undef, undef, undef, 1.5; note('-'); [200, [], ['done']] }
";
    for limit in ["limit = { concurrent = 2 }", "queue = { active = 2, waiting = 20 }"] {
        let folder = Folder::new();
        folder.write("app.psgi", APP);
        let rig = start(
            folder,
            &format!(
                r#"
                [[route]]
                app = "shop"
                {limit}
                [apps.shop]
                psgi = "app.psgi"
                workers = 6
                "#
            ),
        );
        let noted = || fs::read_to_string(rig.folder.at("run")).unwrap_or_default();
        for number in 0..8 {
            let mut client = rig.connect();
            write!(client, "GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            // The first two requests occupy the workers; later ones wait in the queue.
            if number < 2 {
                eventually("a worker has it", || noted().matches('+').count() > number);
            }
            std::thread::sleep(Duration::from_millis(120));
            // Dropping the stream sends a reset.
            sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        }
        eventually("all that began have ended", || {
            let noted = noted();
            noted.len() >= 4 && noted.matches('+').count() == noted.matches('-').count()
        });
        let mut running = 0;
        let mut most = 0;
        for one in noted().chars() {
            running += if one == '+' { 1 } else { -1 };
            most = most.max(running);
        }
        assert_eq!(most, 2, "{limit}: {}", noted());
        // The slots are free again.
        eventually("it is served", || rig.get("/again").status() == 200);
    }
}
