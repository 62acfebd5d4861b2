//! Workers that hang after a response: each is killed after `timeouts.request` and replaced.

use std::io::{Read, Write};

use crate::hosted::{Client, folder, is_alive, logged, native, only, ready, start};
use crate::rig::{Folder, Rig, connect, eventually};

const WSGI: &str = r"
import time
class Body:
    def __iter__(self): return iter([b'abc'])
    def close(self): forever()
def forever():
    while True: time.sleep(0.01)
def endless():
    yield b'abc'
    while True:
        time.sleep(0.01)
        yield b''
def app(environ, start_response):
    path = environ['PATH_INFO']
    if path == '/silent': forever()
    start_response('200 OK', [('Content-Length', '3')])
    return endless() if path == '/endless' else Body() if path == '/close' else [b'abc']
";

const ASGI: &str = r"
import time
async def app(scope, receive, send):
    if scope['type'] != 'http': raise RuntimeError('http only')
    if scope['path'] == '/silent': forever()
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'3')]})
    await send({'type': 'http.response.body', 'body': b'abc'})
    if scope['path'] == '/close': forever()
def forever():
    while True: time.sleep(0.01)
";

const PSGI: &str = r"
package Body { sub getline { $_[0]{done}++ ? undef : 'abc' } sub close { main::forever() } }
sub main::forever { select undef, undef, undef, 0.01 while 1 }
sub {
    my $env = shift;
    my $path = $env->{PATH_INFO};
    main::forever() if $path eq '/silent';
    push @{$env->{'psgix.cleanup.handlers'}}, sub { main::forever() } if $path eq '/cleanup';
    return [200, ['Content-Length', 3], bless {}, 'Body'] if $path eq '/close';
    [200, ['Content-Length', 3], ['abc']];
}
";

const RACK: &str = r"
def Kernel.forever = loop { sleep 0.01 }
class Body
  def each = yield('abc')
  def close = Kernel.forever
end
run(lambda do |env|
  path = env['PATH_INFO']
  Kernel.forever if path == '/silent'
  env['rack.response_finished'] << proc { Kernel.forever } if path == '/finished'
  [200, { 'content-length' => '3' }, path == '/close' ? Body.new : ['abc']]
end)
";

const PHP: &str = r"<?php
function forever() { while (true) { usleep(10000); } }
ignore_user_abort(true);
if ($_SERVER['REQUEST_URI'] == '/silent') { forever(); }
header('Content-Length: 3');
echo 'abc';
if ($_SERVER['REQUEST_URI'] == '/finish') { fastcgi_finish_request(); forever(); }
";

fn hosted(folder: Folder, app: &str) -> Rig {
    start(
        folder,
        &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 1\ntimeouts = {{ request = \"1s\" }}"))),
    )
}

/// Checks that the response is complete, the worker is killed, its stack is logged, and another worker
/// answers.
fn is_replaced(rig: &Rig, path: &str, frame: &str) {
    let pid = ready(rig, 1)[0];
    assert_eq!(Client::new(rig.address).get(path), (200, "abc".into()), "{path}");
    logged(
        rig,
        &format!("worker {pid} is killed: it did not ask for another request within 1 s (timeouts.request)"),
    );
    eventually("it has ended", || !is_alive(pid));
    logged(rig, frame);
    assert_eq!(Client::new(rig.address).get("/"), (200, "abc".into()), "{path}");
    assert_ne!(ready(rig, 1)[0], pid);
}

/// Checks that a worker whose client has disconnected gets the same timeout.
fn is_replaced_without_a_client(rig: &Rig) {
    let pid = ready(rig, 1)[0];
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    // Usually times out; on a busy machine the worker may have been killed already.
    let _ = stream.read(&mut [0; 1]);
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
    drop(stream);
    logged(rig, &format!("worker {pid} is killed"));
    assert_eq!(Client::new(rig.address).get("/"), (200, "abc".into()));
}

#[test]
fn hung_wsgi_worker_is_killed_and_replaced() {
    let rig = hosted(folder("a.py", WSGI), "wsgi = \"a.py:app\"");
    is_replaced(&rig, "/endless", "in endless");
    is_replaced(&rig, "/close", "in close");
    is_replaced_without_a_client(&rig);
}

#[test]
fn hung_asgi_worker_is_killed_and_replaced() {
    let rig = hosted(folder("a.py", ASGI), "asgi = \"a.py:app\"");
    is_replaced(&rig, "/close", "in forever");
    is_replaced_without_a_client(&rig);
}

#[test]
fn hung_perl_worker_is_killed_and_replaced() {
    let rig = hosted(folder("app.psgi", PSGI), "psgi = \"app.psgi\"");
    is_replaced(&rig, "/cleanup", "main::forever");
    is_replaced(&rig, "/close", "Body::close");
    is_replaced_without_a_client(&rig);
}

#[test]
fn hung_ruby_worker_is_killed_and_replaced() {
    let rig = hosted(folder("config.ru", RACK), "rack = \"config.ru\"");
    is_replaced(&rig, "/close", "forever");
    is_replaced(&rig, "/finished", "forever");
    is_replaced_without_a_client(&rig);
}

#[test]
fn hung_php_worker_is_killed_and_replaced() {
    let rig = hosted(folder("index.php", PHP), "php = { root = \".\", front = \"/index.php\" }");
    is_replaced(&rig, "/finish", "in forever");
    is_replaced_without_a_client(&rig);
}

#[test]
fn hung_native_worker_is_killed_and_replaced() {
    let folder = Folder::new();
    native(
        &folder,
        r#"#include <komainu_handler.h>
#include <unistd.h>
static int handle(komainu_request *request, void *process, void *thread) {
size_t length = komainu_part(request, KOMAINU_PATH).len;
int code = KOMAINU_OK;
(void)process; (void)thread;
if (length != sizeof "/silent" - 1) {
    komainu_field field = {"content-length", "3", 14, 1, 0};
    code = komainu_head(request, 200, &field, 1);
    code = code == KOMAINU_OK ? komainu_write(request, "abc", 3, 0) : code;
}
while (length > 1)
    usleep(10000);
return code; }
KOMAINU_HANDLER(.handle = handle)
"#,
    );
    let rig = hosted(folder, "handler = \"n.so\"");
    is_replaced(&rig, "/after", "n.so");
    is_replaced_without_a_client(&rig);
}

/// Several slow requests in a row are not a hang, nor is an idle worker.
#[test]
fn busy_and_idle_workers_are_not_killed() {
    let app = "import time\ndef app(environ, start_response):\n    time.sleep(float(environ['QUERY_STRING'] or 0))\n    \
               start_response('200 OK', [])\n    return [b'abc']\n";
    let rig = hosted(folder("a.py", app), "wsgi = \"a.py:app\"");
    let pid = ready(&rig, 1)[0];
    for _ in 0..4 {
        assert_eq!(Client::new(rig.address).get("/?0.8"), (200, "abc".into()));
    }
    std::thread::sleep(std::time::Duration::from_millis(3_500));
    assert_eq!(ready(&rig, 1)[0], pid, "{}", rig.reported());
}
