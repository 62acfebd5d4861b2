//! Applications in configurations.

use crate::{Action, Config};
use apps::{AppKind, PythonInterface, Workers};
use shapes::prefix::StripPrefix;
use std::path::Path;
use std::time::Duration;

fn parse(text: &str) -> Result<Config, String> {
    let parsed = Config::parse(text, "k.toml", Path::new("/etc/k"));
    parsed.map(|(config, _)| config).map_err(|report| report.render(false))
}

#[test]
fn application_and_its_route_are_parsed() {
    let text = "[[route]]\npath = \"/shop/*\"\napp = { name = \"shop\", strip_prefix = true }\n[apps.shop]\n\
        psgi = \"a.psgi\"\nworkers = { min = 2, max = 5 }\nrecycle = { requests = 10_000, memory = \"300MiB\" }\n\
        timeouts = { request = \"5s\" }\nenv = { A = \"b\" }\n";
    let config = parse(text).unwrap();
    let (name, app) = &config.apps[0];
    assert_eq!((name.as_str(), &app.kind), ("shop", &Some(AppKind::Psgi("/etc/k/a.psgi".into()))));
    assert_eq!(app.workers, Some(Workers { min: 2, max: 5 }));
    assert_eq!((app.recycle.requests, app.recycle.memory_bytes), (Some(10_000), Some(300 << 20)));
    assert_eq!(app.timeouts.request, Duration::from_secs(5));
    let Action::App(mounted) = &config.sites[0].routes[0].action else { panic!("an application") };
    assert_eq!((mounted.name.as_str(), &mounted.strip_prefix), ("shop", &StripPrefix::OfRoute));
}

#[test]
fn single_worker_number_sets_minimum_and_maximum() {
    let config = parse("[apps.a]\nrack = \"config.ru\"\nworkers = 3\n").unwrap();
    assert_eq!(config.apps[0].1.workers, Some(Workers { min: 3, max: 3 }));
}

fn python(interface: PythonInterface, callable: &str) -> Option<AppKind> {
    Some(AppKind::Python { interface, callable: callable.to_owned() })
}

#[test]
fn python_targets_are_resolved_from_the_configuration() {
    let config = parse("[apps.a]\nwsgi = \"shop.wsgi:app\"\n[apps.b]\nasgi = \"api/main.py:app\"\n").unwrap();
    let first = &config.apps[0].1;
    let second = &config.apps[1].1;
    assert_eq!(
        (&first.kind, first.folder.as_deref()),
        (&python(PythonInterface::Wsgi, "shop.wsgi:app"), Some(Path::new("/etc/k/")))
    );
    assert_eq!(
        (&second.kind, second.folder.as_deref()),
        (&python(PythonInterface::Asgi, "/etc/k/api/main.py:app"), None)
    );
}

#[test]
fn between_timeout_is_unset_by_default() {
    let text =
        "[apps.a]\npsgi = \"a\"\n[apps.b]\npsgi = \"b\"\ntimeouts = { request = \"5s\", between = \"1m\" }\n";
    let config = parse(text).unwrap();
    let between: Vec<_> = config.apps.iter().map(|(_, app)| app.timeouts.between).collect();
    assert_eq!(between, [None, Some(Duration::from_secs(60))]);
}

#[test]
fn handler_and_websocket_settings_are_parsed() {
    let text = "[apps.a]\nhandler = \"a.so\"\n[apps.b]\nasgi = \"b:app\"\n\
        websockets = { message = \"64KiB\", idle = \"5s\" }\n";
    let config = parse(text).unwrap();
    assert_eq!(config.apps[0].1.kind, Some(AppKind::Native("/etc/k/a.so".into())));
    assert_eq!(config.apps[0].1.websockets.message_bytes_max, 16 << 20);
    let sockets = &config.apps[1].1.websockets;
    assert_eq!((sockets.message_bytes_max, sockets.idle), (64 << 10, Duration::from_secs(5)));
}

