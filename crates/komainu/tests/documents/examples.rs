//! The configurations in `examples`.

use std::path::{Path, PathBuf};

use crate::hosted::server;
use crate::rig::{Folder, Rig, text};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn configurations() -> Vec<PathBuf> {
    let files = std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    found.sort();
    found
}

#[test]
fn each_example_is_valid_and_listed() {
    let page = std::fs::read_to_string(examples().join("README.md")).unwrap();
    let found = configurations();
    assert_eq!(found.len(), 10);
    for path in found {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("[{name}]({name})")), "{name} is not in README.md");
        let checked = server().arg("check").arg("-c").arg(&path).output().unwrap();
        assert!(checked.status.success(), "{name}: {}", text(&checked.stderr));
    }
}

#[test]
fn examples_answer_as_their_first_lines_say() {
    let mut count = 0;
    for path in configurations() {
        let config = std::fs::read_to_string(&path).unwrap();
        let Some((_, said)) = config.split_once("GET ") else { continue };
        let mut words = said.split_whitespace();
        let target = words.next().unwrap();
        let status: u16 = words.find_map(|word| word.trim_end_matches('.').parse().ok()).unwrap();
        let rest: String = config
            .lines()
            .filter(|line| !line.starts_with("listen"))
            .map(|line| format!("{line}\n"))
            .collect();
        // Nobody listens on the ports of the servers that are named.
        let rest = rest.replace("127.0.0.1:300", "127.0.0.1:1000");
        let folder = Folder::new();
        for name in ["public/index.html", "public/assets/style.css"] {
            folder.write(name, std::fs::read(examples().join(name)).unwrap());
        }
        let rig = Rig::config(folder, &rest);
        assert_eq!(rig.get(target).status(), status, "{}", path.display());
        count += 1;
    }
    assert!(count >= 5, "{count}");
}
