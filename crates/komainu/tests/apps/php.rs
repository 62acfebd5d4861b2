//! Embedded PHP: scripts and files of a site, requests and responses compared with PHP-FPM, settings, errors,
//! and misbehaving scripts.

use std::io::{Read, Write};
use std::time::Duration;

use crate::hosted::{Client, folder, is_alive, logged, only, ready, run, start, workers};
use crate::rig;
use crate::rig::{Answer, Folder, Rig, connect, eventually, server_environment};

/// A script that prints its server variables and parameters.
const SHOW: &str = r#"<?php header('X-Script: ' . basename(__DIR__) . '/' . basename(__FILE__));
foreach (['SCRIPT_NAME', 'PATH_INFO', 'PATH_TRANSLATED', 'REQUEST_URI', 'DOCUMENT_URI', 'QUERY_STRING', 'PHP_SELF', 'REQUEST_METHOD',
    'REQUEST_SCHEME', 'GATEWAY_INTERFACE', 'SERVER_PROTOCOL', 'SERVER_NAME', 'SERVER_ADDR', 'HTTP_HOST', 'HTTP_X_A_B', 'HTTP_COOKIE',
    'HTTP_PROXY', 'REMOTE_ADDR', 'HTTPS', 'CONTENT_TYPE', 'CONTENT_LENGTH', 'APP_ENV', 'PHP_AUTH_USER', 'PHP_AUTH_PW', 'REDIRECT_STATUS',
    'KOMAINU_RING'] as $name) { if (($_SERVER[$name] ?? '') !== '') echo "$name={$_SERVER[$name]}\n"; }
echo 'FILE=', substr($_SERVER['SCRIPT_FILENAME'], strlen($_SERVER['DOCUMENT_ROOT'])), "\n";
echo 'SERVER_SOFTWARE=', explode('/', $_SERVER['SERVER_SOFTWARE'])[0], "\n";
echo 'GET=', json_encode($_GET), ' COOKIE=', json_encode($_COOKIE), "\n";
if ($_POST) echo 'POST=', json_encode($_POST), "\n";
foreach ($_FILES as $file) echo 'UPLOAD=', $file['name'], ' ', $file['size'], ' ', md5_file($file['tmp_name']), "\n";
"#;

/// Settings that do not depend on this machine's php.ini.
const INI: &str = "ini = { display_errors = false, log_errors = true, html_errors = false, error_reporting = \"E_ALL\", \
    post_max_size = \"4M\", upload_max_filesize = \"4M\", output_buffering = 0 }";

/// Serves these scripts with one worker. `more` is added to the application's table.
fn site(scripts: &[(&str, &str)], more: &str) -> Rig {
    let folder = Folder::new();
    for (name, text) in scripts {
        folder.write(&format!("www/{name}"), text);
    }
    served(folder, more)
}

fn served(folder: Folder, more: &str) -> Rig {
    start(folder, &only(&format!("php = {{ root = \"www\", {INI} }}\nworkers = 1\n{more}")))
}

#[track_caller]
fn has_lines(text: &str, wanted: &[&str]) {
    for line in wanted {
        assert!(text.lines().any(|found| found == *line), "no {line} in {text}");
    }
}

/// WordPress and Laravel by their layouts: `localhost` is WordPress with files beside it, `strict.test` without a
/// fallback script, `below.test` below a prefix, and `laravel.test` has one script.
fn layouts() -> Rig {
    let folder = Folder::new();
    for script in ["index.php", "wp-admin/index.php", "wp-login.php", "wp-content/x.php"] {
        folder.write(&format!("wp/{script}"), SHOW);
    }
    folder.write("wp/wp-content/style.css", "body {}").write("wp/wp-content/photo.jpg", "<?php echo 'run';");
    folder
        .write("wp/wp-config.php.bak", "secret")
        .write("wp/.env", "secret")
        .write("wp/.user.ini", "precision=7");
    folder
        .write("wp/wp-content/inc.inc", "secret")
        .write("wp/wp-content/old.PHP", "secret")
        .write("wp/readme.html", "read me");
    folder
        .write("app/public/index.php", SHOW)
        .write("app/public/robots.txt", "robots")
        .write("app/.env", "secret");
    let text = format!(
        r#"
        threads = 1

        [[site]]
        hosts = "laravel.test"

        [[site.route]]
        app = "laravel"

        [[site]]
        hosts = "strict.test"

        [[site.route]]
        app = "strict"

        [[site]]
        hosts = "below.test"

        [[site.route]]
        path = "/blog/*"
        app = {{ name = "wp", strip_prefix = true }}

        [[site]]

        [[site.route]]
        path = "/wp-content/**.php"
        respond = 403

        [[site.route]]
        files = {{ root = "wp", cache_control = {{ "*.css" = "max-age=60" }} }}
        app = "wp"

        [apps.wp]
        workers = 1
        php = {{ root = "wp", {INI} }}

        [apps.strict]
        workers = 1
        php = {{ root = "wp", front = false }}

        [apps.laravel]
        workers = 1
        php = "app/public/index.php"
        env = {{ APP_ENV = "production" }}
        "#
    );
    start(folder, &text)
}

