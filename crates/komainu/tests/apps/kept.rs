//! Request objects that an application keeps after the request has ended.

use crate::hosted::{Client, folder, logged, only, start};
use crate::rig::Rig;

fn psgi(app: &str) -> Rig {
    start(folder("app.psgi", app), &format!("threads = 1\n{}", only("psgi = \"app.psgi\"\nworkers = 1")))
}

#[test]
fn retained_psgi_objects_do_not_affect_later_requests() {
    let rig = psgi(
        r"my ($writer, $responder, $input, $inform);
sub {
    my $env = shift; my $path = $env->{PATH_INFO};
    return sub { $writer = shift->([200, []]); $writer->write('first') } if $path eq '/writer';
    return sub { $responder = shift; $responder->([200, [], ['first']]) } if $path eq '/responder';
    if ($path eq '/input') { ($input, $inform) = @$env{'psgi.input', 'psgix.informational'}; return [200, [], ['first']] }
    return sub {
        my $w = shift->([200, []]); my $died = '';
        for my $kept (sub { $writer->write('stolen') }, sub { $responder->([200, [], ['stolen']]) },
                      sub { $input->read(my $b, 9) and $w->write('stolen') }, sub { $inform->(103, []) }) {
            eval { $kept->(); 1 } or $died .= $@ =~ /the request is over/ ? 1 : $@ }
        $env->{'psgi.input'}->read(my $own, 99999); $w->write($died . length $own) } }
",
    );
    let mut client = Client::new(rig.address);
    assert_eq!(client.get("/writer"), (200, "first".into()));
    assert_eq!(client.get("/responder"), (200, "first".into()));
    // More than is read before the application is called.
    let body = "x".repeat(70_000);
    assert_eq!(client.post("/input", &body), (200, "first".into()));
    assert_eq!(client.post("/", &body), (200, "111170000".into()));
    assert_eq!(client.post("/", &body), (200, "111170000".into()));
}

#[test]
fn psgi_cleanup_handlers_run_when_replaced_or_appended() {
    let rig = psgi(
        r"my $runs = 0;
sub {
    my $env = shift; my $path = $env->{PATH_INFO};
    $env->{'psgix.cleanup.handlers'} = [sub { $runs++ }] if $path eq '/replace';
    push @{$env->{'psgix.cleanup.handlers'}}, sub { $runs++ } if $path eq '/push';
    if ($path eq '/delete') { delete $env->{'psgix.cleanup.handlers'}; $env->{'psgix.cleanup.handlers'} = [sub { $runs++ }] }
    [200, [], [$runs]] }
",
    );
    let mut client = Client::new(rig.address);
    for round in 0..20 {
        assert_eq!(client.get("/replace"), (200, (3 * round).to_string()));
        assert_eq!(client.get("/push"), (200, (3 * round + 1).to_string()));
        assert_eq!(client.get("/delete"), (200, (3 * round + 2).to_string()));
    }
    assert_eq!(client.get("/"), (200, "60".into()));
}

#[test]
fn wide_characters_of_perl_objects_are_refused() {
    let rig = psgi(
        r#"package Text { use overload '""' => sub { $_[0][0] } }
sub {
    my $text = bless [$_[0]{PATH_INFO} eq '/wide' ? "a\x{263a}" : "a\x{e9}"], 'Text';
    utf8::upgrade($text->[0]);
    [200, $_[0]{QUERY_STRING} ? ['X-A', $text] : [], [$_[0]{QUERY_STRING} ? 'x' : $text]] }
"#,
    );
    let mut client = Client::new(rig.address);
    assert_eq!(client.get("/wide").0, 500);
    logged(&rig, "Wide character in the body");
    assert_eq!(client.get("/wide?head").0, 500);
    logged(&rig, "Wide character in the value of a header");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert!(head.to_lowercase().contains("content-length: 2"), "{head}");
}

#[test]
fn psgi_body_is_closed_after_failure_or_disconnect() {
    let rig = psgi(
        r#"package Body {
    sub getline { die "broken\n" if $_[0]{fails}; $_[0]{sent}++ > 3e4 ? undef : 'x' x 65536 }
    sub close { print STDERR "closed $_[0]{name}\n" } }
sub { my $name = $_[0]{PATH_INFO}; [200, [], bless { fails => $name eq '/dies', name => $name }, 'Body'] }
"#,
    );
    assert!(Client::new(rig.address).get("/dies").0 >= 200);
    logged(&rig, "closed /dies");
    let mut client = Client::new(rig.address);
    client.send("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    drop(client);
    logged(&rig, "closed /gone");
}

