//! Process state that one request leaves to the next; the table is in docs/applications.md.

use crate::hosted::{Client, folder, only, start};
use crate::rig::{Folder, Rig};

/// Starts one worker with one thread, so that consecutive requests share their process state.
fn one_worker(name: &str, text: &str, app: &str) -> Rig {
    start(folder(name, text), &format!("threads = 1\n{}", only(&format!("{app}\nworkers = 1"))))
}

/// Requests `/set/NAME`, then `/get/NAME`, and compares what the second request sees for each name.
fn left(rig: &Rig, expected: &[(&str, &str)]) {
    let mut client = Client::new(rig.address);
    for (name, seen) in expected {
        assert_eq!(client.get(&format!("/set/{name}")), (200, "set".into()), "{name}");
        assert_eq!(client.get(&format!("/get/{name}")), (200, (*seen).to_owned()), "{name}");
    }
}

const WSGI: &str = "\
import contextvars, locale, os, signal, threading
variable, local, signals = contextvars.ContextVar('variable', default='unset'), threading.local(), []
class Body:
    def __iter__(self):
        variable.set(variable.get() + ' body')
        yield b'set'
    def close(self):
        signals.append(variable.get())
def get(name):
    if name == 'context': return variable.get()
    if name == 'steps': return signals.pop()
    if name == 'thread': return getattr(local, 'value', 'unset')
    if name == 'environment': return os.environ.get('LEFT', 'unset')
    if name == 'folder': return os.getcwd()
    if name == 'umask': return oct(os.umask(0o27))
    if name == 'locale': return locale.setlocale(locale.LC_NUMERIC)
    if name == 'handler': return str(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)
def app(environ, start_response):
    _, verb, name = environ['PATH_INFO'].split('/')
    start_response('200 OK', [])
    if verb == 'get':
        return [get(name).encode()]
    if name == 'context': variable.set('left')
    if name == 'steps':
        variable.set('app')
        return Body()
    if name == 'thread': local.value = 'left'
    if name == 'environment': os.environ['LEFT'] = 'left'
    if name == 'folder': os.chdir('/')
    if name == 'umask': os.umask(0o27)
    if name == 'locale': locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')
    if name == 'handler': signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return [b'set']
";

#[test]
fn wsgi_process_state_persists_as_documented() {
    let rig = one_worker("a.py", WSGI, "wsgi = \"a.py:app\"");
    left(
        &rig,
        &[
            ("context", "unset"),
            ("steps", "app body"),
            ("context", "unset"),
            ("thread", "left"),
            ("environment", "left"),
            ("folder", "/"),
            ("umask", "0o27"),
            ("locale", "C.UTF-8"),
            ("handler", "True"),
        ],
    );
}

#[test]
fn wsgi_threads_reset_context_variables_between_requests() {
    let rig = one_worker("a.py", WSGI, "wsgi = \"a.py:app\"\nthreads = 3");
    let mut client = Client::new(rig.address);
    for at in 0..30 {
        assert_eq!(client.get("/get/context"), (200, "unset".into()), "{at}");
        assert_eq!(client.get("/set/context"), (200, "set".into()), "{at}");
    }
}

