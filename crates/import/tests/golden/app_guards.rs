//! Settings of application servers and of Unit that restrict access.

use import::ImportKind;

use super::guards::{Guard, check};

#[test]
fn application_server_restrictions_are_kept_or_closed() {
    const CLOSED: &[&str] = &["respond = 403", "CHECK "];
    const APP: &[&str] = &["\napp = \"app\""];
    let command = |text: &str| text.to_owned();
    let puma: Vec<Guard> = vec![
        (
            "ssl_bind",
            command(
                "ssl_bind '127.0.0.1', '9292', { key: '/k.pem', cert: '/c.pem', ca: '/ca.pem', verify_mode: 'force_peer' }\n",
            ),
            &[
                "listen = { address = \"127.0.0.1:9292\", tls = true }",
                "client = { ca = \"/ca.pem\" }",
                "key = \"/k.pem\"",
                "app = \"app\"",
            ],
            &[],
        ),
        (
            "bind with a client's certificate",
            command("bind 'ssl://0.0.0.0:9292?key=/k.pem&cert=/c.pem&verify_mode=peer&ca=/ca.pem'\n"),
            &["client = { ca = \"/ca.pem\", required = false }", "tls = true"],
            &[],
        ),
        (
            "force_peer without an authority",
            command("bind 'ssl://:9292?key=/k.pem&cert=/c.pem&verify_mode=force_peer'\n"),
            CLOSED,
            APP,
        ),
        (
            "ssl_bind of variables",
            command("ssl_bind host, port, key: path\n"),
            &["respond = 403", "127.0.0.1:9292"],
            APP,
        ),
        (
            "a socket of a variable",
            command("bind \"unix://#{dir}/puma.sock\"\n"),
            &["listen = \"127.0.0.1:9292\"", "CHECK puma.rb:1:"],
            &[],
        ),
        (
            "no certificate",
            command("bind 'ssl://127.0.0.1:9292'\n"),
            &["/etc/komainu/tls/app.pem", "CHECK"],
            &[],
        ),
    ];
    check(&puma, "puma.rb", |path| import::hosting::import(ImportKind::Puma, Some(path), &[]).unwrap());
    let gunicorn: Vec<Guard> = vec![
        (
            "an address that a condition narrows",
            "bind = \"0.0.0.0:8000\"\nif os.environ.get(\"ENV\") == \"production\":\n    bind = \"unix:/run/g.sock\"\nwsgi_app = \"app:app\"\n".to_owned(),
            &["127.0.0.1:8000"],
            &["0.0.0.0:8000"],
        ),
        (
            "required certificates of clients",
            command(
                "bind = '0.0.0.0:8443'\ncertfile = '/c.pem'\nkeyfile = '/k.pem'\nca_certs = '/ca.pem'\ncert_reqs = 2\n",
            ),
            &["client = { ca = \"/ca.pem\" }", "tls = true"],
            &[],
        ),
        (
            "required, by its name",
            command("import ssl\ncertfile = '/c.pem'\nca_certs = '/ca.pem'\ncert_reqs = ssl.CERT_REQUIRED\n"),
            &["client = { ca = \"/ca.pem\" }"],
            &[],
        ),
        ("required by code", command("certfile = '/c.pem'\ncert_reqs = f()\n"), CLOSED, APP),
        ("required of nobody", command("certfile = '/c.pem'\ncert_reqs = 2\n"), CLOSED, APP),
        ("a certificate by code", command("bind = ':8000'\ncertfile = f()\n"), CLOSED, APP),
        (
            "a context by code",
            command("certfile = '/c.pem'\ndef ssl_context(conf, default):\n    pass\n"),
            CLOSED,
            APP,
        ),
        ("a hook that sees requests", command("def pre_request(worker, request):\n    pass\n"), CLOSED, APP),
        ("none", command("certfile = '/c.pem'\ncert_reqs = 0\n"), &["app = \"app\""], &["client", "respond"]),
    ];
    check(&gunicorn, "gunicorn.conf.py", |path| {
        import::hosting::import(ImportKind::Gunicorn, Some(path), &[]).unwrap()
    });
    let starman: Vec<Guard> = vec![
        (
            "ssl of one address",
            command(
                "web: starman --listen 127.0.0.1:5443:ssl --listen :5000 --ssl-key /k.pem --ssl-cert /c.pem app.psgi\n",
            ),
            &["{ address = \"127.0.0.1:5443\", tls = true }", "\":5000\""],
            &["ssl\""],
        ),
        (
            "ssl of all",
            command("web: starman --enable-ssl --port 5443 --ssl-key /k.pem --ssl-cert /c.pem app.psgi\n"),
            &["{ address = \":5443\", tls = true }"],
            &[],
        ),
    ];
    check(&starman, "Procfile", |path| {
        import::hosting::import(ImportKind::Starman, Some(path), &[]).unwrap()
    });
    let passenger: Vec<Guard> = vec![
        (
            "a port of its own",
            command(
                "{\"port\": 3000, \"ssl\": true, \"ssl_port\": 3443, \"ssl_certificate\": \"/c.pem\", \"ssl_certificate_key\": \"/k.pem\"}",
            ),
            &["\":3000\", { address = \":3443\", tls = true }"],
            &[],
        ),
        (
            "one port",
            command(
                "{\"port\": 3000, \"ssl\": true, \"ssl_certificate\": \"/c.pem\", \"ssl_certificate_key\": \"/k.pem\"}",
            ),
            &["{ address = \":3000\", tls = true }"],
            &[],
        ),
        (
            "a template of nginx",
            command("{\"port\": 3000, \"nginx_config_template\": \"a.erb\"}"),
            CLOSED,
            APP,
        ),
    ];
    check(&passenger, "Passengerfile.json", |path| {
        import::hosting::import(ImportKind::Passenger, Some(path), &[]).unwrap()
    });
}