const MOVING: &str = r"
class Body
  def initialize(path) = @path = path
  def to_path = (churn; @path)
  def each = (churn; yield 'abc')
  def respond_to?(name, all = false) = (churn; super)
end
def Kernel.churn
  GC.compact if GC.respond_to?(:compact) && !GC.stress
  Array.new(GC.stress ? 5 : 2000) { |at| +'overwritten' << at.to_s }
end
class Body
  def churn = Kernel.churn
end
GC.auto_compact = true if GC.respond_to?(:auto_compact=)
run(lambda do |env|
  GC.stress = env['QUERY_STRING'] == 'stress'
  fields = (1..(env['PATH_INFO'] == '/many' ? 80 : 5)).to_h { |at| [+'x-' << at.to_s, +'v' << at.to_s] }
  fields['x-lines'] = [+'a', +'b']
  body = env['PATH_INFO'] == '/file' ? Body.new(__FILE__) : env['PATH_INFO'] == '/each' ? Body.new(nil) : [+'abc']
  env['rack.response_finished'] << proc { GC.stress = false }
  [200, fields, body]
end)
";

#[test]
fn ruby_gc_compaction_does_not_change_responses() {
    let rig = start(
        folder("config.ru", MOVING),
        &format!("threads = 1\n{}", only("rack = \"config.ru\"\nworkers = 1")),
    );
    for path in
        ["/file", "/each", "/many", "/array", "/file?stress", "/each?stress", "/many?stress", "/array?stress"]
    {
        let mut client = Client::new(rig.address);
        // The Ruby application runs the garbage collector at each allocation.
        client.wait_longer();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Some: thing\r\n\r\n"));
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}{}", rig.reported());
        for at in 1..=5 {
            assert!(head.contains(&format!("x-{at}: v{at}\r\n")), "{path}: {head}");
        }
        assert!(head.contains("x-lines: a\r\nx-lines: b\r\n"), "{path}: {head}");
        client.body(&head, |_| {});
    }
}

/// Uploads that do not fit into memory are, with Rack 2, kept in an unlinked file that is closed with the
/// request.
#[test]
fn a_ruby_worker_keeps_no_files_of_uploads() {
    let app = "Komainu.rewindable_input = true\nGC.disable\nrun(lambda do |env|\n  env['rack.input'].read\n  \
               open = Dir['/proc/self/fd/*'].count { |fd| (File.readlink(fd) rescue '').include?('komainu-body') }\n  \
               [200, {}, [open.to_s]]\nend)\n";
    let folder = folder("config.ru", app);
    folder.write("komainu.rb", "Komainu.rewindable_input = true\n");
    let rig = start(folder, &format!("threads = 1\n{}", only("rack = \"config.ru\"\nworkers = 1")));
    let mut client = Client::new(rig.address);
    let body = "x".repeat(300_000);
    for _ in 0..8 {
        assert_eq!(client.post("/", &body), (200, "1".into()));
    }
}

#[test]
fn threads_started_while_loading_are_named_or_run_in_workers() {
    const PYTHON: &str = "\
import threading, time
beats = 0
def beat():
    global beats
    while True:
        beats += 1
        time.sleep(.01)
threading.Thread(target=beat, name='the heart', daemon=True).start()
HOOK
def app(environ, start_response):
    start_response('200 OK', [])
    return [str(threading.active_count()).encode()]
";
    const RUBY: &str = "\
Thread.new { loop { sleep 0.01 } }.name = 'the heart'
HOOK
run ->(_) { [200, {}, [Thread.list.size.to_s]] }
";
    const WARNING: &str =
        "threads that were started while the application was loaded do not run in its workers";
    for (name, text, app, hook) in [
        ("a.py", PYTHON, "wsgi = \"a.py:app\"", "import komainu; komainu.after_fork(lambda: None)"),
        ("config.ru", RUBY, "rack = \"config.ru\"", "Komainu.after_fork { }"),
    ] {
        for (preload, hook, is_warned, threads) in
            [(true, "", true, "1"), (true, hook, false, "1"), (false, "", false, "2")]
        {
            let settings = only(&format!("{app}\npreload = {preload}\nworkers = 1"));
            let rig = start(folder(name, &text.replace("HOOK", hook)), &format!("threads = 1\n{settings}"));
            assert_eq!(
                Client::new(rig.address).get("/"),
                (200, threads.to_owned()),
                "{name} {preload} {hook}"
            );
            let log = rig.reported();
            assert_eq!(
                log.contains(WARNING) && log.contains("the heart"),
                is_warned,
                "{name} {preload}: {log}"
            );
        }
    }
}