fn at(rig: &Rig, host: &str, target: &str) -> Answer {
    rig.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
}

/// Scripts, directories with an index script, `PATH_INFO`, and the fallback script.
#[test]
fn paths_select_a_script_and_its_variables() {
    let rig = layouts();
    let lines = |target: &str, wanted: &[&str]| {
        let answer = rig.get(target);
        answer.expect_status(200);
        has_lines(&answer.text(), wanted);
    };
    let ends = [
        "REMOTE_ADDR=127.0.0.1",
        "SERVER_ADDR=127.0.0.1",
        "SERVER_NAME=localhost",
        "SERVER_SOFTWARE=komainu",
    ];
    lines(
        "/",
        &[
            &["SCRIPT_NAME=/index.php", "FILE=/index.php", "REQUEST_URI=/", "GATEWAY_INTERFACE=CGI/1.1"][..],
            &ends,
        ]
        .concat(),
    );
    lines(
        "/2026/hello%20world/?a=%20b",
        &[
            "SCRIPT_NAME=/index.php",
            "REQUEST_URI=/2026/hello%20world/?a=%20b",
            "QUERY_STRING=a=%20b",
            "PHP_SELF=/index.php",
        ],
    );
    lines(
        "/wp-login.php?x=1",
        &["SCRIPT_NAME=/wp-login.php", "QUERY_STRING=x=1", "GET={\"x\":\"1\"} COOKIE=[]"],
    );
    lines("/wp-admin/", &["SCRIPT_NAME=/wp-admin/index.php", "FILE=/wp-admin/index.php"]);
    lines(
        "/index.php/wp-json/v2",
        &[
            "SCRIPT_NAME=/index.php",
            "PATH_INFO=/wp-json/v2",
            "PHP_SELF=/index.php/wp-json/v2",
            "DOCUMENT_URI=/index.php/wp-json/v2",
        ],
    );
    rig.get("/wp-admin?a").expect_status(301).expect_field("Location", "./wp-admin/?a");
}

#[test]
fn files_beside_scripts_are_sent_and_never_run() {
    let rig = layouts();
    rig.get("/wp-content/style.css").expect(200, "body {}").expect_field("Cache-Control", "max-age=60");
    rig.get("/readme.html").expect(200, "read me");
    rig.get("/wp-content/photo.jpg").expect(200, "<?php echo 'run';");
    for target in [
        "/wp-content/photo.jpg/x.php",
        "/wp-content/photo.jpg%00.php",
        "/wp-content/x.php",
        "/index.php%00",
        "/x%00.jpg",
    ] {
        let status = rig.get(target).status();
        assert!(matches!(status, 400 | 403), "{target}: {status}");
    }
    for target in [
        "/wp-config.php.bak",
        "/.env",
        "/.user.ini",
        "/WP-LOGIN.PHP",
        "/none.php",
        "/wp-content/inc.inc",
        "/wp-content/old.PHP",
    ] {
        has_lines(&rig.get(target).expect_status(200).text(), &["SCRIPT_NAME=/index.php"]);
    }
}

#[test]
fn unknown_paths_get_404_without_a_fallback_script() {
    let rig = layouts();
    for target in [
        "/none",
        "/wp-config.php.bak",
        "/wp-content/photo.jpg/x.php",
        "/none.php",
        "/.env",
        "/index.php/../none",
    ] {
        at(&rig, "strict.test", target).expect_status(404);
    }
    has_lines(
        &at(&rig, "strict.test", "/wp-content/x.php/../../wp-login.php").text(),
        &["SCRIPT_NAME=/wp-login.php"],
    );
}

