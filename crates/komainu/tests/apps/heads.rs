//! Response heads in every language: framing set by the application, case of field names, and large heads.

use crate::hosted::{Client, folder, logged, native, only, start};
use crate::rig::{Folder, Rig, eventually};

const CHUNKS: &str = "3\\r\\nabc\\r\\n0\\r\\n\\r\\n";

const WSGI: &str = "\
def app(environ, start_response):
    path = environ['PATH_INFO']
    if path.endswith('chunks'):
        start_response('200 OK', [('Transfer-Encoding', 'chunked')])
        return iter([b'3\\r\\nabc', b'\\r\\n0\\r\\n\\r\\n'])
    if path.endswith('plain'):
        start_response('200 OK', [('Transfer-Encoding', 'chunked')])
        return [b'plain']
    if path.endswith('case'):
        start_response('200 OK', [('X-mInE', '1'), ('X-Frame-Options', '2'), ('ETag', '\"3\"')])
        return [b'']
    start_response('200 OK', [('X-Big', 'x' * int(environ['QUERY_STRING']))])
    return [b'big']
";
const ASGI: &str = "\
async def app(scope, receive, send):
    if scope['type'] != 'http': raise RuntimeError('no lifespan')
    path = scope['path']
    headers, body = [], b''
    if path.endswith('chunks'): headers, body = [(b'Transfer-Encoding', b'chunked')], b'3\\r\\nabc\\r\\n0\\r\\n\\r\\n'
    elif path.endswith('plain'): headers, body = [(b'Transfer-Encoding', b'chunked')], b'plain'
    elif path.endswith('case'): headers = [(b'X-mInE', b'1'), (b'X-Frame-Options', b'2'), (b'ETag', b'\"3\"')]
    else: headers, body = [(b'X-Big', b'x' * int(scope['query_string']))], b'big'
    await send({'type': 'http.response.start', 'status': 200, 'headers': headers})
    await send({'type': 'http.response.body', 'body': body})