#[test]
fn unit_restrictions_are_kept_or_closed() {
    let unit = |listener: &str, action: &str| {
        format!(
            "{{\"listeners\": {{\"*:8080\": {{\"pass\": \"routes\"{listener}}}}},\n\"routes\": [{action}]}}"
        )
    };
    const SHARE: &str = "{\"action\": {\"share\": \"/www$uri\"}}";
    let closed: &[&str] = &["respond = 403", "CHECK guarded.json:"];
    let guards: Vec<Guard> = vec![
        (
            "types",
            unit(
                "",
                "{\"action\": {\"share\": \"/www$uri\", \"types\": [\"!text/x-php\"], \"fallback\": {\"return\": 404}}}",
            ),
            closed,
            &["\nfiles"],
        ),
        (
            "an unknown key",
            unit("", "{\"action\": {\"share\": \"/www$uri\", \"guard\": 1}}"),
            closed,
            &["\nfiles"],
        ),
        (
            "addresses that another listener has from its proxies",
            unit(
                "}, \"*:8081\": {\"pass\": \"routes\", \"forwarded\": {\"client_ip\": \"X-Forwarded-For\", \"source\": [\"10.0.0.0/8\"]}",
                &format!(
                    "{{\"match\": {{\"source\": \"10.0.0.1\"}}, \"action\": {{\"return\": 403}}}}, {SHARE}"
                ),
            ),
            closed,
            &["\nfiles", "trusted_proxies"],
        ),
        (
            "addresses that proxies tell",
            unit(
                ", \"forwarded\": {\"client_ip\": \"X-Forwarded-For\", \"source\": [\"10.0.0.0/8\"]}",
                &format!("{{\"match\": {{\"source\": \"10.0.0.1\"}}, {}", &SHARE[1..]),
            ),
            &[
                "trusted_proxies = { from = [\"10.0.0.0/8\"], recursive = false }",
                "client = \"10.0.0.1\"\nfiles",
            ],
            &[],
        ),
        (
            "mounts",
            unit("", "{\"action\": {\"share\": \"/www$uri\", \"traverse_mounts\": false}}"),
            closed,
            &["\nfiles"],
        ),
        (
            "a root of links",
            unit("", "{\"action\": {\"share\": \"/www$uri\", \"chroot\": \"/www\"}}"),
            &["files ="],
            &["symlinks"],
        ),
        (
            "a certificate",
            unit(", \"tls\": {\"certificate\": \"bundle\"}", SHARE),
            &["tls = { certificate = \"/etc/komainu/tls/bundle.pem\"", "tls = true"],
            &[],
        ),
        (
            "certificates of clients",
            unit(
                ", \"tls\": {\"certificate\": \"bundle\", \"conf_commands\": {\"VerifyCAFile\": \"/ca.pem\", \"VerifyMode\": \"Peer,Require\"}}",
                SHARE,
            ),
            &["client = { ca = \"/ca.pem\" }"],
            &[],
        ),
        (
            "certificates of clients, in another way",
            unit(", \"tls\": {\"certificate\": \"bundle\", \"client\": \"/ca.pem\"}", SHARE),
            closed,
            &["\nfiles"],
        ),
        (
            "an unknown condition of an application before files",
            unit(
                "",
                &format!(
                    "{{\"match\": {{\"if\": \"$cookie_a\", \"uri\": \"/a/*\"}}, \"action\": {{\"proxy\": \"http://127.0.0.1:1\"}}}}, {SHARE}"
                ),
            ),
            &["path = \"/a/*\"\nrespond = 403", "CHECK guarded.json:"],
            &["proxy ="],
        ),
        (
            "methods without HEAD",
            unit(
                "",
                &format!("{{\"match\": {{\"method\": \"!GET\"}}, \"action\": {{\"return\": 405}}}}, {SHARE}"),
            ),
            &["not = { method = \"GET\", not = { method = \"HEAD\" } }\nrespond = 405"],
            &[],
        ),
        (
            "GET alone",
            unit("", "{\"match\": {\"method\": \"GET\"}, \"action\": {\"share\": \"/www$uri\"}}"),
            &["method = \"GET\"\nnot = { method = \"HEAD\" }"],
            &[],
        ),
        (
            "PHP without a script",
            "{\"listeners\": {\"*:80\": {\"pass\": \"applications/a\"}},\n\"applications\": {\"a\": {\"type\": \"php\", \"root\": \"/srv/a\"}}}".to_owned(),
            &["not = { path = [\"*.php\", \"*.php/*\", \"*/\"] }\nrespond = 404"],
            &[],
        ),
        (
            "PHP with a script",
            "{\"listeners\": {\"*:80\": {\"pass\": \"applications/a\"}},\n\"applications\": {\"a\": {\"type\": \"php\", \"root\": \"/srv/a\", \"script\": \"b.php\"}}}".to_owned(),
            &["app = \"a\"\nrewrite = \"/b.php\""],
            &[],
        ),
        (
            "routes that lead to others with conditions of the same kind",
            "{\"listeners\": {\"*:80\": {\"pass\": \"routes/main\"}},\n\"routes\": {\"main\": [{\"match\": {\"uri\": \"/a/*\"}, \"action\": {\"pass\": \"routes/a\"}},\n{\"action\": {\"share\": \"/www$uri\"}}],\n\"a\": [{\"match\": {\"uri\": \"*.txt\"}, \"action\": {\"return\": 403}}]}}".to_owned(),
            &["path = \"/a/*\"\nrespond = 403", "CHECK guarded.json:"],
            &[],
        ),
        (
            "routes that lead to others and do not come back",
            "{\"listeners\": {\"*:80\": {\"pass\": \"routes/main\"}},\n\"routes\": {\"main\": [{\"match\": {\"uri\": \"/a/*\"}, \"action\": {\"pass\": \"routes/a\"}},\n{\"action\": {\"share\": \"/www$uri\"}}],\n\"a\": [{\"match\": {\"method\": \"POST\"}, \"action\": {\"return\": 200}}]}}".to_owned(),
            &["path = \"/a/*\"\nrespond = 404"],
            &[],
        ),
        (
            "a redirect by an unknown condition",
            unit(
                "",
                &format!(
                    "{{\"match\": {{\"if\": \"!$cookie_a\"}}, \"action\": {{\"return\": 302, \"location\": \"/login\"}}}}, {SHARE}"
                ),
            ),
            closed,
            &["\nfiles"],
        ),
    ];
    check(&guards, "guarded.json", |path| import::unit::import(path).unwrap());
}
