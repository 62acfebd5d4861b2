//! Applications behind the cache, in each language: hits, misses, streamed responses, invalidation, and 304.

use crate::hosted;
use crate::hosted::start;
use crate::rig::{Answer, Folder, Rig};

/// Counts the requests to `/count`, answers 304 to `If-None-Match`, streams at `/stream`, and forbids storing
/// at `/private`.
const PERL: &str = r#"my $count = 0;
sub {
    my $env = shift;
    my $path = $env->{PATH_INFO};
    return sub {
        my $writer = shift->([200, ['Cache-Control' => 'max-age=60']]);
        $writer->write("piece $_;") for 1 .. 3;
        $writer->close;
    } if $path =~ /stream$/;
    return [200, [], ['changed']] if $env->{REQUEST_METHOD} eq 'POST';
    return [200, ['Cache-Control' => 'private'], ['private ' . ++$count]] if $path =~ /private$/;
    my @fields = ('Cache-Control' => 'max-age=0', ETag => '"e"');
    return [304, [@fields], []] if ($env->{HTTP_IF_NONE_MATCH} // '') eq '"e"' && $path =~ /tagged$/;
    return [200, [@fields], ['tagged ' . ++$count]] if $path =~ /tagged$/;
    [200, ['Cache-Control' => 'max-age=60'], ['count ' . ++$count]];
}"#;
const RUBY: &str = r#"count = 0
run ->(env) {
  path = env['PATH_INFO']
  fresh = { 'cache-control' => 'max-age=60' }
  tagged = { 'cache-control' => 'max-age=0', 'etag' => '"e"' }
  next [200, fresh, Enumerator.new { |out| (1..3).each { |n| out << "piece #{n};" } }] if path.end_with?('stream')
  next [200, {}, ['changed']] if env['REQUEST_METHOD'] == 'POST'
  next [200, { 'cache-control' => 'private' }, ["private #{count += 1}"]] if path.end_with?('private')
  next [304, tagged, []] if env['HTTP_IF_NONE_MATCH'] == '"e"' && path.end_with?('tagged')
  next [200, tagged, ["tagged #{count += 1}"]] if path.end_with?('tagged')
  [200, fresh, ["count #{count += 1}"]]
}
"#;
const WSGI: &str = r#"
count = 0
def app(environ, start_response):
    global count
    path = environ['PATH_INFO']
    tagged = [('Cache-Control', 'max-age=0'), ('ETag', '"e"')]
    if path.endswith('stream'):
        start_response('200 OK', [('Cache-Control', 'max-age=60')])
        return (f'piece {n};'.encode() for n in range(1, 4))
    if environ['REQUEST_METHOD'] == 'POST':
        start_response('200 OK', [])
        return [b'changed']
    if path.endswith('tagged') and environ.get('HTTP_IF_NONE_MATCH') == '"e"':
        start_response('304 Not Modified', tagged)
        return []
    count += 1
    for name, fields in [('private', [('Cache-Control', 'private')]), ('tagged', tagged)]:
        if path.endswith(name):
            start_response('200 OK', fields)
            return [f'{name} {count}'.encode()]
    start_response('200 OK', [('Cache-Control', 'max-age=60')])
    return [f'count {count}'.encode()]
"#;
const ASGI: &str = r#"
count = 0
async def app(scope, receive, send):
    global count
    if scope['type'] != 'http':
        return
    path, headers = scope['path'], dict(scope['headers'])
    tagged = [(b'cache-control', b'max-age=0'), (b'etag', b'"e"')]
    async def reply(status, fields, *pieces):
        await send({'type': 'http.response.start', 'status': status, 'headers': fields})
        for piece in pieces:
            await send({'type': 'http.response.body', 'body': piece.encode(), 'more_body': True})
        await send({'type': 'http.response.body', 'body': b''})
    fresh = [(b'cache-control', b'max-age=60')]
    if path.endswith('stream'):
        return await reply(200, fresh, 'piece 1;', 'piece 2;', 'piece 3;')
    if scope['method'] == 'POST':
        return await reply(200, [], 'changed')
    if path.endswith('tagged') and headers.get(b'if-none-match') == b'"e"':
        return await reply(304, tagged)
    count += 1
    if path.endswith('private'):
        return await reply(200, [(b'cache-control', b'private')], f'private {count}')
    if path.endswith('tagged'):
        return await reply(200, tagged, f'tagged {count}')
    await reply(200, fresh, f'count {count}')
"#;
const NATIVE: &str = r#"
#include <komainu_handler.h>
#include <stdio.h>
#include <string.h>

static int count;

static int ends(komainu_text text, const char *end) {
    size_t len = strlen(end);
    return text.len >= len && memcmp(text.text + text.len - len, end, len) == 0;
}

static int reply(komainu_request *request, unsigned status, const char *control, const char *tag, const char *body) {
    komainu_field fields[2] = {{"cache-control", control, 13, (uint32_t)strlen(control), 0}, {"etag", tag, 4, 3, 0}};
    int done = komainu_head(request, (uint16_t)status, fields, tag ? 2 : 1);
    return done == KOMAINU_OK && *body ? (int)komainu_write(request, body, strlen(body), 0) : done;
}

static int handle(komainu_request *request, void *process, void *thread) {
    komainu_text path = komainu_part(request, KOMAINU_PATH), method = komainu_part(request, KOMAINU_METHOD);
    komainu_text known = komainu_header(request, "if-none-match");
    char body[64];
    (void)process, (void)thread;
    if (ends(path, "stream")) {
        int done = reply(request, 200, "max-age=60", NULL, "piece 1;");
        if (done == KOMAINU_OK) done = (int)komainu_write(request, "piece 2;", 8, 0);
        return done == KOMAINU_OK ? (int)komainu_write(request, "piece 3;", 8, 0) : done;
    }
    if (ends(method, "POST")) return komainu_reply(request, 200, "text/plain", "changed", 7);
    if (ends(path, "tagged") && ends(known, "\"e\"")) return reply(request, 304, "max-age=0", "\"e\"", "");
    count++;
    if (ends(path, "private")) {
        snprintf(body, sizeof body, "private %d", count);
        return reply(request, 200, "private", NULL, body);
    }
    if (ends(path, "tagged")) {
        snprintf(body, sizeof body, "tagged %d", count);
        return reply(request, 200, "max-age=0", "\"e\"", body);
    }
    snprintf(body, sizeof body, "count %d", count);
    return reply(request, 200, "max-age=60", NULL, body);
}

KOMAINU_HANDLER(.handle = handle)
"#;

const LANGUAGES: [(&str, &str); 5] = [
    ("psgi", "psgi = \"app.psgi\""),
    ("rack", "rack = \"config.ru\""),
    ("wsgi", "wsgi = \"w:app\""),
    ("asgi", "asgi = \"a:app\""),
    ("native", "handler = \"n.so\""),
];

/// Starts all of them behind one cache.
fn all() -> Rig {
    let folder = Folder::new();
    folder.write("app.psgi", PERL).write("config.ru", RUBY).write("w.py", WSGI).write("a.py", ASGI);
    hosted::native(&folder, NATIVE);
    let mut config = String::new();
    for (name, target) in LANGUAGES {
        config += &format!(
            r#"
            [[route]]
            path = "/{name}/*"
            app = "{name}"
            cache = true
            [apps.{name}]
            {target}
            workers = 1
            "#
        );
    }
    start(folder, &config)
}

fn status(answer: &Answer) -> String {
    answer.field("Cache-Status").unwrap().to_owned()
}

#[test]
fn responses_of_applications_in_every_language_are_cached() {
    let rig = all();
    for (name, _) in LANGUAGES {
        // HTTP/1.0 has no chunked coding: whether the length is known when the head is sent depends on the
        // worker's speed.
        let get = |path: &str| rig.send(&format!("GET /{name}/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
        // A miss, a hit, an invalidation, a miss.
        let miss = get("count");
        assert!(
            status(miss.expect(200, "count 1")).starts_with("Komainu; fwd=uri-miss; stored;"),
            "{name}: {}",
            miss.head
        );
        let hit = get("count");
        assert!(status(hit.expect(200, "count 1")).starts_with("Komainu; hit; ttl="), "{name}: {}", hit.head);
        let request = format!(
            "POST /{name}/count HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        rig.send(&request).expect(200, "changed").expect_field("Cache-Status", "Komainu; fwd=method");
        get("count").expect(200, "count 2");
        get("count").expect(200, "count 2");
        // Private responses are not stored.
        get("private").expect(200, "private 3").expect_field("Cache-Status", "Komainu; fwd=uri-miss");
        get("private").expect(200, "private 4");
        // A streamed response is stored as a whole.
        let stream = || get("stream");
        stream().expect(200, "piece 1;piece 2;piece 3;");
        let hit = stream();
        hit.expect(200, "piece 1;piece 2;piece 3;").expect_field("Content-Length", "24");
        assert!(status(&hit).starts_with("Komainu; hit; ttl="), "{name}: {}", hit.head);
        // The application revalidates the stored response, and the client its own copy.
        get("tagged").expect(200, "tagged 5");
        let validated = get("tagged");
        assert!(
            status(validated.expect(200, "tagged 5")).contains("fwd=stale; fwd-status=304"),
            "{name}: {}",
            validated.head
        );
        rig.ask(&format!("/{name}/tagged"), "If-None-Match: \"e\"\r\n").expect(304, "");
    }
}
