//! Checks that imports inside a crate go down: a file uses only modules that are declared above its own.

use std::collections::HashMap;

use crate::tidy::finding::TidyFinding;
use crate::tidy::modules::{CrateModules, ModulePath, NamedPathUse, crate_roots, named_paths};
use crate::tidy::source::SourceFile;
use crate::tidy::tree::{SourceTree, is_test_path};

/// Returns all findings about the order of modules.
pub(crate) fn check(tree: &SourceTree) -> Vec<TidyFinding> {
    crate_roots(tree).iter().flat_map(|root| check_crate(tree, root)).collect()
}

fn check_crate(tree: &SourceTree, root: &str) -> Vec<TidyFinding> {
    let modules = CrateModules::read(tree, root);
    let paths: HashMap<&ModulePath, Vec<NamedPathUse>> = modules
        .files
        .iter()
        .filter_map(|(path, file)| {
            Some((path, named_paths(&modules, path, &SourceFile::new(tree.text(file)?))))
        })
        .collect();
    let mut findings = Vec::new();
    for (here, file) in modules.files.iter().filter(|(_, file)| !is_test_path(file)) {
        for one in paths.get(here).into_iter().flatten() {
            let target = resolve_path(&modules, &paths, &one.path);
            if let Some((what, remedy)) = order_violation(&modules, &paths, here, &target, one) {
                findings.push(TidyFinding::new(file, one.line, what, remedy));
            }
        }
    }
    findings
}

/// Returns the module that a path leads to, following the root's re-exports.
fn resolve_path(
    modules: &CrateModules,
    paths: &HashMap<&ModulePath, Vec<NamedPathUse>>,
    path: &[String],
) -> ModulePath {
    let module = modules.module_of(path);
    let Some(item) = path.first().filter(|_| module.is_empty()) else { return module };
    let exported = paths
        .get(&ModulePath::new())
        .into_iter()
        .flatten()
        .find(|n| n.is_reexported && n.path.last() == Some(item));
    exported.map_or(module, |exported| modules.module_of(&exported.path))
}

fn order_violation(
    modules: &CrateModules,
    paths: &HashMap<&ModulePath, Vec<NamedPathUse>>,
    here: &[String],
    target: &[String],
    one: &NamedPathUse,
) -> Option<(String, &'static str)> {
    let shared = here.iter().zip(target).take_while(|(a, b)| a == b).count();
    let parent = &here[..shared];
    match (here.get(shared), target.get(shared)) {
        (Some(own), Some(other)) => {
            let is_above = modules.child_index(parent, other) < modules.child_index(parent, own);
            let what = || format!("`{own}` uses `{other}`, which is declared below it");
            (!is_above)
                .then(|| (what(), "move the declaration up, or the shared part into a module above both"))
        }
        // Items of the root are above all modules; macros are exempt because they cannot be anywhere else.
        (Some(own), None) if target.is_empty() && !one.is_macro => {
            let item = one.path.join("::");
            Some((
                format!("`{own}` uses `{item}` of the crate's root"),
                "move it into a module above this one",
            ))
        }
        (Some(own), None) if !target.is_empty() => {
            let parent_uses = |n: &NamedPathUse| {
                !n.is_reexported && modules.module_of(&n.path).starts_with(&here[..=shared])
            };
            let circle = paths.get(&target.to_vec()).into_iter().flatten().any(parent_uses);
            let parent = target.join("::");
            let what = || format!("`{own}` and its parent `{parent}` use each other");
            circle.then(|| (what(), "move what both need into a module above"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "mod low;\nmod high;\npub use high::{Tall, inner::Deep};\n";

    fn find_all(files: &[(&str, &str)]) -> Vec<String> {
        let mut all =
            vec![("c/src/lib.rs", ROOT), ("c/src/low.rs", ""), ("c/src/high.rs", "mod inner;\nmod outer;")];
        for &(name, text) in files {
            all.retain(|(other, _)| *other != name);
            all.push((name, text));
        }
        check(&SourceTree::of(&all)).iter().map(|finding| format!("{finding}")).collect()
    }

    #[test]
    fn upward_import_is_reported_in_every_notation() {
        assert!(find_all(&[("c/src/high.rs", "use crate::low::A; fn f() { super::low::b() }")]).is_empty());
        for code in [
            "use crate::high::A;",
            "use crate::{high};",
            "use super::high::*;",
            "fn f() {\n crate::high::a() }",
            "use crate::Tall;",
            "use crate::{Deep as D};",
        ] {
            let reported = find_all(&[("c/src/low.rs", code)]);
            assert_eq!(reported.len(), 1, "{code}: {reported:?}");
            assert!(reported[0].contains("`low` uses `high`, which is declared below it"), "{reported:?}");
        }
    }

    #[test]
    fn nested_siblings_are_checked_too() {
        assert!(find_all(&[("c/src/high/outer.rs", "use super::inner::A; use crate::low::B;")]).is_empty());
        assert_eq!(find_all(&[("c/src/high/inner.rs", "use super::outer::A;")]).len(), 1);
        assert_eq!(find_all(&[("c/src/high/inner.rs", "use crate::high::outer::A;")]).len(), 1);
    }

    #[test]
    fn tests_may_import_upwards() {
        assert!(find_all(&[("c/src/low.rs", "#[cfg(test)]\nmod tests { use crate::high::A; }")]).is_empty());
    }

    #[test]
    fn crate_root_provides_only_macros() {
        assert!(find_all(&[("c/src/low.rs", "fn f() { crate::say!(1) }")]).is_empty());
        let reported = find_all(&[("c/src/low.rs", "use crate::Whatever;")]);
        assert!(reported[0].contains("`Whatever` of the crate's root"), "{reported:?}");
    }

    #[test]
    fn parent_and_child_must_not_use_each_other() {
        let child = ("c/src/high/inner.rs", "use super::Item;");
        assert!(
            find_all(&[child, ("c/src/high.rs", "mod inner;\npub use inner::X;\npub struct Item;")])
                .is_empty()
        );
        let reported = find_all(&[child, ("c/src/high.rs", "mod inner;\nuse inner::X;\npub struct Item;")]);
        assert!(reported[0].contains("use each other"), "{reported:?}");
    }
}
