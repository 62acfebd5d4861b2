//! `scripts` of the action `php`.

use settings::checker::InvalidValue;
use settings::directives;
use settings::shape::{Maybe, Text, Toggle};
use shapes::prefix::FRONT;

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

fn script_root(text: &str) -> Result<String, InvalidValue> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err(InvalidValue::new("this is not an absolute path", "write \"/var/www/html\""))
    }
}
