//! The generated documents are in step with the directives, and what they show works.

use crate::{compare, place};
use config::{Config, include_patterns, join_files, reference, schema};
use std::path::{Path, PathBuf};

#[test]
fn generated_reference_is_up_to_date() {
    compare(&place("../../docs/configuration.md"), &reference());
}

#[test]
fn examples_of_the_reference_parse() {
    let text = reference();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 8);
    for example in examples {
        if let Err(report) = Config::parse(example, "example", Path::new("")) {
            panic!("{report}\n{example}");
        }
    }
}

#[test]
fn examples_of_the_limits_and_auth_pages_are_valid() {
    let page = |name: &str| std::fs::read_to_string(place(&format!("../../docs/{name}.md"))).unwrap();
    let text = page("limits") + &page("auth");
    let blocks = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    // The cells of its tables that are whole directives.
    let cells = text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`'));
    let cells = cells.filter(|cell| cell.starts_with("limit = "));
    let cells = cells.map(|cell| {
        format!(
            r"
            [[route]]
            respond = 204
            {cell}
            "
        )
    });
    let examples: Vec<String> = blocks.chain(cells).collect();
    assert!(examples.len() >= 14);
    for example in examples {
        if let Err(report) = Config::parse(&example, "example", Path::new("")) {
            panic!("{report}\n{example}");
        }
    }
}

#[test]
fn examples_of_the_page_on_releases_parse() {
    let text = std::fs::read_to_string(place("../../docs/releases.md")).unwrap();
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 4);
    for example in examples {
        if let Err(report) = Config::parse(example, "example", Path::new("")) {
            panic!("{report}\n{example}");
        }
    }
}

/// The pages below a folder.
fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            pages_below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// The page with each example as `komainu fmt` writes it, and how many there are.
fn formatted(page: &str) -> (String, usize) {
    let mut out = String::new();
    let mut count = 0;
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("```toml\n") {
        let (example, after) = after.split_once("```").expect("an example ends");
        let example = config::format(example).unwrap_or_else(|fault| panic!("{fault}\n{example}"));
        out.push_str(&format!("{before}```toml\n{example}```"));
        (rest, count) = (after, count + 1);
    }
    (out + rest, count)
}

#[test]
fn examples_are_formatted_by_fmt() {
    let mut pages = vec![place("../../README.md")];
    let mut count = 0;
    pages_below(&place("../../docs"), &mut pages);
    for path in pages {
        let (page, examples) = formatted(&std::fs::read_to_string(&path).unwrap());
        compare(&path, &page);
        count += examples;
    }
    assert!(count > 100, "{count}");
}

#[test]
fn every_directive_is_in_the_reference_and_in_the_schema() {
    let text = reference();
    let schema = schema();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    let mut count = 0;
    for (name, property) in tables.flat_map(|table| table["properties"].as_object().unwrap()) {
        assert!(text.contains(&format!("\n### `{name}`\n")), "{name}");
        assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        count += 1;
    }
    assert_eq!(text.matches("\n### `").count(), count);
    assert!(count >= 60, "{count}");
}