#[test]
fn a_single_script_serves_all_paths_but_those_of_files() {
    let rig = layouts();
    let laravel = at(&rig, "laravel.test", "/users/1");
    laravel.expect_status(200).expect_field("X-Script", "public/index.php");
    has_lines(&laravel.text(), &["APP_ENV=production"]);
    at(&rig, "laravel.test", "/robots.txt").expect(200, "robots");
}

#[test]
fn scripts_below_a_prefix_see_it_in_their_names() {
    let rig = layouts();
    let below = at(&rig, "below.test", "/blog/wp-login.php/more");
    has_lines(
        &below.text(),
        &[
            "SCRIPT_NAME=/blog/wp-login.php",
            "FILE=/wp-login.php",
            "PATH_INFO=/more",
            "PHP_SELF=/blog/wp-login.php/more",
        ],
    );
    at(&rig, "below.test", "/blog/readme.html").expect(200, "read me");
}

#[test]
fn php_server_variables_are_set_from_the_request() {
    let rig = site(&[("index.php", SHOW)], "");
    let fields = "X-A-B: one\r\nX-A-B: two\r\nX_A_B: no\r\nX.A.B: no\r\nProxy: http://evil\r\nCookie: a=1\r\nCookie: b=2\r\nKOMAINU-RING: 9\r\n\
        Authorization: Basic dXNlcjpwYXNz\r\n";
    let text = rig.ask("/?q[]=1&q[]=2", fields).text();
    has_lines(
        &text,
        &[
            "HTTP_X_A_B=one, two",
            "HTTP_COOKIE=a=1; b=2",
            "GET={\"q\":[\"1\",\"2\"]} COOKIE={\"a\":\"1\",\"b\":\"2\"}",
            "PHP_AUTH_USER=user",
            "PHP_AUTH_PW=pass",
            "REQUEST_METHOD=GET",
            "REQUEST_SCHEME=http",
            "REDIRECT_STATUS=200",
        ],
    );
    assert!(!text.contains("HTTP_PROXY") && !text.contains("KOMAINU_RING"), "{text}");
    // Nothing is left for the next request.
    let text = rig.get("/").text();
    assert!(
        !text.contains("PHP_AUTH_USER") && !text.contains("HTTP_COOKIE") && text.contains("COOKIE=[]"),
        "{text}"
    );
}

