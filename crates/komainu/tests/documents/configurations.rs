//! Every configuration on the pages passes `komainu check` once the files that it names exist.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::hosted::server;
use crate::mmdb::{Record, database};
use crate::pages::{blocks, file_name, pages};
use crate::rig::{Folder, text};

/// Pages whose blocks are no server configurations: experiments of `komainu lab`.
const OTHERS: [&str; 1] = ["lab.md"];
/// Absolute directories in configurations, which are replaced by directories in the test's directory.
const MACHINE: [&str; 5] = ["/srv/", "/etc/", "/var/", "/run/", "/usr/share/"];
/// Maximum number of files created for one configuration.
const MADE_MAX: usize = 40;

/// Contents of files that pages name: a certificate with its key, a revocation list.
pub(crate) struct Files {
    pem: String,
    crl: String,
}

impl Files {
    pub(crate) fn make() -> Files {
        let folder = Folder::new();
        folder.certify();
        let script = "cat cert.pem key.pem > both.pem; touch index; echo 01 > crlnumber
            printf '[ca]\\ndefault_ca=c\\n[c]\\ndatabase=index\\ncrlnumber=crlnumber\\ndefault_md=sha256\\ndefault_crl_days=2\\n' > ca.conf
            openssl ca -config ca.conf -cert cert.pem -keyfile key.pem -gencrl -out crl.pem";
        let done = std::process::Command::new("sh")
            .args(["-ec", script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        let read = |name| fs::read_to_string(folder.at(name)).unwrap();
        Files { pem: read("both.pem"), crl: read("crl.pem") }
    }

    /// Returns the content of a file, chosen by its name.
    fn content(&self, name: &str) -> String {
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        let tsig = "key \"komainu\" { algorithm hmac-sha256; secret \"c2VjcmV0LXNlY3JldC1zZWNyZXQ=\"; };\n";
        let users = "alice:$2y$05$TWrcCKkA1uRpz.KUKvBaYOS7gEAR8Vn9cG9kj1iP0WFU7uXTcBkvi\n";
        match name {
            _ if ends(&["dns.key"]) => tsig.to_owned(),
            _ if ends(&[".crl"]) => self.crl.clone(),
            _ if ends(&[".pem", ".crt", ".key"]) && !name.contains("ticket") => self.pem.clone(),
            _ if ends(&[".htpasswd"]) => users.to_owned(),
            _ if ends(&[".headers"]) => "X-Key: secret\n".to_owned(),
            _ if ends(&[".json"]) => "{\"keys\": []}".to_owned(),
            _ if ends(&[".headers"]) => "Authorization: Bearer token\n".to_owned(),
            _ if ends(&[".toml"]) => String::new(),
            // A secret that differs for each file.
            _ => name.bytes().rev().chain([0; 32]).take(32).map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    /// Creates directories of certificates and the directory of temporary files, which a check cannot request
    /// one file at a time.
    fn put_folders(&self, folder: &Folder) {
        for name in ["fullchain.pem", "privkey.pem"] {
            folder.write(&format!("etc/letsencrypt/live/example.com/{name}"), &self.pem);
        }
        folder.write("etc/haproxy/certs/shop.pem", &self.pem);
        fs::create_dir_all(folder.at("var/tmp")).unwrap();
    }
}

/// The path in a message between `before` and `after`.
fn path_in(message: &str, before: &str, after: &str) -> Option<PathBuf> {
    let (_, rest) = message.split_once(before)?;
    let (path, _) = rest.split_once(after)?;
    let path = path.strip_prefix("the error page ").unwrap_or(path);
    (path.starts_with('/') && !path.contains('\n')).then(|| PathBuf::from(path))
}

/// The path in a message after these words, up to the end of the line.
fn line_after<'a>(message: &'a str, words: &str) -> Option<&'a Path> {
    let mut rests = message.split(words).skip(1).filter_map(|rest| rest.lines().next());
    rests.find(|path| path.starts_with('/')).map(Path::new)
}

/// Creates what a message reports as missing; returns false if the message is about something else.
fn make_what_is_missing(message: &str, files: &Files, config: &mut String) -> bool {
    let missing = ": No such file or directory";
    let read = |after: &str| path_in(message, "cannot read ", after);
    let put = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = path.to_string_lossy();
        let content = if name.ends_with(".mmdb") {
            database(&[("192.0.2.0/24", Record::Country("DE"))])
        } else {
            files.content(&name).into_bytes()
        };
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
    };
    if let Some((_, rest)) = message.split_once("there is no `[apps.") {
        // The example shows only a route; the application is declared elsewhere on the page.
        let name = rest.split_once(']').unwrap().0;
        config.push_str(&format!("[apps.{name}]\npsgi = \"app.psgi\"\n"));
    } else if let Some(path) = path_in(message, "cannot serve ", missing) {
        fs::create_dir_all(path).unwrap();
    } else if let Some(path) = path_in(message, "cannot open the log ", ": its folder") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    } else if let Some(path) = read(missing).or_else(|| read(": there is no such file")) {
        put(&path);
    } else if let Some(path) = line_after(message, "there is no folder ") {
        fs::create_dir_all(path).unwrap();
    } else if let Some(path) = line_after(message, "there is no file or folder ") {
        match path.extension() {
            Some(_) => put(path),
            None => fs::create_dir_all(path).unwrap(),
        }
    } else if let Some(path) = line_after(message, "there is no file ") {
        put(path);
    } else if let Some((path, _)) = message.split_once(" is not a virtual environment") {
        let bin = Path::new(path.rsplit(' ').next().unwrap()).join("bin");
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", bin.join("python")).unwrap();
    } else {
        return false;
    }
    true
}

/// Checks a configuration in a new directory, creating the files that it names.
pub(crate) fn checked(block: &str, files: &Files) -> Output {
    let folder = Folder::new();
    let place = folder.path().display().to_string();
    files.put_folders(&folder);
    let mut config = block.to_owned();
    for of in MACHINE {
        for quote in ["\"", "\"unix:"] {
            config = config.replace(&format!("{quote}{of}"), &format!("{quote}{place}{of}"));
        }
    }
    // The example shows only a route of a site.
    if config.trim_start().starts_with("[[site.route]]") {
        config.insert_str(0, "[[site]]\n");
    }
    for _ in 0..MADE_MAX {
        folder.write("komainu.toml", &config);
        let output = server()
            .args(["check", "-c"])
            .arg(folder.at("komainu.toml"))
            .env("XDG_STATE_HOME", folder.path())
            .env("CREDENTIALS_DIRECTORY", folder.path())
            .output()
            .unwrap();
        let message = text(&output.stderr);
        if output.status.success() || !make_what_is_missing(&message, files, &mut config) {
            return output;
        }
    }
    panic!("it names more than {MADE_MAX} files:\n{block}");
}

#[test]
fn every_configuration_is_valid() {
    let files = Files::make();
    let mut count = 0;
    for (name, page) in pages() {
        for block in blocks(&page).iter().filter(|block| block.language == "toml") {
            let is_meant_to_be_wrong = file_name(&block.text) == Some("broken.toml");
            if OTHERS.contains(&name.as_str()) {
                continue;
            }
            let output = checked(&block.text, &files);
            let valid = output.status.success();
            let message = text(&output.stderr);
            assert_eq!(valid, !is_meant_to_be_wrong, "{name}:\n{}\n{message}", block.text);
            count += 1;
        }
    }
    assert!(count > 120, "{count} configurations were found");
}