/// The configuration of a file, of those that it includes, and of an environment.
fn read(main: &str, included: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Config, String> {
    let included: Vec<_> =
        included.iter().map(|(name, text)| (PathBuf::from(name), (*text).to_owned())).collect();
    let value = |name: &str| {
        environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let parsed = Config::parse_with(&join_files(main, &included), "main.toml", Path::new("/srv"), &value);
    parsed.map(|(config, _)| config).map_err(|report| report.to_string())
}

#[test]
fn included_files_add_to_the_main_file() {
    let one = r#"
        listen = ":80"
        include = "a.toml"

        [limits]
        body = "1MiB"

        [[site]]
        hosts = "a.test"

        [[site.route]]
        files = "www"

        [[route]]
        respond = 204
    "#;
    let two = r#"
        # The second.
        [limits]
        head = "32KiB"

        [[site]]
        hosts = "b.test"

        [[site.route]]
        respond = 200

        [upstreams.app]
        to = "http://127.0.0.1:3000"
    "#;
    assert_eq!(include_patterns(one, &|_| None), ["a.toml"]);
    assert_eq!(
        include_patterns("include = [\"a\", \"b/${SITE}/*.toml\"]", &|_| Some("b".into())),
        ["a", "b/b/*.toml"]
    );
    assert!(
        include_patterns("include = 1\n", &|_| None).is_empty()
            && include_patterns("include = [", &|_| None).is_empty()
    );
    let config = read(one, &[("a.toml", two)], &[]).unwrap();
    assert_eq!((config.limits.body_bytes_max, config.limits.head_bytes_max), (Some(1 << 20), 32 << 10));
    let hosts: Vec<String> =
        config.sites.iter().flat_map(|site| &site.hosts).map(ToString::to_string).collect();
    assert_eq!(hosts, ["a.test", "b.test"]);
    let line = |host: &str| {
        let site = config.sites.iter().find(|site| site.hosts.iter().any(|name| name.to_string() == host));
        site.and_then(|site| site.line.as_ref()).unwrap().to_string()
    };
    assert_eq!((line("a.test"), line("b.test")), ("line 8".into(), "line 6 of a.toml".into()));
    assert_eq!(config.upstreams.len(), 1);
}

#[test]
fn errors_in_included_files_name_the_file() {
    let fault = |main: &str, included: &str| read(main, &[("sites/b.toml", included)], &[]).unwrap_err();
    let text = fault("threads = 2\n", "\n\nthread = 2\n");
    assert!(text.contains("--> sites/b.toml:3:1"), "{text}");
    let text = fault("threads = 2\n", "\n# x\nthreads = 2\n");
    assert!(
        text.contains("`threads` is given in two files") && text.contains("--> sites/b.toml:3:1"),
        "{text}"
    );
    assert!(text.contains("::: main.toml:1:1") && text.contains("first given here"), "{text}");
    let text = fault("", "server {\n}\n");
    assert!(text.contains("--> sites/b.toml:1:") && text.contains("configuration of nginx"), "{text}");
    let text = fault(
        r#"
        [[site]]
        hosts = "a"
        [[site.route]]
        respond = 200
        "#,
        "[[site]]\nhosts = \"a\"\n",
    );
    assert!(text.contains("duplicate host `a`") && text.contains("::: main.toml:3:17"), "{text}");
    let text = fault("listen = [\":80\"]\n", "listen = [\":81\"]\n");
    assert!(text.contains("`listen` is given in two files"), "{text}");
    let text = fault("[log]\naccess = \"off\"\n", "log = 1\n");
    assert!(text.contains("`log` is given in two files"), "{text}");
}

#[test]
fn environment_variables_are_expanded_in_strings() {
    let environment =
        [("PORT", "8081"), ("THREADS", "3"), ("EMPTY", ""), ("YES", "true"), ("EVIL", "\"\n[x]\n${PORT}")];
    let config = |text: &str| read(text, &[], &environment);
    let one =
        config("listen = \":${PORT}\"\nthreads = \"${THREADS}\"\nsandbox = \"${NO:-false}\"\n").unwrap();
    assert_eq!((one.listen[0].address.to_string(), one.threads, one.sandbox), (":8081".into(), 3, false));
    let one = config(
        r#"
        threads = "${EMPTY:-2}"
        [limits]
        body = "${N:-3}${UNIT:-MiB}"
        "#,
    )
    .unwrap();
    assert_eq!((one.threads, one.limits.body_bytes_max), (2, Some(3 << 20)));
    // Variables of templates are no environment, and `$$` is a dollar sign there.
    let one = config("[[route]]\nredirect = \"https://${host}:${PORT}/$${PORT}$path\"\n").unwrap();
    assert!(
        format!("{:?}", one.sites[0].routes[0].action).contains("8081"),
        "{:?}",
        one.sites[0].routes[0].action
    );
    // A value is never read as TOML, nor looked through for further variables.
    let text = config("user = \"${EVIL}\"\nthreads = \"four ${THREADS}\"\n").unwrap_err();
    assert!(text.contains("invalid value for `threads`") && !text.contains("`x`"), "{text}");
    assert_eq!(config("user = \"${EVIL}\"\n").unwrap().user.unwrap(), "\"\n[x]\n${PORT}");
    let text = config("[[route]]\nproxy = \"http://127.0.0.1:${APP_PORT}\"\n").unwrap_err();
    assert!(
        text.contains("the environment has no `APP_PORT`") && text.contains("`${APP_PORT:-value}`"),
        "{text}"
    );
    assert!(text.contains("--> main.toml:2:9"), "{text}");
    let text = config("threads = \"3\"\n").unwrap_err();
    assert!(text.contains("this is a string"), "{text}");
}

#[test]
fn expanded_environment_variables_are_limited_in_size() {
    let value = "x".repeat(1 << 16);
    let routes = "[[route]]\nrespond = \"${BIG}\"\n".repeat(17);
    let text = read(&routes, &[], &[("BIG", &value)]).unwrap_err();
    assert!(text.contains("environment variables add more than 1048576 bytes"), "{}", &text[..200]);
}
