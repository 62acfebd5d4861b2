//! `scripts` of the action `php`, and the names of variables.

use settings::checker::{Checker, InvalidValue};
use settings::directives;
use settings::node::{Node, as_text};
use settings::shape::{Maybe, Text, Toggle};

pub(crate) const FRONT: Text<String> = Text { what: "a script such as \"/index.php\"", parse: parse_front };

directives! {
    /// The scripts that `php` runs, which lie among the files of the route.
    ///
    /// ```toml
    /// [[route]]
    /// files = "/srv/shop/public"
    /// php   = { to = "fastcgi://php:9000", scripts = { root = "/var/www/html" } }
    /// ```
    Scripts in "`scripts` of `php`" {
        /// The script for paths at which there is no file, as a path below the root; `false` for none, and then they are 404.
        "front" front: Option<String> = "/index.php", Toggle { on: None, off: || None, shape: Maybe(FRONT) };
        /// Folder of the scripts as the PHP server sees it, if it differs from the folder in `files`, as in a
        /// container.
        "root" root: Option<String> = absent("the folder of `files`"),
            Maybe(Text { what: "a folder such as \"/var/www/html\"", parse: script_root });
    }
}

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

fn parse_front(text: &str) -> Result<String, InvalidValue> {
    let is_path = text.starts_with('/') && !text.contains("..") && !text.contains('\0');
    if is_path && text.ends_with(".php") {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is no script below the root", "write \"/index.php\", or `false`"))
    }
}

fn script_root(text: &str) -> Result<String, InvalidValue> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(InvalidValue::new("this is no absolute path", "write \"/var/www/html\""))
    }
}
