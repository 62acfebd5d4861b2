//! Countries of clients: as a condition, as a variable, behind proxies, and after a reload.

use crate::mmdb::{Record, database};
use crate::rig::{Folder, Rig, as_we_are, curl, eventually, komainu, text};

/// A database in which `127.0.0.1` is in Germany, with countries for the documentation networks that a proxy
/// reports.
fn countries() -> Vec<u8> {
    database(&[
        ("127.0.0.0/8", Record::Country("DE")),
        ("192.0.2.0/24", Record::Country("AT")),
        ("2001:db8::/32", Record::Registered("FR")),
    ])
}

const ROUTES: &str = r#"
trusted_proxies = ["127.0.0.1"]
response_headers = { set = { X-Country = "$country", X-Area = "$area" } }

[geo]
database = "countries.mmdb"

[maps.area]
of      = "$country"
values  = { DE = "near", AT = "near" }
default = "far"

[log]
access = '$country $path'
file   = "access.log"

[[route]]
path    = "/when"
split   = { branches = [{ name = "fr", weight = 0, when = { country = "FR" }, respond = "french" }, { name = "all", weight = 100, respond = "all" }] }

[[route]]
path    = "/body"
respond = { body = "from $country", variables = true }

[[route]]
country = ["AT", "FR"]
respond = "abroad"

[[route]]
country = "none"
respond = "unknown"

[[route]]
respond = "home"
"#;

fn start() -> Rig {
    let folder = Folder::new();
    folder.write("countries.mmdb", countries());
    Rig::config(folder, ROUTES)
}

fn from(rig: &Rig, client: &str, path: &str) -> (String, String, String) {
    let fields = if client.is_empty() { String::new() } else { format!("X-Forwarded-For: {client}\r\n") };
    let answer = rig.ask(path, &fields);
    let field = |name: &str| answer.field(name).unwrap_or_default().to_owned();
    (answer.text(), field("X-Country"), field("X-Area"))
}

fn all(body: &str, country: &str, area: &str) -> (String, String, String) {
    (body.into(), country.into(), area.into())
}

#[test]
fn country_is_that_of_the_reported_client() {
    let rig = start();
    assert_eq!(from(&rig, "", "/"), all("home", "DE", "near"));
    assert_eq!(from(&rig, "192.0.2.7", "/"), all("abroad", "AT", "near"));
    assert_eq!(from(&rig, "\"[2001:db8::1]\"", "/").0, "home", "no address in this field");
    assert_eq!(from(&rig, "2001:db8::1", "/"), all("abroad", "FR", "far"));
    assert_eq!(from(&rig, "203.0.113.1", "/"), all("unknown", "", "far"));
    assert_eq!(from(&rig, "192.0.2.7", "/body").0, "from AT");
    assert_eq!(from(&rig, "2001:db8::1", "/when").0, "french");
    assert_eq!(from(&rig, "192.0.2.7", "/when").0, "all");
    let log = rig.folder.at("access.log");
    eventually("it is logged", || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("AT /body\n") && log.contains("DE /\n")
    });
}

#[test]
fn untrusted_forwarding_fields_do_not_change_the_country() {
    let folder = Folder::new();
    folder.write("countries.mmdb", countries());
    let rig = Rig::config(folder, &ROUTES.replace("trusted_proxies = [\"127.0.0.1\"]", ""));
    assert_eq!(from(&rig, "192.0.2.7", "/"), all("home", "DE", "near"));
}

#[test]
fn reload_updates_countries_and_ignores_a_broken_file() {
    let rig = start();
    let reload = || {
        let done = komainu().args(["reload", "--pid", &rig.child.id().to_string()]).output().unwrap();
        assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    };
    rig.folder.write("countries.mmdb", &countries()[..100]);
    reload();
    assert_eq!(from(&rig, "192.0.2.7", "/"), all("abroad", "AT", "near"));
    eventually("it is logged", || rig.reported().contains("countries stay those of the file before"));
    rig.folder.write("countries.mmdb", database(&[("192.0.2.0/24", Record::Country("FR"))]));
    reload();
    assert_eq!(from(&rig, "192.0.2.7", "/"), all("abroad", "FR", "far"));
    assert_eq!(from(&rig, "", "/"), all("unknown", "", "far"));
}

#[test]
fn check_rejects_missing_or_invalid_geo_database() {
    let folder = Folder::new();
    let config = format!(
        r#"
        {}
        [geo]
        database = "c.mmdb"
        [[route]]
        respond = 200
        "#,
        as_we_are()
    );
    folder.write("komainu.toml", config);
    let check = || {
        let done = komainu().arg("check").arg("-c").arg(folder.at("komainu.toml")).output().unwrap();
        (done.status.success(), text(&done.stdout) + &text(&done.stderr))
    };
    let (passes, said) = check();
    assert!(!passes && said.contains("there is no file") && said.contains("c.mmdb"), "{said}");
    folder.write("c.mmdb", "<html>moved</html>");
    let (passes, said) = check();
    assert!(!passes && said.contains("`[geo] database`") && said.contains("download it again"), "{said}");
    folder.write("c.mmdb", database(&[("10.0.0.0/8", Record::System(64_500))]));
    let (passes, said) = check();
    assert!(!passes && said.contains("it has no countries"), "{said}");
    folder.write("c.mmdb", countries());
    let (passes, said) = check();
    assert!(passes, "{said}");
}

#[test]
fn conditional_routes_have_separate_cache_entries() {
    let origins = [Rig::files(&[("page", "for some")]), Rig::files(&[("page", "for all")])];
    let route = |condition: &str, origin: &Rig| {
        let url = origin.url("").trim_end_matches('/').to_owned();
        format!(
            r#"
            [[route]]
            {condition}
            cache = {{ rule = [{{ ttl = "1h" }}] }}
            proxy = "{url}"
            "#
        )
    };
    for condition in [
        "country = \"AT\"",
        "client = \"192.0.2.0/24\"",
        "referer = \"a.test\"",
        "not = { client = \"203.0.113.0/24\" }",
        "header = { Referer = \"~ ^http://a[.]test/\" }",
    ] {
        let folder = Folder::new();
        folder.write("countries.mmdb", countries());
        let text = format!(
            r#"
            trusted_proxies = ["127.0.0.1"]
            [geo]
            database = "countries.mmdb"
            {}
            {}
            "#,
            route(condition, &origins[0]),
            route("", &origins[1])
        );
        let rig = Rig::config(folder, &text);
        for _ in 0..2 {
            let some = "X-Forwarded-For: 192.0.2.7\r\nReferer: http://a.test/x\r\n";
            rig.ask("/page", some).expect(200, "for some");
            rig.ask("/page", "X-Forwarded-For: 203.0.113.9\r\n").expect(200, "for all");
        }
    }
}

#[test]
fn country_condition_applies_over_http2() {
    let folder = Folder::new();
    folder.write("countries.mmdb", countries());
    folder.write(
        "komainu.toml",
        format!("listen = [{{ address = \"127.0.0.1:0\", h2c = true }}]\n{}{ROUTES}", as_we_are()),
    );
    let mut command = komainu();
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(command, folder);
    let url = format!("http://{}/", rig.listens);
    let got = curl(&["--http2-prior-knowledge", "-H", "X-Forwarded-For: 192.0.2.7", &url]);
    assert_eq!(text(&got.stdout), "abroad");
}
