//! The generated documents are in step with the directives, and what they show works.

use crate::{compare, place};
use config::{Config, reference, schema};
use std::path::Path;

#[test]
fn the_reference_is_in_step() {
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
fn examples_of_the_page_on_limits_parse() {
    let text = std::fs::read_to_string(place("../../docs/limits.md")).unwrap();
    let blocks = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    // The cells of its tables that are whole directives.
    let cells = text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`'));
    let cells = cells.filter(|cell| cell.starts_with("limit = "));
    let cells = cells.map(|cell| format!("[[route]]\nrespond = 204\n{cell}\n"));
    let examples: Vec<String> = blocks.chain(cells).collect();
    assert!(examples.len() >= 8);
    for example in examples {
        if let Err(report) = Config::parse(&example, "example", Path::new("")) {
            panic!("{report}\n{example}");
        }
    }
}

#[test]
fn every_directive_is_in_the_reference_and_in_the_schema() {
    let (text, schema) = (reference(), schema());
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
