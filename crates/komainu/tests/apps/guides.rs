//! The pages about applications and native handlers: each of their examples is run as it stands there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::hosted::{Client, server};
use crate::rig::{Folder, Rig, environment, text};

/// What stands under one heading: files by name, and commands.
#[derive(Default)]
struct Section {
    title: String,
    files: Vec<(String, String)>,
    commands: Vec<String>,
}

/// The name that a file's first line gives it: `# app.py` or `/* ok.c */`.
fn file_name(text: &str) -> Option<&str> {
    let mut words = text.lines().next()?.split_whitespace();
    let (mark, name) = (words.next()?, words.next()?);
    (matches!(mark, "#" | "/*") && name.contains('.')).then_some(name)
}

fn sections(page: &str) -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        let section = sections.last_mut().unwrap();
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => {
                let (language, text) = open.take().unwrap();
                match (language.as_str(), file_name(&text)) {
                    ("sh", _) => section.commands.extend(text.lines().map(str::to_owned)),
                    (_, Some(name)) => section.files.push((name.to_owned(), text.clone())),
                    (_, None) => {}
                }
            }
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((_, text))) => text.extend([line, "\n"]),
            (None, None) => {
                if let Some(title) = line.strip_prefix("## ") {
                    sections.push(Section { title: title.to_owned(), ..Section::default() });
                }
            }
        }
    }
    sections
}

/// Runs the commands of a section; how many answers were as written.
fn run(section: &Section) -> usize {
    let folder = Folder::new();
    for (name, text) in &section.files {
        folder.write(name, text.replace("127.0.0.1:8080", "127.0.0.1:0"));
    }
    let (mut rig, mut folder, mut answers) = (None::<Rig>, Some(folder), 0);
    for command in &section.commands {
        if let Some(arguments) = command.strip_prefix("komainu ") {
            let place = folder.take().expect("one server a section");
            rig = Some(Rig::start(served(arguments, place.path()), place));
        } else if let Some(asked) = command.strip_prefix("curl http://127.0.0.1:8080") {
            let (path, expected) = asked.split_once('#').expect("what comes back");
            let rig = rig.as_ref().expect("a server before its client");
            assert_eq!(Client::new(rig.address).get(path.trim()), (200, expected.trim().to_owned()));
            answers += 1;
        } else {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let command = command.replace("workers/include", &root.join("workers/include").to_string_lossy());
            let place = folder.as_ref().unwrap().path();
            let done = Command::new("sh").args(["-c", &command]).current_dir(place).output().unwrap();
            assert!(done.status.success(), "{command}\n{}", text(&done.stderr));
        }
    }
    answers
}

/// The server with these arguments, on a port that is free, in the environment of the tests.
fn served(arguments: &str, place: &Path) -> Command {
    let environment = environment();
    assert!(environment.exists(), "no virtual environment in {} (scripts/setup test)", environment.display());
    let mut command = server();
    // As a shell splits them: some stand in quotes.
    let (words, quoted) =
        arguments.split_once(" \"").map_or((arguments, None), |(words, rest)| (words, Some(rest)));
    command.args(words.split(' ')).args(quoted.map(|text| text.trim_end_matches('"')));
    if words.starts_with("run") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.current_dir(place).env("VIRTUAL_ENV", environment);
    command
}

fn every_example(page: &str, answers: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let page = fs::read_to_string(path).unwrap();
    let mut seen = 0;
    for section in sections(&page).iter().filter(|section| !section.commands.is_empty()) {
        eprintln!("## {}", section.title);
        seen += run(section);
    }
    assert_eq!(seen, answers);
}

#[test]
fn perl_and_ruby() {
    every_example("applications.md", 6);
}

#[test]
fn python() {
    every_example("python.md", 6);
}

#[test]
fn native() {
    every_example("native.md", 1);
}
