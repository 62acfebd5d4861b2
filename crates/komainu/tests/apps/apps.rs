//! Applications from the user's side: how they are started, their environment, and what status and logs report.

use std::process::Command;

use crate::hosted;
use crate::hosted::{Client, folder, logged, modules, only, processes, ready, run, server, start, status};
use crate::rig;
use crate::rig::{Folder, Rig, komainu, text};

const PERL: &str = "sub { [200, ['Content-Type' => 'text/plain'], [\"perl $_[0]{PATH_INFO}\"]] }";
const RUBY: &str =
    "run ->(env) { [200, { 'content-type' => 'text/plain' }, [\"ruby #{env['PATH_INFO']}\"]] }";

#[test]
fn check_and_reload_reject_too_many_workers() {
    let big = only("psgi = \"app.psgi\"\nworkers = { min = 1, max = 1024 }\nthreads = 16");
    let rig =
        start(folder("app.psgi", "sub { [200, [], ['one']] }"), &only("psgi = \"app.psgi\"\nworkers = 1"));
    rig.get("/").expect(200, "one");
    let path = rig.folder.at("big.toml");
    std::fs::write(&path, &big).unwrap();
    let checked = server().arg("check").arg("-c").arg(&path).output().unwrap();
    let reported = text(&checked.stderr);
    assert!(!checked.status.success() && reported.contains("the application shop: "), "{reported}");
    assert!(reported.contains("4096"), "{reported}");
    // A reload reports the same problem and keeps the running configuration.
    rig.folder.write("komainu.toml", format!("{}{}", rig::listen(&rig.folder), big.replace("shop", "other")));
    rig.signal("-HUP");
    logged(&rig, "the application other: ");
    rig.get("/").expect(200, "one");
}

#[test]
fn run_serves_a_psgi_file() {
    let rig = run(folder("app.psgi", PERL), &["app.psgi"]);
    rig.get("/a%20b").expect(200, "perl /a b").expect_field("Content-Type", "text/plain");
}

#[test]
fn run_serves_a_rackup_file() {
    let rig = run(folder("config.ru", RUBY), &["config.ru"]);
    rig.get("/a").expect(200, "ruby /a");
}

#[test]
fn run_serves_bare_perl_and_ruby_files() {
    let rig = run(folder("hello.pl", PERL), &["hello.pl"]);
    rig.get("/a").expect(200, "perl /a");
    let ruby = "->(env) { [200, {}, ['plain ruby']] }";
    let rig = run(folder("hello.rb", ruby), &["hello.rb"]);
    rig.get("/a").expect(200, "plain ruby");
}

#[test]
fn static_files_take_precedence_over_the_application() {
    let folder = folder("app.psgi", PERL);
    folder.write("public/a.txt", "a file");
    let rig = run(folder, &["public", "app.psgi"]);
    rig.get("/a.txt").expect(200, "a file");
    rig.get("/b.txt").expect(200, "perl /b.txt");
    rig.get("/").expect(200, "perl /");
    let mut client = Client::new(rig.address);
    assert_eq!(client.post("/a.txt", "x"), (200, "perl /a.txt".to_owned()));
}

#[test]
fn workers_argument_sets_the_number_of_workers() {
    let rig = run(folder("app.psgi", PERL), &["--workers", "3", "app.psgi"]);
    ready(&rig, 3);
    let rig = run(
        folder("config.ru", "run ->(_) { [200, {}, [Thread.current.object_id.to_s]] }"),
        &["--workers", "1", "--worker-threads", "4", "config.ru"],
    );
    ready(&rig, 1);
    rig.get("/").expect_status(200);
}

#[test]
fn load_error_of_an_application_is_shown_and_logged() {
    for (name, text) in
        [("app.psgi", "die 'no <database> here'"), ("config.ru", "raise 'no <database> here'")]
    {
        let rig = run(folder(name, text), &[name]);
        let page = rig.get("/");
        page.expect_status(500).expect_field("Content-Type", "text/html; charset=utf-8");
        assert!(page.text().contains("no &lt;database&gt; here"), "{}", page.text());
        logged(&rig, "does not load: ");
        rig.expect_report("no <database> here");
        rig.expect_report("still does not load");
        let log = rig.reported();
        assert_eq!(log.matches("no <database> here").count(), 1, "{log}");
        assert!(!log.contains(" | ") && !log.contains("komainu.rb"), "{log}");
    }
}