#[test]
fn php_receives_forms_uploads_and_raw_bodies() {
    let rig = site(
        &[
            ("index.php", SHOW),
            (
                "length.php",
                "<?php echo $_SERVER['CONTENT_LENGTH'], ' ', strlen(file_get_contents('php://input')), ' ', count($_POST);",
            ),
            (
                "twice.php",
                "<?php echo md5(file_get_contents('php://input')) === md5(file_get_contents('php://input')) ? 'same' : 'other';",
            ),
            ("unread.php", "<?php echo 'unread';"),
        ],
        "",
    );
    let post = |path: &str, kind: &str, body: &str| {
        rig.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    let form = "application/x-www-form-urlencoded";
    let text = post("/index.php", form, "name=a+b&x=1").text();
    has_lines(
        &text,
        &[
            "POST={\"name\":\"a b\",\"x\":\"1\"}",
            "CONTENT_LENGTH=12",
            "CONTENT_TYPE=application/x-www-form-urlencoded",
        ],
    );
    let file = "y".repeat(3_000_000);
    let body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.txt\"\r\n\r\n{file}\r\n--b--\r\n"
    );
    let chunks: String = body
        .as_bytes()
        .chunks(100_000)
        .map(|part| format!("{:x}\r\n{}\r\n", part.len(), std::str::from_utf8(part).unwrap()))
        .collect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nConnection: close\r\n";
    let chunked = rig.send(&format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"));
    for answer in [post("/", "multipart/form-data; boundary=b", &body), chunked] {
        answer.expect_status(200);
        assert!(answer.text().contains("UPLOAD=f.txt 3000000 "), "{}", answer.text());
    }
    // A body above post_max_size gives a warning and an empty form; the worker survives.
    let huge = format!("a={}", "x".repeat(5 << 20));
    post("/length.php", form, &huge).expect_status(200);
    logged(&rig, "POST Content-Length of 5242882 bytes exceeds the limit");
    post("/length.php", "application/json", "{}").expect(200, "2 2 0");
    post("/length.php", form, "").expect(200, "0 0 0");
    post("/twice.php", "text/plain", &"z".repeat(200_000)).expect(200, "same");
    post("/unread.php", "text/plain", &"z".repeat(500_000)).expect(200, "unread");
    let put = "PUT /length.php HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    rig.send(put).expect(200, "5 5 0");
    rig.get("/").expect_status(200);
    assert_eq!(ready(&rig, 1).len(), 1);
}

#[test]
fn php_statuses_fields_and_bodies_are_relayed() {
    let rig = site(
        &[
            ("move.php", "<?php header('Location: /there');"),
            ("code.php", "<?php http_response_code(418); echo 'tea';"),
            ("line.php", "<?php header('HTTP/1.1 404 Not Found'); echo 'none';"),
            ("cgi.php", "<?php header('Status: 503 Busy'); echo 'busy';"),
            ("empty.php", "<?php http_response_code(204);"),
            (
                "exit.php",
                "<?php echo 'before'; register_shutdown_function(function () { echo ' end'; }); exit(' exit');",
            ),
            (
                "cookie.php",
                "<?php setcookie('a', 'b c', ['httponly' => true]); setcookie('d', 'e'); echo headers_sent() ? 'sent' : 'unsent';",
            ),
            (
                "type.php",
                "<?php header('Content-Type: application/json'); header('X-Two: 1'); header('X-Two: 2', false); echo '{}';",
            ),
            (
                "odd.php",
                "<?php header('no field'); header('Bad Name: x'); header(\"X-Bell: a\\x07b\"); header('X-Good: yes'); echo 'odd';",
            ),
            (
                "inject.php",
                "<?php header(\"X-A: b\\r\\nX-Evil: yes\"); header(\"X-B: b\\nX-Evil: yes\"); echo 'whole';",
            ),
            ("flood.php", "<?php for ($i = 0; $i < 1000; $i++) header(\"X-$i: y\"); echo 'flood';"),
            ("long.php", "<?php header('X-Long: ' . str_repeat('y', 5000000)); echo 'long';"),
            ("big.php", "<?php for ($i = 0; $i < 300; $i++) echo str_repeat('x', 10000);"),
            ("small.php", "<?php for ($i = 0; $i < 100000; $i++) echo 'x';"),
            (
                "short.php",
                "<?php header('X-Accel-Redirect: /secret'); header('Content-Length: 5'); echo 'short';",
            ),
            (
                "ob.php",
                "<?php ob_start(fn ($text) => strtoupper($text)); echo 'shout'; ob_end_flush(); ob_start(); echo 'gone'; ob_end_clean();",
            ),
            (
                "flush.php",
                "<?php echo 'first'; flush(); while (!file_exists(__DIR__ . '/go')) { usleep(1000); clearstatcache(); } echo 'last';",
            ),
            (
                "name.php",
                "<?php echo PHP_SAPI, ' ', count(getallheaders()) > 0 ? getallheaders()['Host'] : '';",
            ),
        ],
        "",
    );
    // HTTP/1.0: no chunked coding, however long after the head the body follows.
    let whole = |path: &str| rig.send(&format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    whole("/move.php").expect_status(302).expect_field("Location", "/there");
    whole("/code.php").expect(418, "tea");
    whole("/line.php").expect(404, "none");
    whole("/cgi.php").expect(503, "busy").expect_no_field("Status");
    whole("/empty.php").expect(204, "");
    whole("/exit.php")
        .expect(200, "before exit end")
        .expect_field("Content-Type", "text/html; charset=UTF-8");
    let cookies = whole("/cookie.php");
    cookies.expect(200, "unsent");
    assert!(cookies.head.contains("a=b%20c; HttpOnly") && cookies.head.contains("d=e"), "{}", cookies.head);
    let typed = whole("/type.php");
    typed.expect(200, "{}").expect_field("Content-Type", "application/json");
    assert!(typed.head.contains("\r\nX-Two: 1") && typed.head.contains("\r\nX-Two: 2"), "{}", typed.head);
    whole("/odd.php").expect(200, "odd").expect_field("X-Good", "yes").expect_no_field("X-Bell");
    logged(&rig, "this is not a header field and was left out: Bad Name: x");
    whole("/inject.php").expect(200, "whole").expect_no_field("X-Evil");
    whole("/flood.php").expect_status(200).expect_field("X-200", "y").expect_no_field("X-999");
    let long = whole("/long.php");
    assert!(long.status() >= 500, "{}", long.head);
    assert_eq!(whole("/big.php").text().matches('x').count(), 3_000_000);
    assert_eq!(whole("/small.php").text().matches('x').count(), 100_000);
    whole("/short.php").expect(200, "short").expect_no_field("X-Accel-Redirect");
    whole("/ob.php").expect(200, "SHOUT");
    whole("/name.php").expect(200, "fpm-fcgi localhost");
    for script in ["exit.php", "big.php", "code.php"] {
        let head = rig.send(&format!("HEAD /{script} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        assert!(head.body.is_empty(), "{}", head.text());
    }
    // Flushed output reaches the client before the script ends.
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /flush.php HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("first") {
        let mut piece = [0; 1024];
        let len = stream.read(&mut piece).unwrap();
        assert!(len > 0, "closed after {seen:?}");
        seen.extend_from_slice(&piece[..len]);
    }
    rig.folder.write("www/go", "");
    stream.read_to_end(&mut seen).unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("last"), "{seen:?}");
}

#[test]
fn php_errors_are_logged_and_the_worker_survives() {
    let rig = site(
        &[
            ("fine.php", "<?php echo getmypid();"),
            ("fatal.php", "<?php\nnowhere();"),
            ("thrown.php", "<?php\nfunction deep() { throw new RuntimeException('oh'); }\ndeep();"),
            ("parse.php", "<?php\n\necho (;"),
            ("after.php", "<?php echo str_repeat('x', 100000); flush();\nnowhere();"),
            ("memory.php", "<?php\nini_set('memory_limit', '8M'); $a = str_repeat('x', 100000000);"),
            ("time.php", "<?php\nset_time_limit(1);\nwhile (true) { $i = 1; }"),
            ("warn.php", "<?php echo $missing; error_log(\"one\\ntwo\"); echo 'fine';"),
            ("shown.php", "<?php ini_set('display_errors', '1'); nowhere();"),
        ],
        "",
    );
    let pid = rig.get("/fine.php").text();
    for (script, said) in [
        ("fatal", "PHP Fatal error:  Uncaught Error: Call to undefined function nowhere() in "),
        ("thrown", "thrown.php(3): deep()"),
        ("parse", "parse.php on line 3"),
        ("memory", "Allowed memory size of 8388608 bytes exhausted"),
        ("time", "Maximum execution time of 1 second exceeded in "),
    ] {
        // `USE_ZEND_ALLOC=0` disables PHP's allocator and with it memory_limit.
        if script == "memory" && server_environment().iter().any(|(name, _)| name == "USE_ZEND_ALLOC") {
            continue;
        }
        let answer = rig.get(&format!("/{script}.php"));
        assert_eq!(
            (answer.status(), answer.text().contains("Call to")),
            (500, false),
            "{script}: {}",
            answer.text()
        );
        logged(&rig, said);
        rig.get("/fine.php").expect(200, &pid);
    }
    assert!(rig.get("/after.php").text().matches('x').count() == 100_000);
    assert_eq!(Client::new(rig.address).get("/warn.php"), (200, "fine".to_owned()));
    logged(&rig, "PHP Warning:  Undefined variable $missing");
    eventually("both lines", || rig.reported().contains("shop: one") && rig.reported().contains("shop: two"));
    assert!(rig.get("/shown.php").text().contains("undefined function nowhere()"));
    rig.get("/fine.php").expect(200, &pid);
}

#[test]
fn php_settings_of_application_and_directory_apply() {
    let folder = Folder::new();
    let show = "<?php echo ini_get('memory_limit'), ' ', ini_get('precision'), ' ', var_export(ini_set('precision', 5), true), ' ', \
        var_export(ini_set('serialize_precision', 5), true), ' ', ini_get('user_agent'), ' ', getenv('ONE'), ' ', $_SERVER['ONE'] ?? 'none', ' ', \
        isset($_SERVER['HOME']) ? 'all' : 'own', ' ', getenv('REMOTE_ADDR');";
    folder.write("www/a.php", show).write("www/sub/b.php", show);
    folder.write("www/sub/.user.ini", "user_agent = mine\nserialize_precision = 9\nmemory_limit = 64M\n");
    let config = only(
        r#"
        workers = 1
        env = { ONE = "two" }
        [apps.shop.php]
        root = "www"
        ini = { precision = 11, user_agent = "'a;b'", no_such_setting = 1 }
        admin_ini = { memory_limit = "48M", serialize_precision = 7 }
        "#,
    );
    let rig = start(folder, &config);
    rig.get("/a.php").expect(200, "48M 11 '11' false a;b two two own 127.0.0.1");
    rig.get("/sub/b.php").expect(200, "48M 11 '11' false mine two two own 127.0.0.1");
    // Settings made by a script or for a directory end with the request.
    rig.get("/a.php").expect(200, "48M 11 '11' false a;b two two own 127.0.0.1");
    logged(&rig, "PHP has no setting no_such_setting");
}

#[test]
fn php_sessions_persist_and_scripts_run_after_the_response() {
    let folder = Folder::new();
    let at = folder.path().display().to_string();
    folder.write("www/s.php", "<?php session_start(); echo $_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1;");
    folder.write(
        "www/later.php",
        "<?php echo 'now'; var_dump(fastcgi_finish_request()); echo 'never'; while (!file_exists(__DIR__ . '/go')) { usleep(1000); \
         clearstatcache(); } file_put_contents(__DIR__ . '/done.txt', 'done');",
    );
    let rig = start(
        folder,
        &only(&format!(
            "php = {{ root = \"www\", ini = {{ \"session.save_path\" = \"'{at}'\", \"session.use_strict_mode\" = 0 }} }}\nworkers = 2"
        )),
    );
    for n in 1..=3 {
        rig.ask("/s.php", "Cookie: PHPSESSID=abc\r\n").expect(200, &n.to_string());
    }
    assert!(rig.get("/s.php").head.contains("PHPSESSID="));
    rig.get("/later.php").expect(200, "now");
    rig.folder.write("www/go", "");
    eventually("the script continues", || {
        std::fs::read(rig.folder.at("www/done.txt")).is_ok_and(|text| text == b"done")
    });
    rig.ask("/s.php", "Cookie: PHPSESSID=abc\r\n").expect(200, "4");
}

#[test]
fn opcache_is_shared_by_workers_and_detects_changes() {
    let status = "<?php $s = opcache_get_status(); echo $s ? 'on ' . $s['opcache_statistics']['num_cached_scripts'] : 'off';";
    let folder = folder("www/index.php", status);
    folder.write("www/v.php", "<?php echo 'one ', getmypid();");
    let config = only(
        "php = { root = \"www\", ini = { \"opcache.enable\" = 1, \"opcache.revalidate_freq\" = 0, \"opcache.file_update_protection\" = 0 } }\nworkers = 2",
    );
    let rig = start(folder, &config);
    ready(&rig, 2);
    if rig.get("/").text() == "off" {
        return; // this PHP lacks opcache
    }
    assert!(rig.get("/v.php").text().starts_with("one "));
    // Both workers use a script compiled by either of them.
    for _ in 0..10 {
        rig.get("/").expect(200, "on 2");
    }
    std::thread::sleep(Duration::from_millis(2100)); // opcache compares modification times in seconds
    rig.folder.write("www/v.php", "<?php echo 'two!! ', getmypid();");
    eventually("the new script runs", || rig.get("/v.php").text().starts_with("two!! "));
}

#[test]
fn stuck_php_scripts_are_killed_and_their_stack_is_logged() {
    for (call, place) in
        [("sleep(600)", "www/stuck.php:5 in deep"), ("while (true) { $i = 1; }", "www/stuck.php:4 in deep")]
    {
        let script = format!("<?php\nset_time_limit(0);\nfunction deep() {{\n    {call};\n}}\ndeep();\n");
        let rig = site(
            &[("stuck.php", &script), ("fine.php", "<?php echo 'fine';")],
            "timeouts = { request = \"500ms\" }",
        );
        rig.get("/stuck.php").expect_status(504);
        logged(&rig, place);
        logged(&rig, "www/stuck.php:6");
        eventually("another worker answers", || rig.get("/fine.php").status() == 200);
    }
}

#[test]
fn crashed_php_workers_are_replaced_and_forks_send_nothing() {
    let rig = site(
        &[
            ("die.php", "<?php posix_kill(getmypid(), 9);"),
            ("begun.php", "<?php echo str_repeat('x', 100000); flush(); posix_kill(getmypid(), 9);"),
            (
                "fork.php",
                "<?php $pid = pcntl_fork(); if (!$pid) { echo 'copy'; header('X-Copy: 1'); exit(0); } pcntl_waitpid($pid, $s); echo 'original';",
            ),
            ("run.php", "<?php echo trim(shell_exec('echo from a shell'));"),
            ("fine.php", "<?php echo 'fine';"),
        ],
        "",
    );
    let post = "POST /die.php HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    rig.send(post).expect_status(502);
    eventually("another worker answers", || rig.get("/fine.php").status() == 200);
    let before = workers(&rig);
    for _ in 0..3 {
        rig.get("/fork.php").expect(200, "original").expect_no_field("X-Copy");
        rig.get("/run.php").expect(200, "from a shell");
    }
    assert_eq!(workers(&rig), before);
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /begun.php HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let seen = rig::read_to_close(&mut stream);
    assert!(!seen.ends_with(b"0\r\n\r\n"), "the response looks whole");
    eventually("another worker answers", || rig.get("/fine.php").status() == 200);
}

#[test]
fn php_scripts_end_after_client_disconnects() {
    let rig = site(
        &[
            ("endless.php", "<?php set_time_limit(0); while (true) { echo str_repeat('x', 65536); }"),
            (
                "abort.php",
                "<?php ignore_user_abort(true); set_time_limit(0); while (!connection_aborted()) { echo str_repeat('x', 65536); flush(); } \
                 file_put_contents(__DIR__ . '/aborted.txt', 'aborted');",
            ),
            ("fine.php", "<?php echo getmypid();"),
        ],
        "spill = \"0B\"\nanswer_ahead = \"64KiB\"",
    );
    let pid = rig.get("/fine.php").text();
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /endless.php HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1024]).unwrap();
    drop(stream);
    rig.get("/fine.php").expect(200, &pid);
    let mut stream = connect(rig.address);
    stream.write_all(b"GET /abort.php HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1024]).unwrap();
    drop(stream);
    eventually("the script has seen it", || rig.folder.at("www/aborted.txt").exists());
    rig.get("/fine.php").expect(200, &pid);
}

#[test]
fn run_serves_a_php_script_and_recycles_its_workers() {
    let folder = folder("public/index.php", SHOW);
    folder.write("public/a.txt", "a file").write("secret.txt", "secret");
    let rig = run(folder, &["--workers", "2", "--max-requests", "5", "public/index.php"]);
    rig.get("/a.txt").expect(200, "a file");
    let mut first = ready(&rig, 2);
    let mut client = Client::new(rig.address);
    for _ in 0..30 {
        let (status, text) = client.get("/users/1");
        assert_eq!(status, 200);
        has_lines(&text, &["SCRIPT_NAME=/index.php", "REQUEST_URI=/users/1"]);
    }
    eventually("all workers were replaced", || {
        // A worker may not have handled any of the earlier requests.
        client.get("/users/1");
        first.retain(|pid| is_alive(*pid));
        first.is_empty()
    });
}

#[test]
fn check_reports_missing_php_script_and_root() {
    let folder = Folder::new();
    folder.write("www/a.php", "<?php").write("k.toml", only("php = \"www/none.php\""));
    let check = |folder: &Folder| {
        let out = crate::hosted::server().arg("check").arg("-c").arg(folder.at("k.toml")).output().unwrap();
        crate::rig::text(&out.stderr)
    };
    assert!(check(&folder).contains("there is no file or folder "), "{}", check(&folder));
    folder.write("k.toml", only("php = \"wwww\""));
    assert!(check(&folder).contains("there is no file or folder "), "{}", check(&folder));
}
