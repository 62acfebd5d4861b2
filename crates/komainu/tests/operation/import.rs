//! `komainu import` as used for a migration from nginx.

use std::process::Command;

use crate::rig::{Folder, komainu, text};

#[test]
fn check_explains_routes_of_imported_nginx_configuration() {
    let folder = Folder::new();
    folder
        .write("www/static/a.css", "a {}")
        .write("nginx.conf", "events {}\nhttp {\n  include sites/*.conf;\n  server_tokens off;\n}\n");
    let root = folder.at("www").display().to_string();
    folder.write(
        "sites/shop.conf",
        format!(
            "server {{\n  listen 127.0.0.1:8081;\n  server_name shop.example;\n  location /static/ {{ root {root}; expires 1d; }}\n  \
             location / {{ proxy_pass http://127.0.0.1:3000; }}\n  location = /lua {{ content_by_lua_block {{ ngx.say(1) }} }}\n}}\n"
        ),
    );
    let run = |command: &mut Command| {
        let output = command.current_dir(folder.path()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, config, report) = run(komainu().args(["import", "nginx", "nginx.conf"]));
    assert_eq!(code, Some(0), "{report}");
    // Directives that cannot be translated are reported with their position.
    assert!(report.contains("sites/shop.conf:6") && report.contains("content_by_lua_block"), "{report}");
    folder.write("komainu.toml", &config);
    let explained = |url: &str| {
        let (code, said, errors) = run(komainu().args(["check", "--explain", url]));
        assert_eq!(code, Some(0), "{config}\n{said}{errors}");
        said
    };
    assert!(explained("http://shop.example/static/a.css").contains("/static/*: matches: files"), "{config}");
    assert!(
        explained("http://shop.example/cart").contains("matches: proxy to http://127.0.0.1:3000"),
        "{config}"
    );
    // The location with the untranslatable directive does not fall through to another one.
    assert!(explained("http://shop.example/lua").contains("/lua: matches: respond"), "{config}");
    let (code, _, why) = run(komainu().args(["import", "nginx", "none.conf"]));
    assert!(code != Some(0) && why.contains("none.conf"), "{why}");
}

#[test]
fn import_fails_if_the_result_is_empty() {
    let folder = Folder::new();
    folder
        .write("e.conf", "\n")
        .write("e.json", "{}")
        .write("g.py", "bind = \"x:abc\"\nwsgi_app = \"shop:app\"\n");
    let run = |kind: &str, file: &str| {
        let mut command = komainu();
        let output = command.args(["import", kind, file]).current_dir(folder.path()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for (kind, file) in [("nginx", "e.conf"), ("unit", "e.json"), ("caddy", "e.json")] {
        let (code, config, why) = run(kind, file);
        assert_eq!((code, config.as_str()), (Some(2), ""), "{kind}");
        assert!(why.contains("there is nothing in it that could be translated"), "{why}");
    }
    let (code, config, why) = run("gunicorn", "g.py");
    assert_eq!(code, Some(0));
    assert!(config.contains("wsgi = \"shop:app\""), "{config}");
    assert!(why.contains("bind = \"x:abc\"") && why.contains("it is left out"), "{why}");
}

/// A configuration whose translation differs only in ways named in the report.
const SHOP: &str = "events {}\nhttp {\n  server {\n    listen 80;\n    server_name shop.example;\n    root /srv/shop;\n    \
     location / { add_header X-Shop 1 always; }\n    location /api/ { proxy_pass http://10.0.0.1:3000; }\n    \
     location = /hello { return 200 hello; }\n    location ~ \\.old$ { return 410; }\n  }\n}\n";

#[test]
fn import_verify_compares_nginx_with_translation() {
    let folder = Folder::new();
    folder.write("shop.conf", SHOP);
    let mut command = komainu();
    // The kind of server is detected.
    command.args(["import", "shop.conf", "--verify", "--verify-json", "found.json", "--requests", "400"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("Differences that the report does not name (0)"), "{said}");
    // Normalized fields are listed.
    assert!(said.contains("Not compared:") && said.contains("Date, Server and Via"), "{said}");
    let found = std::fs::read_to_string(folder.at("found.json")).unwrap();
    let count = found.lines().find_map(|line| line.trim().strip_prefix("\"requests\": "));
    assert!(count.is_some_and(|count| count.trim_end_matches(',').parse::<u32>().unwrap() > 100), "{found}");
    assert!(found.contains("\"unnamed\": 0"), "{found}");
}

#[test]
fn import_verify_finds_no_unreported_differences_in_samples() {
    let folder = Folder::new();
    let samples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../import/tests/nginx");
    for name in ["wordpress.conf", "symfony.conf", "drupal.conf", "certbot.conf", "rails.conf"] {
        let mut command = komainu();
        command.args(["import", "nginx"]).arg(samples.join(name));
        command.args(["--verify", "--verify-json", "found.json", "--requests", "150"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {said}");
        let found = std::fs::read_to_string(folder.at("found.json")).unwrap();
        assert!(found.contains("\"unnamed\": 0") && found.contains("\"requests\": 150"), "{name}: {found}");
    }
}

/// Output of a failing comparison with an nginx whose configuration was changed by this sed script.
fn compared_with_changed(site: &str, change: &str) -> String {
    let folder = Folder::new();
    folder.write("shop.conf", site);
    let script = format!(
        "#!/bin/sh\nfor one; do\n  [ \"$before\" = -c ] && sed -i '{change}' \"$one\"\n  before=$one\ndone\nexec nginx \"$@\"\n"
    );
    folder.write_program("other", &script);
    let mut command = komainu();
    command
        .args(["import", "nginx", "shop.conf", "--verify", "--requests", "400", "--old-server"])
        .arg(folder.at("other"));
    let output = command.current_dir(folder.path()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[test]
fn import_verify_fails_on_unreported_difference() {
    // nginx sends a different response than the imported configuration describes.
    let said = compared_with_changed(SHOP, "s/200 hello/200 changed/");
    assert!(said.contains("nginx: changed") && said.contains("komainu: hello"), "{said}");
    assert!(said.contains("at shop.conf:9: location = /hello"), "{said}");
}

#[test]
fn import_verify_fails_when_only_nginx_refuses_a_request() {
    // nginx refuses a request that the imported configuration answers, in a location with a remark about
    // another directive.
    let site = SHOP.replace("= /hello { ", "= /hello { auth_basic off; satisfy any; add_header A 1; ");
    let said = compared_with_changed(&site, "s/200 hello/403/");
    let (unnamed, _) = said.split_once("Differences that the report names").unwrap();
    assert!(unnamed.contains("nginx: 403") && unnamed.contains("komainu: 200"), "{said}");
}

#[test]
fn import_verify_needs_all_included_files() {
    let folder = Folder::new();
    let site = |include: &str| {
        format!(
            "server {{ listen 80; server_name a.example; root /srv/a; index index.php;\n  location ~ \\.php$ {{ {include} \
             fastcgi_pass unix:/run/php/fpm.sock; }}\n}}\n"
        )
    };
    let verified = |text_of_site: String| {
        folder.write("site.conf", text_of_site);
        let mut command = komainu();
        command.args(["import", "nginx", "site.conf", "--verify", "--requests", "60"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = verified(site("include missing/rules.conf;"));
    assert!(
        code == Some(2) && said.contains("`include missing/rules.conf`: there is no such file"),
        "{said}"
    );
    if std::path::Path::new("/etc/nginx/snippets/fastcgi-php.conf").exists() {
        let (code, said) = verified(site("include snippets/fastcgi-php.conf;"));
        assert!(code == Some(0) && said.contains("stub") | said.contains("60 requests"), "{said}");
        // The included directives take effect: the script is the file that `fastcgi.conf` names.
        assert!(!said.contains("`include"), "{said}");
    }
}

#[test]
fn import_refuses_fifo_and_reads_long_map_quickly() {
    let folder = Folder::new();
    let made = Command::new("mkfifo").arg(folder.at("pipe.conf")).status().unwrap();
    assert!(made.success());
    folder.write("main.conf", "include pipe.conf;\nserver { listen 80; }\n");
    for arguments in
        [&["import", "nginx", "pipe.conf"][..], &["import", "pipe.conf"], &["import", "nginx", "main.conf"]]
    {
        let output = komainu().args(arguments).current_dir(folder.path()).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains("this is not a regular file"),
            "{arguments:?}: {said}"
        );
    }
    for (count, expected) in [(9_999, "\"h9998.example\" = \"p9998\""), (100_000, "respond = 501")] {
        let mut map = String::from("map $host $pool {\n default none;\n");
        (0..count).for_each(|number| map.push_str(&format!(" h{number}.example p{number};\n")));
        map.push_str("}\nserver { listen 80; location / { return 200 $pool; } }\n");
        folder.write("map.conf", map);
        let began = std::time::Instant::now();
        let output =
            komainu().args(["import", "nginx", "map.conf"]).current_dir(folder.path()).output().unwrap();
        let took = began.elapsed();
        let said = text(&output.stderr);
        assert!(output.status.success() && text(&output.stdout).contains(expected), "{said}");
        // Takes half a second of CPU time; a quadratic comparison of lines takes more than a minute even on
        // an idle machine.
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn import_of_unsupported_server_names_migration_page() {
    let folder = Folder::new();
    folder
        .write("site.conf", "<VirtualHost *:80>\n  DocumentRoot /srv\n</VirtualHost>\n")
        .write("haproxy.cfg", "global\n  daemon\ndefaults\n  mode http\nfrontend web\n  bind :80\nbackend shop\n  server a 10.0.0.1:80\n")
        .write("default.vcl", "vcl 4.1;\nbackend default {\n  .host = \"10.0.0.1\";\n}\nsub vcl_recv {\n}\n");
    for (arguments, page) in [
        (&["site.conf"][..], "docs/from/apache.md"),
        (&["apache", "site.conf"], "docs/from/apache.md"),
        (&["httpd"], "docs/from/apache.md"),
        (&["haproxy.cfg"], "docs/from/haproxy.md"),
        (&["haproxy", "haproxy.cfg"], "docs/from/haproxy.md"),
        (&["default.vcl"], "docs/from/varnish.md"),
    ] {
        let output = komainu().arg("import").args(arguments).current_dir(folder.path()).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(page), "{arguments:?}: {said}");
        assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page).exists(), "{page}");
    }
}