const PERL: &str = "\
my %set = (
    topic => sub { $_ = 'left' }, error => sub { eval { die 'left' } }, local => sub { local $main::value = 'left' },
    input => sub { $/ = 'left' }, fields => sub { $, = 'left' }, record => sub { $\\ = 'left' },
    environment => sub { $ENV{LEFT} = 'left' }, die => sub { $SIG{__DIE__} = sub { $main::died++ } },
    alarm => sub { alarm 100 }, selected => sub { select STDERR }, folder => sub { chdir '/' }, umask => sub { umask 027 },
);
my %get = (
    topic => sub { $_ }, error => sub { $@ }, local => sub { $main::value },
    input => sub { my $seen = $/; $/ = \"\\n\"; $seen }, fields => sub { $, }, record => sub { $\\ },
    environment => sub { $ENV{LEFT} }, die => sub { $SIG{__DIE__} && ($main::died || 0) },
    alarm => sub { alarm 0 and 'left' }, selected => sub { select STDOUT },
    folder => sub { require Cwd; Cwd::getcwd() }, umask => sub { sprintf '%o', umask },
);
sub {
    my (undef, $verb, $name) = split '/', $_[0]{PATH_INFO};
    if ($verb eq 'set') { $set{$name}->(); return [200, [], ['set']] }
    my $seen = $get{$name}->();
    [200, [], [defined $seen && length $seen ? $seen : 'unset']];
}
";

#[test]
fn psgi_process_state_persists_as_documented() {
    let rig = one_worker("a.psgi", PERL, "psgi = \"a.psgi\"");
    left(
        &rig,
        &[
            ("error", "unset"),
            ("local", "unset"),
            // Process-wide state persists, as with Starman.
            ("topic", "left"),
            ("input", "left"),
            ("fields", "left"),
            ("record", "left"),
            ("environment", "left"),
            ("die", "0"),
            ("alarm", "left"),
            ("selected", "main::STDERR"),
            ("folder", "/"),
            ("umask", "27"),
        ],
    );
}

const RUBY: &str = "\
def line_left = $_ = 'left'
def line = $_
def match_left = 'left' =~ /left/
def match = $~
SET = {
  'line' => -> { line_left }, 'match' => -> { match_left }, 'error' => -> { raise 'left' rescue nil },
  'local' => -> { Thread.current[:left] = 'left' }, 'variable' => -> { Thread.current.thread_variable_set(:left, 'left') },
  'storage' => -> { Fiber[:left] = 'left' }, 'fiber' => -> { Fiber.new { Thread.current[:inner] = 'left' }.resume },
  'environment' => -> { ENV['LEFT'] = 'left' }, 'folder' => -> { Dir.chdir('/') }, 'umask' => -> { File.umask(0o27) },
  'handler' => -> { trap('USR1', 'IGNORE') },
}
GET = {
  'line' => -> { line }, 'match' => -> { match }, 'error' => -> { $! },
  'local' => -> { Thread.current[:left] }, 'variable' => -> { Thread.current.thread_variable_get(:left) },
  'storage' => -> { Fiber[:left] }, 'fiber' => -> { Thread.current[:inner] },
  'environment' => -> { ENV['LEFT'] }, 'folder' => -> { Dir.pwd }, 'umask' => -> { File.umask.to_s(8) },
  'handler' => -> { trap('USR1', 'IGNORE') },
}
run(lambda do |env|
  _, verb, name = env['PATH_INFO'].split('/')
  next [200, {}, ['unset']] if name == 'storage' && !Fiber.respond_to?(:[])
  seen = (verb == 'set' ? SET : GET).fetch(name).call
  [200, {}, [verb == 'set' ? 'set' : seen.nil? ? 'unset' : seen.to_s]]
end)
";

#[test]
fn rack_process_state_persists_as_documented() {
    let rig = one_worker("config.ru", RUBY, "rack = \"config.ru\"");
    left(
        &rig,
        &[
            ("line", "unset"),
            ("match", "unset"),
            ("error", "unset"),
            ("fiber", "unset"),
            // Thread-local and process-wide state persists, as with Puma.
            ("local", "left"),
            ("variable", "left"),
            ("environment", "left"),
            ("folder", "/"),
            ("umask", "27"),
            ("handler", "IGNORE"),
        ],
    );
}

const PHP: &str = "\
<?php
class Counter { static $value = 'unset'; }
[, $verb, $name] = explode('/', strtok($_SERVER['REQUEST_URI'], '?'));
if ($verb == 'set') {
    switch ($name) {
    case 'global': $GLOBALS['left'] = 'left'; break;
    case 'server': $_SERVER['LEFT'] = $_GET['LEFT'] = $_ENV['LEFT'] = 'left'; break;
    case 'static': Counter::$value = 'left'; break;
    case 'setting': ini_set('precision', 3); break;
    case 'errors': set_error_handler(fn() => true); break;
    case 'exceptions': set_exception_handler(fn() => true); break;
    case 'shutdown': register_shutdown_function(fn() => 1); break;
    case 'environment': putenv('LEFT=left'); break;
    case 'folder': chdir('/'); break;
    case 'umask': umask(027); break;
    case 'locale': setlocale(LC_ALL, 'C.UTF-8'); break;
    case 'zone': date_default_timezone_set('Asia/Tokyo'); break;
    case 'limit': set_time_limit(1); break;
    case 'buffers': ob_start(); ob_start(); break;
    case 'abort': ignore_user_abort(true); break;
    case 'status': http_response_code(201); header('X-Left: left'); http_response_code(200); break;
    }
    echo 'set';
    return;
}
$seen = match ($name) {
    'global' => $GLOBALS['left'] ?? 'unset',
    'server' => $_SERVER['LEFT'] ?? $_GET['LEFT'] ?? $_ENV['LEFT'] ?? 'unset',
    'static' => Counter::$value,
    'setting' => ini_get('precision') == 3 ? 'left' : 'unset',
    'errors' => set_error_handler(null) ? 'left' : 'unset',
    'exceptions' => set_exception_handler(null) ? 'left' : 'unset',
    'shutdown' => 'unset',
    'environment' => getenv('LEFT') ?: 'unset',
    'folder' => getcwd() == __DIR__ ? 'unset' : getcwd(),
    'umask' => umask() == 027 ? 'left' : 'unset',
    'locale' => setlocale(LC_ALL, 0) == 'C.UTF-8' ? 'left' : 'unset',
    'zone' => date_default_timezone_get() == 'Asia/Tokyo' ? 'left' : 'unset',
    'limit' => ini_get('max_execution_time') == 1 ? 'left' : 'unset',
    'buffers' => ob_get_level() > 1 ? 'left' : 'unset',
    'abort' => ignore_user_abort() ? 'left' : 'unset',
    'status' => implode(headers_list()),
};
echo $name == 'status' && !str_contains($seen, 'Left') ? 'unset' : $seen;
";

#[test]
fn php_state_does_not_persist_between_requests() {
    let folder = Folder::new();
    folder.write("www/index.php", PHP);
    let rig = start(
        folder,
        r#"
        threads = 1
        [[route]]
        app = "shop"
        [apps.shop]
        php = "www/index.php"
        workers = 1
        "#,
    );
    let names = "global server static setting errors exceptions shutdown environment folder umask locale zone limit buffers abort status";
    let expected: Vec<_> = names.split(' ').map(|name| (name, "unset")).collect();
    left(&rig, &expected);
}

#[test]
fn an_application_that_clears_its_environment_is_served() {
    let wsgi = "import os\nos.environ.clear()\ndef app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'ok']\n";
    let asgi = "import os\nos.environ.clear()\nasync def app(scope, receive, send):\n    assert scope['type'] == 'http'\n    \
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
        await send({'type': 'http.response.body', 'body': b'ok'})\n";
    for (name, text, app) in [
        ("a.py", wsgi, "wsgi = \"a.py:app\""),
        ("b.py", asgi, "asgi = \"b.py:app\""),
        ("config.ru", "ENV.clear\nrun(proc { [200, {}, ['ok']] })\n", "rack = \"config.ru\""),
        ("a.psgi", "%ENV = ();\nsub { [200, [], ['ok']] }\n", "psgi = \"a.psgi\""),
    ] {
        for preload in [true, false] {
            let rig = one_worker(name, text, &format!("{app}\npreload = {preload}"));
            let answer = Client::new(rig.address).get("/");
            assert_eq!(answer, (200, "ok".into()), "{name} {preload}: {}", rig.reported());
        }
    }
}