";
const PERL: &str = "\
sub {
    my ($env) = @_;
    my $path = $env->{PATH_INFO};
    return [200, ['Transfer-Encoding', 'chunked'], [\"CHUNKS\"]] if $path =~ /chunks$/;
    return [200, ['Transfer-Encoding', 'chunked'], ['plain']] if $path =~ /plain$/;
    return [200, ['X-mInE', 1, 'X-Frame-Options', 2, 'ETag', '\"3\"'], ['']] if $path =~ /case$/;
    [200, ['X-Big', 'x' x $env->{QUERY_STRING}], ['big']]
}
";
const RUBY: &str = "\
run(lambda do |env|
  case env['PATH_INFO']
  when /chunks$/ then [200, { 'Transfer-Encoding' => 'chunked' }, [\"CHUNKS\"]]
  when /plain$/ then [200, { 'Transfer-Encoding' => 'chunked' }, ['plain']]
  when /case$/ then [200, { 'X-mInE' => '1', 'X-Frame-Options' => '2', 'ETag' => '\"3\"' }, ['']]
  else [200, { 'X-Big' => 'x' * env['QUERY_STRING'].to_i }, ['big']]
  end
end)
";
const PHP: &str = "\
<?php
$path = strtok($_SERVER['REQUEST_URI'], '?');
if (str_ends_with($path, 'chunks')) { header('Transfer-Encoding: chunked'); echo \"CHUNKS\"; }
elseif (str_ends_with($path, 'plain')) { header('Transfer-Encoding: chunked'); echo 'plain'; }
elseif (str_ends_with($path, 'case')) { header('X-mInE: 1'); header('X-Frame-Options: 2'); header('ETag: \"3\"'); }
else { header('X-Big: ' . str_repeat('x', (int) $_SERVER['QUERY_STRING'])); echo 'big'; }
";
const NATIVE: &str = r#"
#include "komainu_handler.h"
#include <stdlib.h>
static int handle(komainu_request *request, void *process, void *thread) {
    static const komainu_field chunked[] = {{"Transfer-Encoding", "chunked", 17, 7, 0}};
    static const komainu_field names[] = {
        {"X-mInE", "1", 6, 1, 0}, {"X-Frame-Options", "2", 15, 1, 0}, {"ETag", "\"3\"", 4, 3, 0}};
    static const char chunks[] = "CHUNKS";
    const komainu_field *fields;
    size_t count = komainu_fields(request, &fields), at;
    char last = 0;
    int big = 0, code;
    (void)process, (void)thread;
    for (at = 0; at < count; at++) {
        if (fields[at].id == KOMAINU_PATH)
            last = fields[at].value[fields[at].value_len - 1];
        if (fields[at].id == KOMAINU_QUERY && fields[at].value_len)
            big = atoi(fields[at].value);
    }
    if (last == 's' || last == 'n') {
        code = komainu_head(request, 200, chunked, 1);
        if (code == KOMAINU_OK)
            code = last == 's' ? komainu_write(request, chunks, sizeof chunks - 1, KOMAINU_MORE)
                               : komainu_write(request, "plain", 5, KOMAINU_MORE);
    } else if (last == 'e') {
        code = komainu_head(request, 200, names, 3);
    } else {
        char *value = malloc((size_t)big);
        komainu_field field = {"X-Big", value, 5, (uint32_t)big, 0};
        memset(value, 'x', (size_t)big);
        code = komainu_head(request, 200, &field, 1);
        free(value);
        if (code == KOMAINU_OK)
            code = komainu_write(request, "big", 3, KOMAINU_MORE);
    }
    return code;
}
KOMAINU_HANDLER(.handle = handle)
"#;

const LANGUAGES: [&str; 7] = ["psgi", "rack", "wsgi", "auto", "asgi", "php", "native"];

/// Starts one worker for each language. `more` is added to each application's table.
fn all(more: &str) -> Rig {
    let folder = Folder::new();
    let chunked = |source: &str| source.replace("CHUNKS", CHUNKS);
    folder.write("app.psgi", chunked(PERL)).write("config.ru", chunked(RUBY));
    folder.write("w.py", WSGI).write("a.py", ASGI).write("web/index.php", chunked(PHP));
    native(&folder, &chunked(NATIVE));
    let apps = [
        ("psgi", "psgi = \"app.psgi\""),
        ("rack", "rack = \"config.ru\""),
        ("wsgi", "wsgi = \"w.py\""),
        ("auto", "python = \"w.py\""),
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
            {more}
            "#
        )
    });
    let rig = start(folder, &format!("threads = 1\n{}", texts.concat()));
    for language in LANGUAGES {
        rig.get(&format!("/{language}/x?1")).expect(200, "big");
    }
    rig
}

#[test]
fn chunked_bodies_of_applications_are_decoded() {
    let rig = all("");
    for language in LANGUAGES {
        let mut client = Client::new(rig.address);
        // ASGI servers frame the response themselves, whatever the application's head states.
        let expected = if language == "asgi" { "3\r\nabc\r\n0\r\n\r\n" } else { "abc" };
        assert_eq!(client.get(&format!("/{language}/chunks")), (200, expected.into()), "{language}");
        assert_eq!(client.get(&format!("/{language}/plain")), (200, "plain".into()), "{language}");
    }
}

#[test]
fn names_of_header_fields_keep_their_case() {
    let rig = all("");
    for language in LANGUAGES {
        let mut client = Client::new(rig.address);
        client.send(format!("GET /{language}/case HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.head();
        for line in ["X-mInE: 1", "X-Frame-Options: 2", "ETag: \"3\""] {
            assert!(head.lines().any(|found| found == line), "{language}: no {line} in {head}");
        }
    }
}

#[test]
fn oversized_response_head_is_rejected_and_limit_is_logged() {
    let rig = all("");
    for language in LANGUAGES {
        rig.get(&format!("/{language}/x?65000")).expect(200, "big");
        let before = rig.reported().matches("`response_head`").count();
        let status = Client::new(rig.address).get(&format!("/{language}/x?200000")).0;
        assert!(matches!(status, 500 | 502), "{language}: {status}");
        eventually(&format!("{language}: the limit is logged"), || {
            rig.reported().matches("`response_head`").count() > before
        });
    }
}

#[test]
fn response_head_of_200_kb_is_accepted_when_configured() {
    let rig = all("response_head = \"256KiB\"");
    for language in LANGUAGES {
        let mut client = Client::new(rig.address);
        client.send(format!("GET /{language}/x?200000 HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.head();
        assert!(head.len() > 200_000 && head.starts_with("HTTP/1.1 200"), "{language}: {}", head.len());
    }
}

#[test]
fn log_names_the_request_whose_answer_makes_no_response() {
    let app = "def app(environ, start_response):\n    start_response('200 OK', [('X-Bad', 'a\\r\\nb: c')])\n    return [b'ok']\n";
    let rig = start(folder("a.py", app), &only("wsgi = \"a.py:app\"\nworkers = 1"));
    assert_eq!(Client::new(rig.address).get("/cart?token=secret").0, 502);
    logged(&rig, "its answer to GET /cart makes no response: ");
}
