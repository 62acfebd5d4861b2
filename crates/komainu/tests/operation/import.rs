//! `komainu import` as somebody uses it who comes from nginx.

use std::process::Command;

use crate::rig::{Folder, komainu, text};

#[test]
fn what_is_imported_is_checked_and_explained() {
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
    // What is not possible says where it stands.
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
    // Whatever took the place of what cannot be translated does not fall through to another location.
    assert!(explained("http://shop.example/lua").contains("/lua: matches: respond"), "{config}");
    let (code, _, why) = run(komainu().args(["import", "nginx", "none.conf"]));
    assert!(code != Some(0) && why.contains("none.conf"), "{why}");
}
