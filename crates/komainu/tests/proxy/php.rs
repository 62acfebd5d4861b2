//! `php` combined with `files`: a real PHP-FPM, with the layouts of WordPress and Laravel.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::rig::{Folder, Rig, eventually, installed};

/// A script that prints its server variables.
const SHOW: &str = r#"<?php header('X-Script: ' . basename(__DIR__) . '/' . basename(__FILE__));
foreach (['SCRIPT_NAME', 'PATH_INFO', 'REQUEST_URI', 'QUERY_STRING', 'PHP_SELF', 'REQUEST_METHOD', 'HTTP_HOST',
    'REMOTE_ADDR', 'HTTPS', 'APP_ENV'] as $name) { if (($_SERVER[$name] ?? '') !== '') echo "$name={$_SERVER[$name]}\n"; }
echo 'FILE=', substr($_SERVER['SCRIPT_FILENAME'], strlen($_SERVER['DOCUMENT_ROOT'])), "\n";
if ($_POST) echo 'POST=', json_encode($_POST), "\n";
foreach ($_FILES as $file) echo 'UPLOAD=', $file['size'], ' ', md5_file($file['tmp_name']), "\n";
"#;

/// A PHP-FPM server, killed on drop.
struct Fpm(Child);

impl Drop for Fpm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The newest PHP-FPM; its file name contains the version.
fn program() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir("/usr/sbin").into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm")));
    found.sort();
    found.pop().or_else(|| installed("php-fpm"))
}

/// Starts PHP-FPM with two workers that listen on `fpm.sock` in the directory.
fn start(folder: &Folder) -> Option<Fpm> {
    let program = program()?;
    let at = folder.path().display();
    folder.write(
        "fpm.conf",
        format!(
            "[global]
error_log = {at}/fpm.log
daemonize = no

[www]
user = root
group = root
listen = {at}/fpm.sock
pm = static
pm.max_children = 2
ping.path = /ping
php_admin_flag[display_errors] = off
php_admin_flag[log_errors] = on
php_admin_flag[html_errors] = off
php_admin_value[upload_tmp_dir] = {at}
php_admin_value[post_max_size] = 16M
php_admin_value[upload_max_filesize] = 16M
"
        ),
    );
    let mut command = Command::new(program);
    command.arg("-n").arg("-F").arg("-R").arg("-y").arg(folder.at("fpm.conf"));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let fpm = Fpm(child);
    eventually("PHP-FPM listens", || std::os::unix::net::UnixStream::connect(folder.at("fpm.sock")).is_ok());
    Some(fpm)
}

#[test]
fn path_info_does_not_bypass_the_route_of_a_php_script() {
    let folder = Folder::new();
    let Some(_fpm) = start(&folder) else { return };
    for script in ["index.php", "xmlrpc.php", "up/evil.php", "odd.php/x.php"] {
        folder.write(&format!("wp/{script}"), SHOW);
    }
    let refused = ["/up/**.php", "/xmlrpc.php"].map(|path| {
        format!(
            r#"
            [[route]]
            path = "{path}"
            respond = {{ status = 403, body = "no" }}
            "#
        )
    });
    let config = format!(
        r#"
        {}
        [[route]]
        files = "wp"
        php = "unix:fpm.sock"
        "#,
        refused.concat()
    );
    let rig = Rig::config(folder, &config);
    for (path, status) in [
        ("/up/evil.php", 403),
        ("/up/evil.php/", 403),
        ("/up/evil.php/x", 403),
        ("/up/evil.php/x.php", 403),
        ("/up/evil%2ephp/x", 403),
        ("/xmlrpc.php/", 403),
        ("/xmlrpc.php/a/b", 403),
        ("/index.php/a/b", 200),
        ("/index.php/", 200),
        ("/odd.php/x.php", 200),
        ("/odd.php/x.php/y", 200),
    ] {
        rig.get(path).expect_status(status);
    }
    assert!(rig.get("/index.php/a/b").text().contains("PATH_INFO=/a/b\n"));
}

