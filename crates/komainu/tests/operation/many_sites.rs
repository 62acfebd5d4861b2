//! Configurations with very many sites.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Output};

use crate::rig::{Folder, Rig, as_we_are, listen, text};

/// Number of sites of the largest configuration.
const SITES: usize = 20_000;

fn sites(count: usize, route: impl Fn(usize) -> String) -> String {
    let mut text = "threads = 2\n".to_owned();
    for at in 0..count {
        let _ = write!(
            text,
            r#"
            [[site]]
            hosts = "s{at}.test"
            [[site.route]]
            {}
            "#,
            route(at)
        );
    }
    text
}

/// CPU time for the largest configuration. Linear work takes a few seconds on a slow machine, quadratic work minutes.
const CPU_S_MAX: u32 = 60;

/// Runs `komainu check` with a limit of `open_max` open files and of its CPU time.
fn check(folder: &Folder, open_max: usize) -> Output {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {open_max}; ulimit -t {CPU_S_MAX}; exec \"$0\" check -c \"$1\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_komainu")]).arg(folder.at("komainu.toml"));
    command.output().unwrap()
}

#[test]
fn a_check_of_20_000_sites_opens_few_files_at_a_time() {
    let folder = Folder::new();
    folder.write("www/a", "a");
    let folders = 2_000;
    (0..folders).for_each(|at| fs::create_dir_all(folder.at(&format!("each/{at}"))).unwrap());
    folder.write(
        "komainu.toml",
        sites(SITES, |at| match at % 4 {
            0 => "files = \"www\"".to_owned(),
            1 => format!("files = \"each/{}\"", at / 4 % folders),
            2 => format!("proxy = \"http://10.1.{}.{}:8080\"", at / 4 / 250, at / 4 % 250),
            _ => "redirect = \"https://example.com$uri\"".to_owned(),
        }),
    );
    let done = check(&folder, 1024);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("20000 sites"), "{}", text(&done.stdout));
}

/// Proxied sites, every second of which shares its upstream server with others, and a reload that changes all
/// of them.
#[test]
fn many_proxied_sites_start_and_are_reloaded() {
    let folder = Folder::new();
    let config = |check: &str| {
        sites(SITES / 2, |at| {
            let server = if at % 2 == 0 { at } else { 0 };
            let url = format!("http://127.{}.{}.1:8080", server / 250, server % 250);
            format!("proxy = {{ to = \"{url}\"{check} }}")
        })
    };
    let rig = Rig::config(folder, &config(""));
    let changed = format!("{}{}{}", listen(&rig.folder), as_we_are(), config(", queue = 10"));
    rig.folder.write("komainu.toml", changed);
    rig.signal("-HUP");
    rig.expect_report("the configuration was read again");
}

#[test]
fn sites_share_the_descriptor_of_a_folder() {
    let folder = Folder::new();
    folder.write("www/a", "a");
    let rig = Rig::config(folder, &sites(500, |_| "files = \"www\"".to_owned()));
    for host in ["s0.test", "s499.test"] {
        rig.send(&format!("GET /a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).expect(200, "a");
    }
    let served = rig.folder.at("www").canonicalize().unwrap();
    let links = || fs::read_dir(format!("/proc/{}/fd", rig.child.id())).unwrap();
    let open = links()
        .filter(|one| one.as_ref().is_ok_and(|one| fs::read_link(one.path()).is_ok_and(|to| to == served)));
    assert_eq!(open.count(), 1, "one for all sites and threads");
}
