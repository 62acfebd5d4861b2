//! Every option of application servers that guards or binds, with its verdict.

use std::path::Path;

use config::Config;
use import::{ImportKind, ImportResult, ImportVerdict};

/// The fate of an application with an option.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// It is closed (403), and the report says so.
    Closed,
    /// It is open, and the configuration has this part.
    Has(&'static str),
    /// It is open, and the report names the line as not possible or different.
    Named,
    /// It is open, and the report has nothing that is not possible.
    Open,
}

use Verdict::{Closed, Has, Named, Open};

/// Checks a table of sources. Sources with `FOLDER` have the folder of their file in its place.
fn check_all(
    kind: ImportKind,
    file: &str,
    table: &[(&str, Verdict)],
    import: impl Fn(&str, &Path) -> ImportResult,
) {
    let folder = std::env::temp_dir().join(format!("komainu-import-options-{}-{file}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut faults = Vec::new();
    for (text, verdict) in table {
        let found = import(text, &folder.join(file));
        if let Err(report) = Config::parse(&found.toml, "komainu.toml", Path::new("/etc/komainu")) {
            faults.push(format!("{kind:?}: {text}: {}\n{}", report.render(false), found.toml));
            continue;
        }
        let is_closed = found.toml.contains("\nrespond = 403") && !found.toml.contains("\napp = \"app\"");
        let impossible = found.count(ImportVerdict::Impossible);
        let is_named = impossible + found.count(ImportVerdict::Differs) > 0;
        let is_right = match verdict {
            Closed => is_closed && impossible > 0,
            Has(part) => !is_closed && found.toml.contains(part),
            Named => !is_closed && is_named,
            Open => !is_closed && impossible == 0,
        };
        if !is_right {
            faults.push(format!("{kind:?}: {text}: not {verdict:?}\n{}{}", found.toml, found.report()));
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(faults.is_empty(), "{}", faults.join("\n----\n"));
}

fn check_files(kind: ImportKind, file: &str, table: &[(&str, Verdict)]) {
    check_all(kind, file, table, |text, path| {
        std::fs::write(path, text).unwrap();
        import::hosting::import(kind, Some(path), &[]).unwrap()
    });
}

fn check_commands(kind: ImportKind, table: &[(&str, Verdict)]) {
    check_all(kind, "command", table, |text, _| {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        import::hosting::import(kind, None, &words).unwrap()
    });
}

const TLS: &str = "certfile = '/c.pem'\nkeyfile = '/k.pem'\n";

#[test]
fn gunicorn_files_keep_or_close() {
    let with_tls = |text: &str| -> &'static str { format!("{TLS}{text}\n").leak() };
    let table: Vec<(&str, Verdict)> = vec![
        // TLS and certificates of clients.
        (with_tls(""), Has("tls = true")),
        ("keyfile = '/k.pem'\n", Has("tls = true")),
        (with_tls("bind = 'unix:/run/a.sock'"), Has("address = \"unix:/run/a.sock\", tls = true")),
        (with_tls("cert_reqs = 0"), Has("tls = true")),
        (
            with_tls("ca_certs = '/ca.pem'\ncert_reqs = 1"),
            Has("client = { ca = \"/ca.pem\", required = false }"),
        ),
        (with_tls("ca_certs = '/ca.pem'\ncert_reqs = 2"), Has("client = { ca = \"/ca.pem\" }")),
        (with_tls("ca_certs = '/ca.pem'\ncert_reqs = 'CERT_REQUIRED'"), Has("client = { ca = \"/ca.pem\" }")),
        (with_tls("cert_reqs = 2"), Closed),
        ("ca_certs = '/ca.pem'\ncert_reqs = 2\n", Closed),
        (with_tls("ca_certs = '/ca.pem'\ncert_reqs = 2\ncert_reqs = 0"), Open),
        (with_tls("cert_reqs: int = 2"), Closed),
        (with_tls("a = cert_reqs = 2"), Closed),
        (with_tls("a, cert_reqs = 1, 2"), Closed),
        (with_tls("a = 1; cert_reqs = 2"), Closed),
        (with_tls("cert_reqs = \\\n2"), Closed),
        (with_tls("cert_reqs = int(os.environ.get('REQS', 0))"), Closed),
        (with_tls("reqs = os.getenv('REQS', '0')\ncert_reqs = reqs"), Closed),
        (with_tls("if x:\n    cert_reqs = 2"), Closed),
        (with_tls("try:\n    from local import *\nexcept ImportError:\n    pass"), Closed),
        (with_tls("from base import *"), Closed),
        (with_tls("from base import cert_reqs, ca_certs"), Closed),
        (with_tls("import base as cert_reqs"), Closed),
        (with_tls("globals()['cert' + '_reqs'] = 2"), Closed),
        (with_tls("for k, v in os.environ.items():\n    locals()[k] = v"), Closed),
        (with_tls("exec(open('x').read())"), Closed),
        (with_tls("def f():\n    global cert_reqs\n    cert_reqs = 2\nf()"), Closed),
        (with_tls("def ssl_context(config, default):\n    return default()"), Closed),
        (with_tls("ssl_context = make"), Closed),
        // Addresses.
        ("bind = '0.0.0.0:8000'\n", Has("listen = \"0.0.0.0:8000\"")),
        ("bind = ':8000'\n", Has("listen = \":8000\"")),
        ("bind = '[::1]:8000'\n", Has("listen = \"[::1]:8000\"")),
        ("bind = '[::1]'\n", Has("listen = \"[::1]:8000\"")),
        ("bind = '127.0.0.1'\n", Has("listen = \"127.0.0.1:8000\"")),
        ("bind = 'tcp://127.0.0.1:1'\n", Has("listen = \"127.0.0.1:1\"")),
        ("bind = 'unix:/run/a.sock'\n", Has("listen = \"unix:/run/a.sock\"")),
        ("bind = 'unix:///run/a.sock'\n", Has("listen = \"unix:/run/a.sock\"")),
        ("bind = 'fd://3'\n", Has("listen = \"127.0.0.1:8000\"")),
        ("bind = 'internal:8000'\n", Has("listen = \"127.0.0.1:8000\"")),
        ("bind = '0.0.0.0:' + port\n", Has("listen = \"127.0.0.1:8000\"")),
        ("bind = '0.0.0.0:80'\nbind = '127.0.0.1:80'\n", Has("listen = \"127.0.0.1:80\"")),
        ("if x:\n    bind = '0.0.0.0:80'\n", Has("listen = \"127.0.0.1:8000\"")),
        ("umask = 0o007\nbind = 'unix:/run/a.sock'\n", Has("unix:/run/a.sock")),
        // Clients and proxies.
        ("proxy_protocol = True\nbind = ':80'\n", Has("proxy_protocol = [\"127.0.0.1\", \"::1\"]")),
        ("proxy_protocol = True\nproxy_allow_ips = '10.0.0.0/8'\n", Has("proxy_protocol = \"10.0.0.0/8\"")),
        ("proxy_protocol = True\nproxy_allow_ips = '*'\n", Closed),
        ("proxy_protocol = True\nproxy_allow_ips = f()\n", Closed),
        ("proxy_protocol = 'off'\n", Open),
        ("protocol = 'uwsgi'\n", Closed),
        ("protocol = 'http'\n", Open),
        ("uwsgi_allow_ips = '10.0.0.1'\n", Closed),
        (
            "forwarded_allow_ips = '10.0.0.1,10.1.0.0/16'\n",
            Has("trusted_proxies = [\"10.0.0.1\", \"10.1.0.0/16\"]"),
        ),
        ("forwarded_allow_ips = '*'\n", Named),
        ("forwarded_allow_ips = ''\n", Named),
        ("forwarded_allow_ips = 'proxy'\n", Named),
        ("forwarded_allow_ips = f()\n", Named),
        ("secure_scheme_headers = {'X-SSL': 'on'}\n", Named),
        // The application.
        ("paste = '/srv/production.ini'\n", Closed),
        ("wsgi_app = find()\n", Closed),
        ("worker_class = 'gevent'\n", Named),
        ("pre_request = check\n", Closed),
        ("def pre_request(worker, request):\n    pass\n", Closed),
        ("def post_worker_init(worker):\n    worker.wsgi = Guard(worker.wsgi)\n", Closed),
        ("def post_fork(server, worker):\n    server.log.info('x')\n", Named),
        // Limits.
        ("limit_request_line = 1024\n", Has("request_line = \"1024B\"")),
        ("limit_request_fields = 20\n", Has("headers = 20")),
        ("limit_request_field_size = 100\n", Named),
        // Users.
        ("user = 'shop'\ngroup = 'www'\n", Has("user = \"shop\"\ngroup = \"www\"")),
        ("user = f()\n", Named),
        // Variables of the file.
        ("BASE = '/srv'\nanything = 3\n", Open),
    ];
    check_files(ImportKind::Gunicorn, "gunicorn.conf.py", &table);
}

#[test]
fn gunicorn_commands_keep_or_close() {
    let table = [
        ("--certfile /c --keyfile /k --ca-certs /ca --cert-reqs 2 a:b", Has("client = { ca = \"/ca\" }")),
        ("--certfile /c --cert-reqs=2 a:b", Closed),
        ("--cert-req 2 a:b", Closed),
        ("--anything x a:b", Closed),
        ("--paste x.ini", Closed),
        ("-c /nowhere/gunicorn.conf.py a:b", Closed),
        ("--config python:settings a:b", Closed),
        ("--proxy-protocol --proxy-allow-from * a:b", Closed),
        ("--proxy-protocol --proxy-allow-ips 10.0.0.1 a:b", Has("proxy_protocol = \"10.0.0.1\"")),
        ("--proxy-protocol v1 -b :80 a:b", Has("wsgi = \"a:b\"")),
        ("-b :80 -b unix:/run/a a:b", Has("listen = [\":80\", \"unix:/run/a\"]")),
        ("-b 0.0.0.0:$PORT a:b", Has("listen = \"127.0.0.1:8000\"")),
        ("--certfile $CERT a:b", Closed),
        ("--strip-header-spaces -R a:b", Has("wsgi = \"a:b\"")),
        ("GUNICORN_CMD_ARGS=--cert-reqs=2 gunicorn a:b", Closed),
        ("sudo gunicorn a:b", Open),
    ];
    check_commands(ImportKind::Gunicorn, &table);
}

#[test]
fn puma_files_keep_or_close() {
    let table = [
        // TLS and certificates of clients.
        (
            "ssl_bind '0.0.0.0', '9292', key: '/k', cert: '/c'\n",
            Has("address = \"0.0.0.0:9292\", tls = true"),
        ),
        (
            "ssl_bind '0.0.0.0', '9292',\n  key: '/k', cert: '/c',\n  verify_mode: 'force_peer', ca: '/ca'\n",
            Has("client = { ca = \"/ca\" }"),
        ),
        ("ssl_bind '0.0.0.0', '9292', {\n key: '/k',\n verify_mode: 'force_peer' }\n", Closed),
        ("ssl_bind '::', 9292, key: '/k', verify_mode: 'peer', ca: '/ca'\n", Has("required = false")),
        (
            "bind 'ssl://:9292?key=/k&cert=/c&verify_mode=force_peer&ca=/ca'\n",
            Has("client = { ca = \"/ca\" }"),
        ),
        ("bind 'ssl://:9292?key=/k&cert=/c&verification_flags=CRL_CHECK'\n", Closed),
        ("bind 'ssl://:9292?key=/k&cert=/c&truststore=/t'\n", Closed),
        ("bind 'ssl://:1?key=/k&verify_mode=force_peer&ca=/ca'\nbind 'ssl://:2?key=/k&cert=/c'\n", Closed),
        (
            "bind 'ssl://:1?verify_mode=force_peer&ca=/a'\nbind 'ssl://:2?verify_mode=force_peer&ca=/b'\n",
            Closed,
        ),
        ("ssl_bind host, port, verify_mode: 'force_peer'\n", Closed),
        ("ssl_bind '0.0.0.0', 1, verify_mode: ENV.fetch('VERIFY', 'none')\n", Closed),
        ("mode = ENV.fetch('VERIFY', 'none')\nssl_bind '0.0.0.0', 1, verify_mode: mode\n", Closed),
        ("ssl_bind '0.0.0.0', 1, key: '/k', verify_mode: 'force_peer' if production\n", Closed),
        ("if production\n  ssl_bind '0.0.0.0', 1, verify_mode: 'force_peer'\nend\n", Closed),
        ("if production then ssl_bind '0.0.0.0', 1, verify_mode: 'force_peer' end\n", Closed),
        ("[1, 2].each do |one|\n  ssl_bind '0.0.0.0', one, verify_mode: 'force_peer'\nend\n", Closed),
        ("production and ssl_bind '0.0.0.0', 1, verify_mode: 'force_peer'\n", Closed),
        ("workers 2; ssl_bind '0.0.0.0', 1, verify_mode: 'force_peer'\n", Closed),
        ("bind \"ssl://0.0.0.0:1?verify_mode=#{mode}\"\n", Closed),
        ("bind address\n", Closed),
        ("configure self\n", Closed),
        ("Setup.run(self)\n", Closed),
        ("configure_tls\n", Closed),
        ("instance_eval File.read('x')\n", Closed),
        ("load 'other.rb'\n", Closed),
        ("eval(text)\n", Closed),
        // Addresses.
        ("port 3000\n", Has("listen = \":3000\"")),
        ("port 3000, '127.0.0.1'\n", Has("listen = \"127.0.0.1:3000\"")),
        ("port 3000, '::1'\n", Has("listen = \"[::1]:3000\"")),
        ("bind 'tcp://0.0.0.0:1'\n", Has("listen = \"0.0.0.0:1\"")),
        (
            "bind 'tcp://127.0.0.1:1'\nport 2, '127.0.0.1'\n",
            Has("listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]"),
        ),
        ("bind 'tcp://internal:1'\n", Has("listen = \"127.0.0.1:9292\"")),
        ("bind 'unix:///run/a.sock?umask=0117'\n", Named),
        ("bind 'unix://@a'\n", Has("listen = \"127.0.0.1:9292\"")),
        ("bind 'abstract://a'\n", Has("listen = \"127.0.0.1:9292\"")),
        ("bind 'tcp://0.0.0.0:80' if development\n", Has("listen = \"127.0.0.1:9292\"")),
        ("bind_to_activated_sockets 'only'\n", Closed),
        ("bind 'tcp://0.0.0.0:80'\nclear_binds!\n", Closed),
        ("=begin\nbind 'tcp://0.0.0.0:80'\n=end\nport 1, '127.0.0.1'\n", Has("listen = \"127.0.0.1:1\"\n")),
        ("port 1, '127.0.0.1'\n__END__\nbind 'tcp://0.0.0.0:80'\n", Has("listen = \"127.0.0.1:1\"\n")),
        // The application.
        ("app do |env|\n  [403, {}, []]\nend\n", Closed),
        ("app Guard.new(Shop)\n", Closed),
        ("rackup find\n", Closed),
        ("rackup '/srv/a.ru'\n", Has("rack = \"/srv/a.ru\"")),
        // Clients and methods.
        ("set_remote_address header: 'X-Real-IP'\n", Closed),
        ("set_remote_address proxy_protocol: :v1\n", Closed),
        ("set_remote_address :localhost\n", Closed),
        ("set_remote_address :socket\n", Open),
        ("supported_http_methods ['GET', 'HEAD']\n", Closed),
        ("supported_http_methods :any\n", Open),
        ("http_content_length_limit 1000\n", Has("body = \"1000B\"")),
        ("plugin :tmp_restart\n", Open),
        ("plugin :guard\n", Closed),
        ("on_worker_boot do\n  bind 'x'\nend\n", Named),
        ("puts 'x'\n", Named),
        ("FileUtils.mkdir_p 'tmp'\n", Named),
    ];
    check_files(ImportKind::Puma, "puma.rb", &table);
}

#[test]
fn puma_commands_keep_or_close() {
    let table = [
        ("-b ssl://127.0.0.1:1?verify_mode=force_peer&ca=/ca", Has("client = { ca = \"/ca\" }")),
        ("-b ssl://127.0.0.1:1?verify_mode=force_peer", Closed),
        ("-p 3000 -b tcp://127.0.0.1:1", Has("listen = [\":3000\", \"127.0.0.1:1\"]")),
        ("-C /nowhere/puma.rb", Closed),
        ("-C - -p 3000", Has("listen = \":3000\"")),
        ("--control-url tcp://127.0.0.1:9 --control-token x", Named),
        ("-p $PORT", Has("listen = \"127.0.0.1:9292\"")),
        ("--anything", Closed),
    ];
    check_commands(ImportKind::Puma, &table);
}

#[test]
fn starman_commands_keep_or_close() {
    let table = [
        (
            "--listen 127.0.0.1:1:ssl --ssl-cert /c --ssl-key /k a.psgi",
            Has("address = \"127.0.0.1:1\", tls = true"),
        ),
        (
            "--listen :1:SSL --listen 127.0.0.1:2 a.psgi",
            Has("[{ address = \":1\", tls = true }, \"127.0.0.1:2\"]"),
        ),
        (
            "--enable-ssl --listen :1 --listen /run/a a.psgi",
            Has("[{ address = \":1\", tls = true }, \"unix:/run/a\"]"),
        ),
        ("--enable-ssl a.psgi", Has("address = \":5000\", tls = true")),
        ("--ssl 1 --port 1 a.psgi", Has("address = \":1\", tls = true")),
        ("--enable-ssl --ssl-verify-mode 3 a.psgi", Closed),
        ("-o 127.0.0.1 -p 1 a.psgi", Has("listen = \"127.0.0.1:1\"")),
        ("-o 127.0.0.1 a.psgi", Has("listen = \"127.0.0.1:5000\"")),
        ("--host ::1 --port 1 a.psgi", Has("listen = \"[::1]:1\"")),
        ("--host internal --port 1 a.psgi", Has("listen = \"127.0.0.1:5000\"")),
        ("--port 1 --listen 127.0.0.1:2 a.psgi", Has("listen = \"127.0.0.1:2\"")),
        ("-S /run/a a.psgi", Has("listen = \"unix:/run/a\"")),
        ("--listen 5000 a.psgi", Has("listen = \"unix:5000\"")),
        ("--user www --group www a.psgi", Has("user = \"www\"")),
        ("-e enable('Auth::Basic') a.psgi", Closed),
        ("--path /shop a.psgi", Closed),
        ("--anything x a.psgi", Closed),
        ("--net_server_args x a.psgi", Closed),
        ("-a b.psgi", Has("psgi = \"b.psgi\"")),
        ("--disable-proctitle --read-timeout 3 a.psgi", Has("psgi = \"a.psgi\"")),
    ];
    check_commands(ImportKind::Starman, &table);
}

#[test]
fn passenger_files_keep_or_close() {
    let table = [
        ("{\"port\": 1, \"address\": \"127.0.0.1\"}", Has("listen = \"127.0.0.1:1\"")),
        ("{\"address\": \"127.0.0.1\"}", Has("listen = \"127.0.0.1:3000\"")),
        ("{\"address\": \"::1\", \"port\": 1}", Has("listen = \"[::1]:1\"")),
        ("{\"address\": \"0.0.0.0\", \"port\": 1}", Has("listen = \"0.0.0.0:1\"")),
        ("{\"address\": \"internal\", \"port\": 1}", Has("listen = \"127.0.0.1:3000\"")),
        ("{\"socket_file\": \"/run/a\", \"port\": 1}", Has("listen = \"unix:/run/a\"")),
        ("{\"ssl\": true, \"port\": 1, \"ssl_certificate\": \"/c\"}", Has("address = \":1\", tls = true")),
        (
            "{\"ssl\": true, \"port\": 1, \"ssl_port\": 2, \"ssl_certificate\": \"/c\"}",
            Has("[\":1\", { address = \":2\", tls = true }]"),
        ),
        ("{\"ssl\": true, \"ssl_port\": 2}", Has("[\":3000\", { address = \":2\", tls = true }]")),
        ("{\"nginx_config_template\": \"a.erb\"}", Closed),
        ("{\"app_type\": \"node\", \"startup_file\": \"app.js\"}", Closed),
        ("{\"app_start_command\": \"./server --port=$PORT\"}", Closed),
        ("{\"server_names\": [\"a.test\"]}", Has("hosts = [\"a.test\"]")),
        ("{\"anything\": 1}", Closed),
        ("{\"admin_panel_url\": \"wss://x\", \"sticky_sessions\": true}", Named),
        ("{\"user\": \"app\"}", Has("user = \"app\"")),
    ];
    check_files(ImportKind::Passenger, "Passengerfile.json", &table);
    check_commands(
        ImportKind::Passenger,
        &[
            ("passenger start -a 127.0.0.1 -p 1", Has("listen = \"127.0.0.1:1\"")),
            (
                "passenger start --ssl --ssl-certificate /c --ssl-port 2",
                Has("{ address = \":2\", tls = true }"),
            ),
            ("passenger start --nginx-config-template a.erb", Closed),
        ],
    );
}

#[test]
fn units_and_procfiles_keep_or_close() {
    let unit = |lines: &str, command: &str| -> &'static str {
        format!("[Service]\n{lines}\nExecStart=/usr/bin/gunicorn {command}\n").leak()
    };
    let table = [
        (unit("WorkingDirectory=/", "a:b"), Has("wsgi = \"a:b\"")),
        (unit("IPAddressDeny=any\nIPAddressAllow=10.0.0.0/8", "a:b"), Closed),
        (unit("PrivateNetwork=yes", "a:b"), Closed),
        (unit("Environment=\"GUNICORN_CMD_ARGS=--cert-reqs 2 --certfile /c\"", "a:b"), Closed),
        (
            unit("Environment=\"GUNICORN_CMD_ARGS=--bind 127.0.0.1:1\"", "-b unix:/run/a a:b"),
            Has("listen = \"unix:/run/a\""),
        ),
        (unit("Requires=shop.socket", "a:b"), Has("listen = \"127.0.0.1:8000\"")),
        (unit("LimitNOFILE=1", "a:b"), Named),
        (unit("", "-c missing.py a:b"), Closed),
        (unit("", "-c ${CONFIG} a:b"), Closed),
    ];
    check_files(ImportKind::Gunicorn, "shop.service", &table);
}

#[test]
fn configuration_files_of_commands_are_read() {
    let folder = std::env::temp_dir().join(format!("komainu-import-named-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("config")).unwrap();
    let import = |kind: ImportKind, name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        import::hosting::import(kind, Some(&folder.join(name)), &[]).unwrap().toml
    };
    std::fs::write(folder.join("a.py"), format!("{TLS}cert_reqs = 2\nca_certs = '/ca'\nbind = ':1'\n"))
        .unwrap();
    for command in ["gunicorn -c a.py a:b", "gunicorn --config=file:a.py a:b"] {
        let toml = import(ImportKind::Gunicorn, "Procfile", &format!("web: {command}\n"));
        assert!(toml.contains("client = { ca = \"/ca\" }") && toml.contains("\":1\""), "{toml}");
    }
    let toml = import(ImportKind::Gunicorn, "Procfile", "web: gunicorn -c a.py -b 127.0.0.1:2 a:b\n");
    assert!(toml.contains("listen = { address = \"127.0.0.1:2\", tls = true }"), "{toml}");
    std::fs::rename(folder.join("a.py"), folder.join("gunicorn.conf.py")).unwrap();
    let toml = import(ImportKind::Gunicorn, "Procfile", "web: gunicorn a:b\n");
    assert!(toml.contains("client = { ca = \"/ca\" }"), "{toml}");
    let ssl = "ssl_bind '127.0.0.1', 1, key: '/k', cert: '/c', ca: '/ca', verify_mode: 'force_peer'\n";
    std::fs::write(folder.join("config/puma.rb"), ssl).unwrap();
    let toml = import(ImportKind::Puma, "Procfile", "web: bundle exec puma\n");
    assert!(toml.contains("client = { ca = \"/ca\" }"), "{toml}");
    std::fs::write(folder.join("Passengerfile.json"), "{\"nginx_config_template\": \"x\"}").unwrap();
    let toml = import(ImportKind::Passenger, "Procfile", "web: passenger start\n");
    assert!(toml.contains("respond = 403"), "{toml}");
    std::fs::remove_dir_all(&folder).unwrap();
}
