//! `komainu trust` as root: which authorities it installs, and which it refuses.
//!
//! The commands run in a mount namespace of their own, in which a directory of the test is `/usr/local/share`.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::privileges::can_be_tested;
use crate::rig::{Folder, Rig, as_we_are, eventually, komainu, text};

const NOBODY: u32 = 65_534;

/// Whether mount namespaces can be made; prints a note if not.
pub(crate) fn has_namespaces() -> bool {
    let has = Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|done| done.status.success());
    if !has {
        eprintln!("SKIPPED: this machine permits no mount namespaces");
    }
    has
}

/// Makes a state directory `state` with a local authority, as a server of root does, and a program that
/// notes its calls in place of `update-ca-certificates`.
fn folder() -> Folder {
    let folder = Folder::new();
    let text = format!(
        r#"
        listen = ["127.0.0.1:0", {{ address = "127.0.0.1:0", tls = true }}]
        {}
        acme.state = "state"
        [[site]]
        hosts = "x.localhost"
        tls = "auto"
        [[site.route]]
        respond = "fine"
        "#,
        as_we_are()
    );
    folder.write("komainu.toml", text).write("home/nothing", "").write("system/nothing", "");
    folder.write_program(
        "bin/update-ca-certificates",
        &format!("#!/bin/sh\necho \"$@\" >> {}\n", folder.at("updates").display()),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut rig = Rig::start(command, folder);
    eventually("there is an authority", || rig.folder.at("state/local/root.crt").exists());
    rig.signal("-TERM");
    assert!(rig.ended().success());
    std::mem::replace(&mut rig.folder, Folder::new())
}

/// Runs `komainu trust` with these arguments, at most for a minute.
fn trust(folder: &Folder, state: &str, more: &[&str]) -> Output {
    let script =
        format!("mount --bind {} /usr/local/share && exec timeout 60 \"$@\"", folder.at("system").display());
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_komainu")).args(["trust", "--state"]).arg(folder.at(state)).args(more);
    command.env("HOME", folder.at("home"));
    let path = format!("{}:{}", folder.at("bin").display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).output().unwrap()
}

/// Contents of the installed files.
fn installed(folder: &Folder) -> Vec<String> {
    let files = fs::read_dir(folder.at("system/ca-certificates")).into_iter().flatten();
    files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
}

/// Asserts that nothing was installed, and returns what was said.
#[track_caller]
fn refused(folder: &Folder, state: &str, more: &[&str]) -> String {
    let done = trust(folder, state, more);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert_eq!(installed(folder), [""; 0]);
    assert!(!folder.at("updates").exists(), "{said}");
    said
}

/// Creates a state directory of nobody, whose certificate `make` puts at the given path.
fn of_nobody(folder: &Folder, state: &str, make: impl FnOnce(&Path)) {
    let local = folder.at(state).join("local");
    fs::create_dir_all(&local).unwrap();
    make(&local.join("root.crt"));
    for path in [folder.at(state), local] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn authority_of_root_is_installed_without_its_key() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    let folder = folder();
    let certificate = fs::read_to_string(folder.at("state/local/root.crt")).unwrap();
    let unrelated = fs::read_to_string(folder.at("komainu.toml")).unwrap();
    fs::write(folder.at("state/local/root.crt"), format!("{certificate}{unrelated}")).unwrap();
    let done = trust(&folder, "state", &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(installed(&folder), [certificate]);
    assert_eq!(fs::read_to_string(folder.at("updates")).unwrap(), "\n");
}

#[test]
fn authority_that_another_user_can_replace_needs_its_fingerprint() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    let folder = folder();
    let root = folder.at("state/local/root.crt");
    let certificate = fs::read_to_string(&root).unwrap();
    let output = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(&root)
        .output()
        .unwrap();
    let fingerprint = text(&output.stdout).trim().rsplit('=').next().unwrap().to_owned();
    of_nobody(&folder, "theirs", |path| fs::write(path, &certificate).unwrap());
    let said = refused(&folder, "theirs", &[]);
    let digits = fingerprint.replace(':', "").to_lowercase();
    assert!(said.contains("another user may have written") && said.contains(&digits), "{said}");
    // The certificate is another user's in a directory of root's.
    chown(&root, Some(NOBODY), None).unwrap();
    assert!(refused(&folder, "state", &[]).contains("belongs to user 65534"));
    chown(&root, Some(0), None).unwrap();
    let wrong = "0".repeat(64);
    let said = refused(&folder, "theirs", &["--fingerprint", &wrong]);
    assert!(said.contains(&format!("has another SHA-256 fingerprint than {wrong}")), "{said}");
    refused(&folder, "state", &["--fingerprint", &wrong]);
    let done = trust(&folder, "theirs", &["--fingerprint", &fingerprint]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(installed(&folder), [certificate]);
    // What was installed is removed without a confirmation.
    let done = trust(&folder, "theirs", &["--undo"]);
    assert!(done.status.success() && installed(&folder).is_empty(), "{}", text(&done.stderr));
}

#[test]
fn planted_authorities_are_not_installed() {
    if !can_be_tested() || !has_namespaces() {
        return;
    }
    let folder = folder();
    let genuine = folder.at("state/local/root.crt");
    of_nobody(&folder, "linked", |path| symlink(&genuine, path).unwrap());
    assert!(refused(&folder, "linked", &[]).contains("root.crt is a symbolic link in a folder that others"));
    of_nobody(&folder, "named", |path| fs::hard_link(&genuine, path).unwrap());
    assert!(refused(&folder, "named", &[]).contains("root.crt is a file with several names"));
    of_nobody(&folder, "waiting", |path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    });
    assert!(refused(&folder, "waiting", &[]).contains("this is not a file"));
    // Roots whose certificates are valid for any name, written by nobody and by root.
    crate::certified::openssl(
        &folder,
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=any \
            -keyout any.key -out any.pem 2>&1",
    );
    let any = fs::read(folder.at("any.pem")).unwrap();
    of_nobody(&folder, "theirs", |path| fs::write(path, &any).unwrap());
    folder.write("own/local/root.crt", &any);
    for state in ["theirs", "own"] {
        let said = refused(&folder, state, &[]);
        assert!(said.contains("is not the certificate of a local authority of Komainu"), "{said}");
    }
}