#[test]
fn php_is_configured_by_directory_script_or_table() {
    let text = "[apps.a]\nphp = \"site\"\n[apps.b]\nphp = \"public/index.php\"\n[apps.c.php]\nroot = \"/srv/c\"\nfront = false\n\
        ini = { memory_limit = \"256M\", \"opcache.enable\" = true, precision = 10 }\nadmin_ini = { allow_url_fopen = false }\n";
    let config = parse(text).unwrap();
    let php: Vec<_> = config.apps.iter().filter_map(|(_, app)| app.php()).collect();
    let front = |index: usize| php[index].front.as_deref();
    assert_eq!((php[0].root.as_path(), front(0)), (Path::new("/etc/k/site"), Some("/index.php")));
    assert_eq!((php[1].root.as_path(), front(1)), (Path::new("/etc/k/public"), Some("/index.php")));
    assert_eq!((php[2].root.as_path(), front(2)), (Path::new("/srv/c"), None));
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(pairs(&php[2].ini), "memory_limit=256M opcache.enable=1 precision=10");
    assert_eq!(pairs(&php[2].admin_ini), "allow_url_fopen=0");
}

#[test]
fn files_fall_back_to_the_application() {
    let config = parse("[[route]]\nfiles = \"public\"\napp = \"a\"\n[apps.a]\npsgi = \"a\"\n").unwrap();
    let route = &config.sites[0].routes[0];
    assert_eq!(route.action.name(), "files");
    assert_eq!(route.otherwise.as_ref().map(Action::name), Some("app"));
}

#[test]
fn application_errors_name_the_mistake() {
    for (text, said) in [
        ("[apps.a]\n", "an application without a kind"),
        ("[apps.a]\npsgi = \"a\"\nrack = \"b\"\n", "of two kinds"),
        ("[apps.a]\nhandler = \"a.so\"\nwsgi = \"b\"\n", "of two kinds"),
        ("[apps.a]\nasgi = \"a\"\nwebsockets = { idle = \"1ms\" }\n", "too short"),
        ("[apps.a]\npsgi = \"a\"\nworkers = { min = 3, max = 2 }\n", "`min` is more than `max`"),
        ("[apps.a]\npsgi = \"a\"\ntargets = { b = \"c\" }\n", "not Python"),
        (
            "[[route]]\napp = { name = \"a\", target = \"admn\" }\n[apps.a]\nwsgi = \"a\"\ntargets = { admin = \"b\" }\n",
            "did you mean `admin`?",
        ),
        ("[apps.a]\npsgi = \"a\"\nlifespan = \"on\"\n", "not ASGI"),
        ("[apps.a]\nasgi = \"a\"\nlifespan = \"yes\"\n", "lifespan"),
        ("[apps.a]\npsgi = \"a\"\nworkers = 0\n", "too small"),
        ("[apps.a]\nwsgi = \":app\"\n", "the module is missing"),
        ("[apps.a]\npsgi = \"a\"\ngroup = \"www\"\n", "`group` without `user`"),
        ("[apps.a]\nphp = \"a\"\npsgi = \"b\"\n", "of two kinds"),
        ("[apps.a]\nphp = \"a\"\nthreads = 2\n", "PHP has none"),
        ("[apps.a]\nphp = {}\n", "`apps.php.root` is missing"),
        ("[apps.a]\nphp = \"unix:/run/php/fpm.sock\"\n", "beside `files`"),
        ("[apps.a]\nphp = { root = \"a\", front = \"index.html\" }\n", "this is not a script below the root"),
        ("[apps.a]\nphp = { root = \"a/x.php\", front = \"/y.php\" }\n", "a front script already"),
        ("[apps.a]\nphp = { root = \"a\", ini = { \"a b\" = \"c\" } }\n", "the name of a setting"),
        ("[apps.a]\nphp = { root = \"a\", ini = { a = \"b\\nc\" } }\n", "one line"),
        ("[apps.a]\nphp = { root = \"a\", ini = { a = [] } }\n", "a text, a number or a flag"),
        ("[apps.\"a b\"]\npsgi = \"a\"\n", "must not contain ' '"),
        ("[[route]]\napp = \"shoop\"\n[apps.shop]\npsgi = \"a\"\n", "did you mean `shop`?"),
        ("[[route]]\napp = \"a\"\nproxy = \"http://b\"\n[apps.a]\npsgi = \"a\"\n", "two actions"),
        (
            "[[route]]\napp = { name = \"a\", strip_prefix = true }\n[apps.a]\npsgi = \"a\"\n",
            "there is no prefix to remove",
        ),
    ] {
        let report = parse(text).unwrap_err();
        assert!(report.contains(said), "{text}\n{report}");
    }
}
