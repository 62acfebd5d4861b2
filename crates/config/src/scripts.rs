//! Warns of scripts that are sent as files.

use settings::checker::Checker;
use settings::node::{Node, as_text};

/// Warns of files that name a script, in a route that runs none: clients would get its source.
pub(crate) fn warn_of_exposed_scripts(route: &Node, check: &mut Checker) {
    let Some(files) = route.entry("files").filter(|entry| entry.value.is_table()) else { return };
    if ["php", "cgi", "app", "proxy", "internal"].iter().any(|key| route.entry(key).is_some()) {
        return;
    }
    let is_script = |node: &&Node| {
        as_text(node).and_then(|text| text.split('?').next()).is_some_and(|path| path.ends_with(".php"))
    };
    let named =
        ["index", "try", "fallback"].iter().flat_map(|key| files.value.one_or_more(key)).find(is_script);
    if let Some(named) = named {
        let title = "scripts of this route are sent as they are".to_owned();
        let finding = check.warning(&named.span, title, "clients get its source");
        finding.help(
            "add what runs them: `php = \"unix:/run/php/php-fpm.sock\"`, or `app` with an application of PHP",
        );
    }
}
