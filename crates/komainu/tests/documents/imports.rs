//! Configurations of other servers on the pages: `komainu import` translates them, and the result is valid.

use crate::configurations::{Files, checked};
use crate::pages::{Block, blocks, page, pages};
use crate::rig::{Folder, komainu, text};

/// The server whose configuration a block contains, by its name in `komainu import`.
fn server_of<'a>(page: &str, block: &'a Block) -> Option<&'a str> {
    match block.language.as_str() {
        "nginx" => Some("nginx"),
        "json" if page == "from/unit.md" => Some("unit"),
        _ => None,
    }
}

/// Returns the command's output for a file with this text.
fn imported(server: &str, source: &str) -> String {
    let folder = Folder::new();
    folder.write("source.conf", source);
    let output = komainu().args(["import", server]).arg(folder.at("source.conf")).output().unwrap();
    assert!(output.status.success(), "{source}\n{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn imported_configurations_are_valid() {
    let files = Files::make();
    let mut count = 0;
    for (name, page) in pages() {
        for block in blocks(&page) {
            let Some(server) = server_of(&name, &block) else { continue };
            let config = imported(server, &block.text);
            let output = checked(&config, &files);
            assert!(output.status.success(), "{name}:\n{config}\n{}", text(&output.stderr));
            count += 1;
        }
    }
    assert!(count >= 5, "{count} configurations of other servers were found");
}

#[test]
fn import_page_example_matches_command_output() {
    let page = page("import.md");
    let blocks = blocks(&page);
    let at = blocks.iter().position(|block| block.language == "nginx").unwrap();
    assert_eq!(imported("nginx", &blocks[at].text), blocks[at + 1].text);
}