#[test]
fn perl_stack_traces_omit_worker_frames() {
    let trace = "use Carp; sub deeper { Carp::confess('too deep') } sub middle { deeper() }";
    for application in [format!("{trace} sub {{ middle() }}"), format!("{trace} middle(); sub {{ }}")] {
        let rig = run(folder("app.psgi", &application), &["app.psgi"]);
        rig.get("/").expect_status(500);
        logged(&rig, "middle() called at");
        let log = rig.reported();
        assert!(!log.contains("Komainu.pm") && !log.contains("worker.pl"), "{log}");
    }
}

#[test]
fn run_reports_missing_files_and_worker_modules() {
    let reported = |arguments: &[&str], folder: &Folder| {
        let output = server()
            .args(["run", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let folder = folder("app.psgi", PERL);
    assert!(reported(&["shop.psgi"], &folder).contains("`psgi`: there is no file /"));
    folder.write("config.ru", RUBY);
    let two = reported(&["app.psgi", "config.ru"], &folder);
    assert!(two.contains("one application"), "{two}");
    let mut command = komainu();
    command.env("KOMAINU_WORKERS", folder.path()).current_dir(folder.path());
    command.args(["run", "--listen", "127.0.0.1:0", "app.psgi"]);
    let missing = text(&command.output().unwrap().stderr);
    assert!(
        missing.contains("the worker module for perl is missing") && missing.contains("make build"),
        "{missing}"
    );
}

#[test]
fn configured_interpreter_runs_the_application() {
    let folder = folder("app.psgi", "sub { [200, [], [$ENV{WRAPPED}]] }");
    folder.write("perl", "#!/bin/sh\nWRAPPED=yes exec perl \"$@\"\n");
    let made = Command::new("chmod").args(["+x"]).arg(folder.at("perl")).status().unwrap();
    assert!(made.success());
    let perl = format!("psgi = \"app.psgi\"\ninterpreter = \"{}\"", folder.at("perl").display());
    start(folder, &only(&perl)).get("/").expect(200, "yes");
}

#[test]
fn folder_environment_and_limits_apply_to_application() {
    let folder = folder(
        "shop/app.psgi",
        "use Cwd; my $said = join ' ', getcwd(), $ENV{GREETING}, scalar `sh -c 'ulimit -n; ulimit -c'`; sub { [200, [], [$said]] }",
    );
    folder.write("data/here", "");
    let app = r#"
        psgi = "shop/app.psgi"
        folder = "data"
        env = { GREETING = "moin moin" }
        limits = { files = 99, core = "0B" }
    "#;
    let data = folder.at("data").canonicalize().unwrap();
    let rig = start(folder, &only(app));
    rig.get("/").expect(200, &format!("{} moin moin 99\n0\n", data.display()));

    let beside = hosted::folder("shop/app.psgi", "use Cwd; my $cwd = getcwd(); sub { [200, [], [$cwd]] }");
    let place = beside.at("shop").canonicalize().unwrap();
    start(beside, &only("psgi = \"shop/app.psgi\"")).get("/").expect(200, place.to_str().unwrap());
}

#[test]
fn worker_that_exceeds_memory_limit_is_replaced() {
    let app =
        "my @all; sub { my $n = $_[0]{QUERY_STRING}; push @all, 'x' x ($n << 20); [200, [], ['kept']] }";
    let rig = start(
        folder("app.psgi", app),
        &only("psgi = \"app.psgi\"\nworkers = 1\nlimits = { memory = \"200MiB\" }"),
    );
    rig.get("/?1").expect(200, "kept");
    // Perl exits when an allocation fails: the request is lost, and the next one gets a new worker.
    rig.get("/?400").expect_status(502);
    rig.get("/?1").expect(200, "kept");
}

#[test]
fn application_runs_as_configured_user_and_group() {
    let id = Command::new("id").arg("-u").output().unwrap();
    if text(&id.stdout).trim() != "0" {
        eprintln!("SKIPPED: only root can run an application as another user");
        return;
    }
    let folder = folder("app.psgi", "sub { [200, [], [\"$< $> \" . (split ' ', $))[0] . ' ' . `id -Gn`]] }");
    // The build directory may be unreadable for that user, so the modules are copied.
    let copied = Command::new("cp").arg("-r").arg(modules()).arg(folder.at("workers")).status().unwrap();
    assert!(copied.success());
    folder.write(
        "komainu.toml",
        format!(
            "listen = \"127.0.0.1:0\"\n{}",
            only("psgi = \"app.psgi\"\nuser = \"nobody\"\ngroup = \"daemon\"")
        ),
    );
    let mut command = komainu();
    command
        .env("KOMAINU_WORKERS", folder.at("workers"))
        .arg("start")
        .arg("-c")
        .arg(folder.at("komainu.toml"));
    Rig::start(command, folder).get("/").expect(200, "65534 65534 1 daemon\n");
}

#[test]
fn output_goes_to_the_log_with_name_and_process() {
    let app = "sub { print \"to stdout\\n\"; warn \"to stderr\\n\"; \
               $_[0]{'psgi.errors'}->print(\"to psgi.errors\\n\"); [200, [], [$$]] }";
    let rig = run(folder("shop.psgi", app), &["--workers", "1", "shop.psgi"]);
    let pid = rig.get("/").text();
    for said in ["to stdout", "to stderr", "to psgi.errors"] {
        logged(&rig, &format!("app: shop[{pid}]: {said}\n"));
    }
}

#[test]
fn script_name_is_set_by_strip_prefix() {
    let folder = folder("app.psgi", "sub { [200, [], [join '|', @{$_[0]}{qw(SCRIPT_NAME PATH_INFO)}]] }");
    let config = r#"
        [[route]]
        path = "/shop/*"
        app = { name = "shop", strip_prefix = true }
        [[route]]
        app = "shop"
        [apps.shop]
        psgi = "app.psgi"
    "#;
    let rig = start(folder, config);
    rig.get("/shop/a").expect(200, "/shop|/a");
    rig.get("/shopping").expect(200, "|/shopping");
}

#[test]
fn one_server_runs_perl_and_ruby_applications() {
    let folder = folder("app.psgi", PERL);
    folder.write("config.ru", RUBY);
    let config = r#"
        [[route]]
        path = "/ruby/*"
        app = "r"

        [[route]]
        app = "p"

        [apps.p]
        psgi = "app.psgi"

        [apps.r]
        rack = "config.ru"
    "#;
    let rig = start(folder, config);
    rig.get("/a").expect(200, "perl /a");
    rig.get("/ruby/a").expect(200, "ruby /ruby/a");
}

#[test]
fn status_reports_every_process() {
    let rig = run(folder("shop.psgi", PERL), &["--workers", "2", "shop.psgi"]);
    let pids = ready(&rig, 2);
    let mut client = Client::new(rig.address);
    (0..10).for_each(|_| assert_eq!(client.get("/").0, 200));
    // A worker may still be releasing its last request.
    assert_eq!(ready(&rig, 2), pids);
    let all = processes(&rig);
    let states: Vec<&str> = all.iter().map(|process| process.state.as_str()).collect();
    assert_eq!(states, ["prototype", "ready", "ready"]);
    assert_eq!(all.iter().map(|process| process.requests).sum::<u64>(), 10);
    let reported = status(&rig);
    assert_eq!(reported["pid"].as_u64(), Some(u64::from(rig.child.id())));
    assert_eq!(reported["apps"][0]["name"], "shop");
    for usage in [&reported["usage"], &reported["apps"][0]["processes"][1]["usage"]] {
        let of = |key: &str| usage[key].as_u64().unwrap();
        assert!(of("rss_bytes") >= of("pss_bytes") && of("pss_bytes") > 0, "{usage}");
        assert!(of("private_dirty_bytes") > 0 && usage["cpu_ms"].is_u64(), "{usage}");
    }
    let table = komainu().args(["status", "--pid", &rig.child.id().to_string()]).output().unwrap();
    let table = text(&table.stdout);
    let line = |pid: u32| table.lines().find(|line| line.contains(&pid.to_string())).map(str::to_owned);
    assert!(line(rig.child.id()).unwrap().contains("server"), "{table}");
    assert!(pids.iter().all(|pid| line(*pid).unwrap().contains("ready")), "{table}");
    assert!(table.contains(&rig.listens.to_string()) && table.contains("4 processes"), "{table}");
    let nobody = komainu().args(["status", "--pid", "1"]).output().unwrap();
    assert!(!nobody.status.success() && text(&nobody.stderr).contains("process 1"));
}
