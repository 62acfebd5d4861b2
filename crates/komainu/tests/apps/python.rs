//! Python frameworks as installed from PyPI, and the ways to name a Python application.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::hosted;
use crate::hosted::{Client, folder, logged, modules, ready, server, start};
use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, text};

/// Returns the virtual environment that contains the frameworks.
fn frameworks() -> PathBuf {
    let environment = rig::environment();
    assert!(
        environment.join("bin/flask").exists(),
        "no Django, FastAPI and Flask in {} (scripts/setup test installs them)",
        environment.display()
    );
    environment
}

/// Copies the applications of `tests/python` into a new directory.
fn applications() -> Folder {
    let folder = Folder::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.at(file.file_name().to_str().unwrap())).unwrap();
    }
    folder
}

/// Runs `komainu run` in the virtual environment.
fn run(folder: Folder, arguments: &[&str]) -> Rig {
    let mut command = server();
    command.args(["run", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(folder.path());
    command.env("VIRTUAL_ENV", frameworks());
    Rig::start(command, folder)
}

/// Uploads a file in a form, as browsers do.
fn upload(rig: &Rig, size: usize) -> (u16, String) {
    let boundary = "7a1f";
    let body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\na note\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
         Content-Type: text/plain\r\n\r\n{}\r\n--{boundary}--\r\n",
        "x".repeat(size)
    );
    let mut client = Client::new(rig.address);
    client.send(format!(
        "POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.answer()
}

/// Checks a session cookie over three requests.
fn counts(rig: &Rig) {
    let mut cookie = String::new();
    for count in ["1", "2", "3"] {
        let answer = rig.ask("/count", &cookie);
        answer.expect(200, count);
        let set = answer.field("Set-Cookie").unwrap().split(';').next().unwrap().to_owned();
        cookie = format!("Cookie: {set}\r\n");
    }
}

fn lines() -> String {
    (0..1000).map(|at| format!("line {at}\n")).collect()
}

#[test]
fn django_runs_by_wsgi_and_by_asgi() {
    for (target, scheme) in [("django_app:wsgi", "wsgi"), ("django_app:asgi", "asgi")] {
        let rig = run(applications(), &[target]);
        rig.get("/hello/you?a=%C3%BC").expect(200, "GET you ü localhost");
        counts(&rig);
        assert_eq!(
            upload(&rig, 300_000),
            (200, r#"{"name": "a.txt", "size": 300000, "note": "a note"}"#.into())
        );
        assert_eq!(Client::new(rig.address).get("/stream").1, lines(), "{scheme}");
        rig.get("/sleepy").expect(200, "awake");
        assert_eq!(Client::new(rig.address).get("/astream").1, lines(), "{scheme}");
        rig.get("/fail").expect_status(500);
        logged(&rig, "ValueError: on purpose");
        rig.get("/absent").expect_status(404);
    }
}

#[test]
fn flask_application_runs() {
    let rig = run(applications(), &["flask_app.py"]);
    let url = format!("flask you 1 http://{}/hello/you?a=1", rig.address);
    rig.ask("/hello/you?a=1", &format!("X-Host: {}\r\n", rig.address)).expect_status(200);
    let mut client = Client::new(rig.address);
    client.send(format!("GET /hello/you?a=1 HTTP/1.1\r\nHost: {}\r\n\r\n", rig.address));
    assert_eq!(client.answer(), (200, url));
    counts(&rig);
    let (status, reported) = upload(&rig, 300_000);
    assert!(status == 200 && reported.contains("\"size\":300000"), "{reported}");
    assert_eq!(client.get("/stream").1, lines());
    let source = fs::read_to_string(rig.folder.at("flask_app.py")).unwrap();
    rig.get("/file").expect(200, &source);
    rig.ask("/file", "Range: bytes=3-7\r\n").expect(206, &source[3..8]);
    rig.get("/absent").expect_status(404);
    rig.get("/fail").expect_status(500);
    logged(&rig, "ValueError: on purpose");
}

#[test]
fn fastapi_application_runs() {
    let mut rig = run(applications(), &["--workers", "1", "fastapi_app:app"]);
    let answer = rig.get("/hello/you?a=1");
    answer.expect_status(200);
    assert!(answer.text().contains(r#""who":"you","a":1,"state":"began""#), "{}", answer.text());
    rig.get("/hello/you?a=x").expect_status(422);
    rig.get("/openapi.json").expect_status(200);
    let (status, reported) = upload(&rig, 300_000);
    assert!(status == 200 && reported.contains("\"size\":300000"), "{reported}");
    let mut client = Client::new(rig.address);
    assert_eq!(client.get("/stream").1, lines());
    client.send(
        "POST /items HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\nContent-Length: 26\r\n\r\n\
         {\"name\":\"tea\",\"price\":1.5}",
    );
    assert_eq!(client.answer(), (200, r#"{"name":"tea","price":1.5}"#.into()));
    assert_eq!(client.get("/later"), (200, "\"now\"".into()));
    logged(&rig, "after the answer");
    rig.get("/fail").expect_status(500);
    logged(&rig, "ValueError: on purpose");
    // Endless event streams block no other request and end when their client disconnects.
    let mut listeners: Vec<_> = (0..20).map(|_| Client::new(rig.address)).collect();
    for listener in &mut listeners {
        listener.send("GET /events HTTP/1.1\r\nHost: a.test\r\n\r\n");
        assert!(listener.head().starts_with("HTTP/1.1 200"));
    }
    assert_eq!(client.get("/stream").1, lines());
    drop(listeners);
    rig.signal("-TERM");
    assert!(rig.ended().success());
    logged(&rig, "lifespan ended");
}

#[test]
fn websockets_library_talks_to_an_asgi_application() {
    let rig = run(applications(), &["--workers", "1", "fastapi_app:app"]);
    ready(&rig, 1);
    let client = Command::new(frameworks().join("bin/python"))
        .arg(rig.folder.at("sockets.py"))
        .arg(format!("ws://{}", rig.address))
        .output()
        .unwrap();
    assert_eq!(text(&client.stdout), "all well\n", "{}", text(&client.stderr));
    logged(&rig, "disconnected 3000");
    logged(&rig, "disconnected 1009");
}

#[test]
fn python_targets_and_interfaces_are_resolved() {
    for (arguments, path, expected) in [
        (&["flask_app:application"][..], "/hello/a", "flask a"),
        (&["flask_app.py:application"], "/hello/a", "flask a"),
        (&["flask_app:create_app('named')"], "/hello/a", "named a"),
        (&["flask_app:create_app(name='keyed')"], "/hello/a", "keyed a"),
        (&["--interface", "wsgi", "flask_app"], "/hello/a", "flask a"),
        (&["fastapi_app:starlette"], "/", "starlette"),
        (&["--interface", "asgi", "fastapi_app:starlette"], "/", "starlette"),
        (&["--interface", "wsgi", "django_app:wsgi"], "/hello/a", "GET a"),
    ] {
        let rig = run(applications(), arguments);
        let answer = rig.get(path);
        answer.expect_status(200);
        assert!(answer.text().starts_with(expected), "{arguments:?}: {}", answer.text());
    }
}

#[test]
fn bare_python_file_with_a_callable_is_served() {
    let app =
        "def application(environ, start_response):\n    start_response('200 OK', [])\n    return [b'bare']\n";
    let rig = run(folder("bare.py", app), &["bare.py"]);
    rig.get("/").expect(200, "bare");
    // Other modules of the same name are ignored.
    let beside = folder("bare.py", app);
    beside.write("bare.so", "no module").write("bare/__init__.py", "raise ValueError");
    let rig = run(beside, &["bare.py"]);
    rig.get("/").expect(200, "bare");
    let rig = run(folder("bare.py", "x = 1\n"), &["bare.py"]);
    let answer = rig.get("/");
    answer.expect_status(500);
    assert!(answer.text().contains("defines no application"), "{}", answer.text());
}

#[test]
fn an_error_at_import_is_shown_with_its_traceback() {
    let rig = run(folder("shop.py", "import json\nimport no_such_module\n"), &["shop:app"]);
    let answer = rig.get("/");
    answer.expect_status(500);
    for shown in ["Traceback", "shop.py", "import no_such_module", "ModuleNotFoundError"] {
        assert!(answer.text().contains(shown), "{shown}: {}", answer.text());
    }
    logged(&rig, "ModuleNotFoundError");
    // The traceback is Python's own, without frames of the worker and the import system.
    rig.expect_report("shop.py\", line 2, in <module>\n      import no_such_module\n");
    let log = rig.reported();
    for own in ["load_or_leave", "load_module", "importlib", " | "] {
        assert!(!log.contains(own) && !answer.text().contains(own), "{own}: {log}");
    }
    // A repeated failure is logged as one line, without the traceback.
    rig.expect_report("still does not load");
    assert_eq!(rig.reported().matches("import no_such_module").count(), 1, "{}", rig.reported());
}

#[test]
fn python_exception_is_logged_without_worker_frames() {
    for (name, call) in
        [("shop", "def app(environ, start_response):"), ("api", "async def app(scope, receive, send):")]
    {
        let text = format!("def deeper():\n    raise ValueError('too deep')\n\n{call}\n    deeper()\n");
        let rig = run(folder(&format!("{name}.py"), &text), &[&format!("{name}:app")]);
        rig.get("/").expect_status(500);
        // A failing lifespan handler is logged with the same text, without a traceback.
        logged(&rig, ", in deeper");
        logged(&rig, "ValueError: too deep");
        let log = rig.reported();
        assert!(log.contains(", in app") && log.contains(", in deeper"), "{log}");
        assert!(!log.contains("workers/python"), "{log}");
    }
}

#[test]
fn one_server_runs_applications_of_three_languages() {
    let folder = applications();
    folder.write("a.psgi", "sub { [200, [], ['perl']] }");
    folder.write("b.ru", "run ->(env) { [200, {}, ['ruby']] }");
    let environment = frameworks();
    let config = format!(
        r#"
        [[route]]
        path = "/perl/*"
        app = "perl"

        [[route]]
        path = "/ruby/*"
        app = "ruby"

        [[route]]
        path = "/api/*"
        app = {{ name = "api", strip_prefix = true }}

        [[route]]
        path = "/shop/*"
        app = {{ name = "shop", strip_prefix = true }}

        [[route]]
        app = "site"

        [apps.perl]
        psgi = "a.psgi"
        workers = 1

        [apps.ruby]
        rack = "b.ru"
        workers = 1

        [apps.api]
        asgi = "fastapi_app:app"
        virtualenv = "{0}"
        workers = 1

        [apps.shop]
        wsgi = "django_app:wsgi"
        virtualenv = "{0}"
        workers = 1
        threads = 4

        [apps.site]
        python = "flask_app.py:create_app('site')"
        virtualenv = "{0}"
        workers = 1
        "#,
        environment.display()
    );
    let rig = start(folder, &config);
    rig.get("/perl/").expect(200, "perl");
    rig.get("/ruby/").expect(200, "ruby");
    rig.get("/shop/hello/you").expect(200, "GET you  localhost");
    let api = rig.get("/api/hello/you");
    let url = format!("\"url\":\"{}://localhost/api/hello/you\"", rig.scheme());
    assert!(api.text().contains(&url), "{}", api.text());
    assert!(rig.get("/hello/you").text().starts_with("site you"));
}

#[test]
fn routes_select_targets_of_an_application() {
    let config = format!(
        r#"
        [[route]]
        path = "/admin/*"
        app = {{ name = "shop", target = "admin", strip_prefix = true }}

        [[route]]
        path = "/api/*"
        app = {{ name = "api", target = "other" }}

        [[route]]
        app = "shop"

        [apps.shop]
        wsgi = "flask_app:create_app('shop')"
        virtualenv = "{0}"
        workers = 1
        targets = {{ admin = "flask_app.py:create_app('admin')" }}

        [apps.api]
        asgi = "fastapi_app:app"
        virtualenv = "{0}"
        workers = 1
        targets = {{ other = "fastapi_app:starlette" }}
        "#,
        frameworks().display()
    );
    let rig = start(applications(), &config);
    assert!(rig.get("/hello/you").text().starts_with("shop you"));
    assert!(rig.get("/admin/hello/you").text().starts_with("admin you"));
    // Starlette's response for a path without a route.
    rig.get("/api/").expect(404, "Not Found");
    rig.get("/admin").expect_status(404);
}

/// Prints how much memory fifty Django workers share and how long the first response takes.
#[test]
#[ignore = "prints figures; run it with --ignored --nocapture on a release build"]
fn memory_of_fifty_django_workers_is_printed() {
    let begun = std::time::Instant::now();
    let rig = run(applications(), &["--workers", "50", "django_app:wsgi"]);
    rig.get("/hello/you").expect_status(200);
    let first = begun.elapsed();
    let mut pids = Vec::new();
    eventually("fifty workers", || {
        pids = hosted::workers(&rig);
        pids.len() == 50
    });
    let all = begun.elapsed();
    let mut clients: Vec<_> = (0..50).map(|_| Client::new(rig.address)).collect();
    for _ in 0..100 {
        clients
            .iter_mut()
            .for_each(|client| client.send("GET /hello/you HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        clients.iter_mut().for_each(|client| assert_eq!(client.answer().0, 200));
    }
    let kib = |pid: &u32, name: &str| -> u64 {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    for name in ["Rss", "Pss", "Private_Dirty"] {
        let sum: u64 = pids.iter().map(|pid| kib(pid, name)).sum();
        eprintln!("{name:14} {:8} KiB in all, {:6} KiB each", sum, sum / 50);
    }
    eprintln!("first answer after {first:?}, fifty workers after {all:?}");
}

#[test]
fn pip_worker_module_and_server_environment_are_found() {
    let folder = folder(
        "app.py",
        "def app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'wheel']\n",
    );
    let environment = folder.at("venv");
    let run = |command: &mut Command| {
        let done = command.stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    // The build writes its output next to the sources, so they are copied.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers");
    run(Command::new("cp")
        .arg("-r")
        .args([source.join("python"), source.join("include")])
        .arg(folder.path()));
    modules();
    let target = Path::new(env!("CARGO_BIN_EXE_komainu")).ancestors().nth(2).unwrap();
    run(Command::new(environment.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .arg(folder.at("python"))
        .env("KOMAINU_LIBRARY", target.join("release")));
    let mut command = komainu();
    command.args(["run", "--listen", "127.0.0.1:0", "app.py"]).current_dir(folder.path());
    command.env("VIRTUAL_ENV", &environment).env("KOMAINU_WORKERS", folder.at("nothing"));
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, "wheel");
    ready(&rig, 2);
    drop(rig);
    // `pip install komainu` installs the server into an environment, which is used if there is no other.
    let installed = Folder::new();
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(installed.at("here")));
    let server = installed.at("here/bin/komainu");
    let program = Path::new(env!("CARGO_BIN_EXE_komainu"));
    fs::hard_link(program, &server).unwrap_or_else(|_| rig::copy_program(&server));
    let app = "import sys\ndef app(environ, start_response):\n    start_response('200 OK', [])\n    return [sys.prefix.encode()]\n";
    let mut command = Command::new(server);
    command.env_remove("VIRTUAL_ENV").env("KOMAINU_WORKERS", modules());
    let folder = hosted::folder("app.py", app);
    command.args(["run", "--listen", "127.0.0.1:0", "app.py"]).current_dir(folder.path());
    let rig = Rig::start(command, folder);
    rig.get("/").expect(200, installed.at("here").to_str().unwrap());
}
