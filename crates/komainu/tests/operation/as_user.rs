//! Environment of applications that run as the server's user, and their influence on the server.

use crate::hosted::{only, server};
use crate::privileges::can_be_tested;
use crate::rig::{Folder, Rig};

/// The supervisor's environment is root's, which applications must not inherit.
#[test]
fn applications_have_the_home_of_their_user() {
    if !can_be_tested() {
        return;
    }
    let source = "sub { my $said = join ' ', map { $ENV{$_} // '-' } qw(HOME USER LOGNAME); \
                  [200, ['Content-Length', length $said], [$said]] }";
    for (own, expected) in [
        ("", "/nonexistent nobody nobody"),
        ("user = \"games\"\n", "/usr/games games games"),
        ("env = { HOME = \"/tmp\" }\n", "/tmp nobody nobody"),
    ] {
        let folder = Folder::new();
        folder.write("app.psgi", source);
        let app = only(&format!("psgi = \"app.psgi\"\nworkers = 1\n{own}"));
        folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\nuser = \"nobody\"\n{app}"));
        let mut command = server();
        command
            .arg("start")
            .arg("-c")
            .arg(folder.at("komainu.toml"))
            .env("HOME", "/root")
            .env("USER", "root");
        let rig = Rig::start(command, folder);
        rig.get("/").expect(200, expected);
    }
}

/// Applications run as the server's user, so they can signal the server, but not the supervisor.
#[test]
fn supervised_server_ignores_upgrade_signal_from_application() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "app.psgi",
        "sub { [200, [], [kill(USR2 => $ENV{KOMAINU_SERVER}), ' ', $ENV{KOMAINU_SERVER}]] }",
    );
    let app = only("psgi = \"app.psgi\"\nworkers = 1\n");
    folder.write("komainu.toml", format!("listen = \"127.0.0.1:0\"\nuser = \"nobody\"\n{app}"));
    let mut command = server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let said = rig.get("/").text();
    assert!(said.starts_with("1 "), "{said}");
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(rig.get("/").text(), said);
    }
    assert!(!rig.reported().contains("upgrade"), "{}", rig.reported());
}
