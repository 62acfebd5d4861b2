//! Checks of nginx's importer and of its scratch copies that need files.

use std::path::{Path, PathBuf};

use import::nginx::NginxScratch;
use import::scratch::ScratchOptions;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("komainu-import-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn error_pages_without_a_file_are_left_out() {
    let folder = Folder::new("pages");
    let root = folder.0.display();
    std::fs::write(folder.0.join("404.html"), "not found").unwrap();
    let path = folder.0.join("site.conf");
    let text = format!(
        "server {{ listen 80; root {root};\nerror_page 403 /403.html;\nerror_page 404 /404.html;\n}}\nserver {{ listen 81; root {root}/none; error_page 403 /403.html; }}\n"
    );
    std::fs::write(&path, text).unwrap();
    let imported = import::nginx::import(&path, None).unwrap();
    assert!(imported.toml.contains(&format!("404 = \"{root}/404.html\"")), "{}", imported.toml);
    assert!(!imported.toml.contains(&format!("\"{root}/403.html\"")), "{}", imported.toml);
    // The files of another machine are not known here.
    assert!(imported.toml.contains(&format!("403 = \"{root}/none/403.html\"")), "{}", imported.toml);
    let report = imported.report();
    assert!(report.contains(&format!("there is no file {root}/403.html")), "{report}");
}

/// Translates the directives of a server.
fn translated(name: &str, server: &str) -> String {
    let folder = Folder::new(name);
    let path = folder.0.join("site.conf");
    std::fs::write(&path, format!("server {{ listen 80; root /srv/www;\n{server}\n}}\n")).unwrap();
    import::nginx::import(&path, None).unwrap().toml
}

#[test]
fn servers_of_fastcgi_get_no_requests_for_missing_files_that_nginx_refuses() {
    let test = "if (!-e $request_filename) { return 404; }";
    let program = translated("program", &format!("location / {{ {test} fastcgi_pass 127.0.0.1:9000; }}"));
    assert!(!program.contains("proxy ="), "{program}");
    let script =
        translated("script", &format!("location ~ \\.php$ {{ {test} fastcgi_pass 127.0.0.1:9000; }}"));
    assert!(script.contains("php = { to = \"fastcgi://127.0.0.1:9000\""), "{script}");
}

#[test]
fn scripts_have_the_alias_around_them_as_document_root() {
    let server = "location /a/ { alias /srv/b/; location /a/c/ { fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name; fastcgi_pass 127.0.0.1:9000; } }";
    let toml = translated("alias", server);
    assert!(
        toml.contains("DOCUMENT_ROOT = \"/srv/b/\"") && !toml.contains("DOCUMENT_ROOT = \"/srv/www"),
        "{toml}"
    );
}

#[test]
fn fields_that_are_set_twice_are_sent_twice() {
    let server = "location / { proxy_set_header Referer one; proxy_set_header referer two; proxy_pass http://127.0.0.1:3000; }";
    let toml = translated("twice", server);
    assert!(
        toml.contains("set = { Referer = \"one\" }") && toml.contains("add = { referer = \"two\" }"),
        "{toml}"
    );
}

/// Returns both scratch copies of the directives of a server.
fn copies(folder: &Path, server: &str) -> (String, String) {
    let path = folder.join("copied.conf");
    std::fs::write(&path, format!("server {{ listen 80; {server} }}")).unwrap();
    let mut port = 3000;
    let mut next = || {
        port += 1;
        Ok(port)
    };
    let options = ScratchOptions {
        folder: folder.join("scratch"),
        old_address: "127.0.0.2".to_owned(),
        new_address: "127.0.0.3".to_owned(),
        port: &mut next,
        password: String::new(),
        requests_max: 10,
        only_paths: true,
    };
    let mut scratch = NginxScratch::read(&path, None, options).unwrap();
    (scratch.nginx_config(), scratch.translation_source())
}

#[test]
fn scratch_copies_keep_the_variables_of_upstream_addresses() {
    let folder = Folder::new("copies");
    for (server, kept) in [
        (
            "set $b 127.0.0.1:3000; location /api/ { proxy_pass http://$b/pub; }",
            &["proxy_pass http://$b/pub;", "set $b 127.0.0.1:"][..],
        ),
        (
            "set $b http://127.0.0.1:3000; location /api/ { proxy_pass $b/pub; }",
            &["proxy_pass $b/pub;", "set $b http://127.0.0.1:"],
        ),
        (
            "set $p pub; location /api/ { proxy_pass http://127.0.0.1:3000/$p; }",
            &["proxy_pass http://127.0.0.1:3002/$p;"],
        ),
        (
            "location /api/ { proxy_pass http://127.0.0.1:3000/pub; }",
            &["proxy_pass http://127.0.0.1:3002/pub;"],
        ),
    ] {
        let (old, new) = copies(&folder.0, server);
        for text in kept {
            assert!(old.contains(text) && new.contains(text), "{text}\n{old}\n{new}");
        }
        assert!(!old.contains(":3000"), "{old}");
    }
}

#[test]
fn configurations_grow_with_their_source() {
    let scripts = r"index index.php; location ~ \.php$ { fastcgi_pass 127.0.0.1:9000; }";
    type Shape = (&'static str, &'static str, fn(usize) -> String);
    let shapes: [Shape; 5] = [
        ("guarded scripts of folders", scripts, |at| {
            format!(
                "location ~ ^/p{at}/.*\\.php$ {{ deny all; }}\nlocation /p{at}/ {{ try_files $uri $uri/ =404; }}"
            )
        }),
        ("two guards of folders", scripts, |at| {
            format!(
                "location ~ ^/p{at}/a.*\\.php$ {{ deny all; }}\nlocation ~ ^/p{at}/b.*\\.php$ {{ deny all; }}\nlocation /p{at} {{ try_files $uri /index.php; }}"
            )
        }),
        ("exact scripts", scripts, |at| {
            format!("location = /p{at}/index.php {{ deny all; }}\nlocation /p{at}/ {{ }}")
        }),
        ("folders beside two guards", "location ~ a$ { deny all; }\nlocation ~ b$ { deny all; }", |at| {
            format!(
                "location /p{at}/ {{ root /srv/other; }}\nlocation ^~ /q{at}/ {{ proxy_pass http://127.0.0.1:3000; }}"
            )
        }),
        ("guards in folders", "", |at| {
            format!("location /p{at}/ {{ location ~ a$ {{ deny all; }}\nlocation ~ b$ {{ deny all; }}\n}}")
        }),
    ];
    for (name, first, shape) in shapes {
        let bytes = |count: usize| {
            // Numbers of equal length.
            let locations: Vec<String> = (100..100 + count).map(shape).collect();
            translated("growth", &format!("{first}\n{}", locations.join("\n"))).len()
        };
        let (some, twice, thrice) = (bytes(20), bytes(40), bytes(60));
        assert_eq!(twice - some, thrice - twice, "{name}: {some}, {twice} and {thrice} bytes");
    }
}