#[test]
fn path_info_does_not_bypass_the_route_of_the_whole_path() {
    let folder = Folder::new();
    let Some(_fpm) = start(&folder) else { return };
    for script in ["index.php", "open.php", "app/list.php", "shop/list.php"] {
        folder.write(&format!("site/{script}"), SHOW);
    }
    folder.write("users", "u:$2y$05$GCLoBDaDVIxLT7kZCPDwHOKgyBEGbJBlY2IxyfHWzgmoMjmCsXCFK\n");
    let config = r#"
        [[route]]
        path = ["/index.php", "/app/list.php"]
        files = "site"
        php = { to = "unix:fpm.sock", scripts = { front = false } }

        [[route]]
        path = "/shop/*.php"
        deny = "10.0.0.0/8"
        files = "site"
        php = "unix:fpm.sock"

        [[route]]
        path = "/shop/*"
        allow = "127.0.0.0/8"
        files = "site"
        php = "unix:fpm.sock"

        [[route]]
        path = "/app/*"
        limit = { rate = "1/m", burst = 0 }
        files = "site"
        php = "unix:fpm.sock"

        [[route]]
        path = "/open.php"
        redirect = "/elsewhere"

        [[route]]
        auth = { basic = "users" }
        files = "site"
        php = "unix:fpm.sock"
        "#;
    let rig = Rig::config(folder, config);
    for (path, status) in [
        ("/index.php", 200),
        ("/none", 401),
        // The route of the whole path asks for a password.
        ("/index.php/users", 401),
        ("/index%2ephp/users", 401),
        ("//index.php/users", 401),
        ("/index.php/", 401),
        ("/app/list.php", 200),
        // Its limit counts, too.
        ("/app/list.php/a", 200),
        ("/app/list.php/b", 429),
        // Neither route has the guards of both.
        ("/shop/list.php", 200),
        ("/shop/list.php/x", 404),
        ("/open.php", 302),
        ("/open.php/x", 404),
    ] {
        rig.get(path).expect_status(status);
    }
}

#[test]
fn folders_without_index_are_for_the_front_script() {
    let folder = Folder::new();
    let Some(_fpm) = start(&folder) else { return };
    for script in ["index.php", "sub/index.php"] {
        folder.write(&format!("site/{script}"), SHOW);
    }
    folder.write("site/sub/index.html", "page");
    let config = r#"
        [[route]]
        files = { root = "site", index = [] }
        php = "unix:fpm.sock"
        "#;
    let rig = Rig::config(folder, config);
    for path in ["/", "/sub", "/sub/", "/none"] {
        let text = rig.get(path).expect_status(200).text();
        assert!(text.contains("FILE=/index.php\n"), "{path}: {text}");
    }
    let text = rig.get("/sub/index.php").expect_status(200).text();
    assert!(text.contains("FILE=/sub/index.php\n"), "{text}");
}

