//! The client address that applications see is taken from trusted proxies only.

use crate::hosted::{self, Client};
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, text};
use crate::shown::{LANGUAGES, applications};

const FIELDS: [&str; 6] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-real-ip",
    "forwarded",
];
const SENT: [&str; 6] = [
    "X-Forwarded-For: 9.9.9.9",
    "X-Forwarded-Proto: https",
    "X-FORWARDED-HOST: evil.example",
    "X-Forwarded-Port: 443",
    "X-Real-IP: 9.9.9.9",
    "Forwarded: for=9.9.9.9;proto=https",
];

fn ask(rig: &Rig, path: &str, version: &str) -> String {
    let url = rig.url(path);
    let fields = SENT.iter().flat_map(|field| ["-H", field]);
    text(&curl(&[version, &url].into_iter().chain(fields).collect::<Vec<_>>()).stdout)
}

#[test]
fn applications_see_forwarding_fields_of_trusted_proxies_only() {
    let folder = Folder::new();
    let routes = applications(&folder, &FIELDS);
    let config = |trusted: &str| {
        format!("listen = {{ address = \"127.0.0.1:0\", h2c = true }}\n{}{trusted}{routes}", as_we_are())
    };
    folder.write("komainu.toml", config("trusted_proxies = [\"10.0.0.0/8\"]\n"));
    let mut command = hosted::server();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let each = |want: &str| {
        for kind in LANGUAGES {
            let path = format!("/{kind}");
            eventually("it is loaded", || Client::new(rig.address).get(&path).0 == 200);
            for version in ["--http1.1", "--http2-prior-knowledge"] {
                assert_eq!(ask(&rig, &path, version), want, "{path} {version}");
            }
        }
    };
    each("-|-|-|-|-|-");
    for (trusted, want) in [
        ("[\"127.0.0.1\"]", "9.9.9.9|https|evil.example|443|9.9.9.9|-"),
        ("{ from = [\"127.0.0.1\"], fields = \"forwarded\" }", "-|-|-|-|-|for=9.9.9.9;proto=https"),
    ] {
        rig.folder.write("komainu.toml", config(&format!("trusted_proxies = {trusted}\n")));
        rig.signal("-HUP");
        eventually("the proxy is trusted", || ask(&rig, "/psgi", "--http1.1") == want);
        each(want);
    }
}
