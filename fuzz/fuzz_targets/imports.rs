//! Fuzzes configuration files of other servers; the first byte selects the importer. The result must be valid
//! TOML, and its report must not be empty.
#![no_main]

#[path = "../../crates/config/tests/support/laws.rs"]
mod laws;

use std::path::PathBuf;
use std::sync::LazyLock;

use import::ImportKind;
use libfuzzer_sys::fuzz_target;

/// Temporary folder of this process, so that includes find no other files.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("komainu-fuzz-imports-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("source")
});

fuzz_target!(|input: &[u8]| {
    let Some((first, text)) = input.split_first() else { return };
    std::fs::write(&*FILE, text).unwrap();
    let (_, kind) = ImportKind::ALL[usize::from(*first) % ImportKind::ALL.len()];
    let imported = match kind {
        ImportKind::Nginx => import::nginx::import(&FILE, None),
        ImportKind::Caddy => import::caddy::import(&FILE),
        ImportKind::Ingress => import::ingress::import(&FILE),
        ImportKind::Unit => import::unit::import(&FILE),
        kind => import::hosting::import(kind, Some(&FILE), &[]),
    };
    match imported {
        Ok(imported) => {
            if let Err(error) = imported.toml.parse::<toml_edit::DocumentMut>() {
                panic!("{error}\n{}", imported.toml);
            }
            laws::configuration(&imported.toml);
            assert!(!imported.report().is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