#[test]
fn wordpress_and_laravel_layouts_run_on_php_fpm() {
    let folder = Folder::new();
    let Some(_fpm) = start(&folder) else { return };
    for script in ["index.php", "wp-admin/index.php", "wp-login.php", "wp-content/x.php"] {
        folder.write(&format!("wp/{script}"), SHOW);
    }
    folder.write("wp/wp-content/style.css", "body {}").write("wp/wp-content/photo.jpg", "<?php echo 'run';");
    folder
        .write("wp/wp-config.php.bak", "secret")
        .write("wp/.env", "secret")
        .write("wp/readme.html", "read me");
    folder.write("wp/fails.php", "<?php error_log(\"oh\\nno\"); http_response_code(503); echo 'failed';");
    folder.write("wp/move.php", "<?php header('Location: /there');");
    folder.write("wp/big.php", "<?php for ($i = 0; $i < 300; $i++) echo str_repeat('x', 10000);");
    folder.write(
        "wp/bad.php",
        "<?php header('X-Accel-Redirect: /secret'); header('Content-Length: 5'); echo 'short';",
    );
    folder
        .write("app/public/index.php", SHOW)
        .write("app/public/robots.txt", "robots")
        .write("app/.env", "secret");
    let socket = folder.at("fpm.sock").display().to_string();
    let text = format!(
        r#"
        threads = 1

        [upstreams.fpm]
        to = "fastcgi+unix:{socket}"
        health = "/ping"

        [[site]]
        hosts = "laravel.test"

        [[site.route]]
        files = "app/public"
        php = {{ upstream = "fpm", variables = {{ APP_ENV = "production" }} }}

        [[site]]
        hosts = "strict.test"

        [[site.route]]
        files = "wp"
        php = {{ to = "unix:{socket}", scripts = {{ front = false }} }}

        [[site]]

        [[site.route]]
        path = "/wp-content/**.php"
        respond = 403

        [[site.route]]
        files = "wp"
        php = "unix:{socket}"
        "#
    );
    let rig = Rig::config(folder, &text);
    let lines = |target: &str, wanted: &[&str]| {
        let answer = rig.get(target);
        answer.expect_status(200);
        let text = answer.text();
        for line in wanted {
            assert!(text.lines().any(|found| found == *line), "{target}: no {line} in {text}");
        }
    };
    // Scripts, directories with an index script, `PATH_INFO`, and the fallback script.
    lines("/", &["SCRIPT_NAME=/index.php", "FILE=/index.php", "REQUEST_URI=/", "REMOTE_ADDR=127.0.0.1"]);
    lines(
        "/2026/hello%20world/?a=%20b",
        &["SCRIPT_NAME=/index.php", "REQUEST_URI=/2026/hello%20world/?a=%20b", "QUERY_STRING=a=%20b"],
    );
    lines("/wp-login.php?x=1", &["SCRIPT_NAME=/wp-login.php", "QUERY_STRING=x=1", "PHP_SELF=/wp-login.php"]);
    lines("/wp-admin/", &["SCRIPT_NAME=/wp-admin/index.php", "FILE=/wp-admin/index.php"]);
    lines(
        "/index.php/wp-json/v2",
        &["SCRIPT_NAME=/index.php", "PATH_INFO=/wp-json/v2", "PHP_SELF=/index.php/wp-json/v2"],
    );
    rig.get("/wp-admin?a").expect_status(301).expect_field("Location", "./wp-admin/?a");
    // Static files are served; scripts never are.
    rig.get("/wp-content/style.css").expect(200, "body {}");
    rig.get("/readme.html").expect(200, "read me");
    rig.get("/wp-content/photo.jpg").expect(200, "<?php echo 'run';");
    for target in [
        "/wp-content/photo.jpg/x.php",
        "/wp-content/photo.jpg%00.php",
        "/wp-content/photo.jpg/.php",
        "/wp-content/x.php",
    ] {
        let answer = rig.get(target);
        assert!(matches!(answer.status(), 400 | 403), "{target}: {}", answer.status());
    }
    for target in ["/wp-config.php.bak", "/.env", "/WP-LOGIN.PHP", "/none.php"] {
        lines(target, &["SCRIPT_NAME=/index.php"]);
    }
    let strict = |target: &str| {
        rig.send(&format!("GET {target} HTTP/1.1\r\nHost: strict.test\r\nConnection: close\r\n\r\n"))
    };
    for target in ["/none", "/wp-config.php.bak", "/wp-content/photo.jpg/x.php", "/none.php", "/.env"] {
        strict(target).expect_status(404);
    }
    strict("/wp-content/x.php").expect_status(200);
    let laravel = rig.send("GET /users/1 HTTP/1.1\r\nHost: laravel.test\r\nConnection: close\r\n\r\n");
    laravel.expect_status(200).expect_field("X-Script", "public/index.php");
    assert!(laravel.text().contains("APP_ENV=production\n"), "{}", laravel.text());
    // Statuses, fields, lengths, errors.
    rig.get("/move.php").expect_status(302).expect_field("Location", "/there");
    let failed = rig.get("/fails.php");
    failed.expect_status(503);
    assert!(failed.text().contains("failed"), "{}", failed.text());
    eventually("the log has what PHP wrote", || rig.reported().contains("stderr: PHP message: oh"));
    assert_eq!(rig.get("/big.php").text().matches('x').count(), 3_000_000);
    rig.get("/bad.php").expect(200, "short").expect_no_field("X-Accel-Redirect");
    for _ in 0..20 {
        rig.send("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect_status(200);
    }
    bodies(&rig);
}

/// Forms and uploads, with and without `Content-Length`.
fn bodies(rig: &Rig) {
    let form = "name=a+b&x=1";
    rig.send(&format!(
        "POST /wp-login.php HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{form}",
        form.len()
    ))
    .expect_status(200)
    .text()
    .lines()
    .find(|line| *line == "POST={\"name\":\"a b\",\"x\":\"1\"}")
    .expect("the form");
    let file = "y".repeat(3_000_000);
    let body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.txt\"\r\n\r\n{file}\r\n--b--\r\n"
    );
    let head = "POST /wp-login.php HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\n\
                Connection: close\r\n";
    let whole = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let chunks: String = body
        .as_bytes()
        .chunks(100_000)
        .map(|part| format!("{:x}\r\n{}\r\n", part.len(), std::str::from_utf8(part).unwrap()))
        .collect();
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    for request in [whole, chunked] {
        let text = rig.send(&request).text();
        assert!(text.contains("UPLOAD=3000000 "), "{text}");
    }
}
