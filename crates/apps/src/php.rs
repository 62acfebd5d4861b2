//! `php` of an application: PHP that runs in the server's own workers.

use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{Map, Maybe, PathShape, Shape, ShapeKind, Toggle};
use shapes::prefix::FRONT;
use std::path::{Path, PathBuf};

directives! {
    /// A PHP application. Its workers have PHP inside; no PHP-FPM is needed. A route with `app = "NAME"` serves it as `php`
    /// does: scripts run, other files are sent, everything else is for the front script. Beside `app`, `files` sets how files
    /// are sent, and names folders to look in first.
    ///
    /// ```toml
    /// [[route]]
    /// app = "blog"
    ///
    /// [apps.blog]
    /// php = { root = "/srv/wordpress", ini = { memory_limit = "256M", upload_max_filesize = "64M", post_max_size = "65M" } }
    /// ```
    PhpApp in "`php` of an application", check php_agrees {
        /// The folder of its scripts and files, or its front script.
        "root" root: PathBuf = required(""), PathShape("a folder, or a script such as \"public/index.php\"");
        /// The script for paths at which there is no file, as a path below `root`; `false` for none, and then they are 404.
        "front" front: Option<String> = "/index.php", Toggle { on: None, off: || None, shape: Maybe(FRONT) };
        /// PHP settings in addition to `php.ini`, with values in the same notation. Scripts may change them,
        /// if PHP allows it (PHP-FPM's `php_value`).
        "ini" ini: Vec<(String, String)> = {}, SETTINGS;
        /// Like `ini`, but scripts and `.user.ini` cannot change these (PHP-FPM's `php_admin_value`).
        "admin_ini" admin_ini: Vec<(String, String)> = {}, SETTINGS;
    }
    held {
        /// Whether `root` named the front script, which is to be there then.
        names_front: bool;
    }
}

impl PhpApp {
    /// That of a front script.
    #[must_use]
    pub fn from_script(script: &Path) -> PhpApp {
        let mut php = PhpApp { root: script.to_owned(), ..PhpApp::default() };
        php.split_root_script();
        php
    }

    /// A root that is a script is the folder of that script, and the script its front.
    fn split_root_script(&mut self) {
        let name = self.root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.front = Some(format!("/{name}"));
        self.names_front = true;
        self.root.pop();
        if self.root.as_os_str().is_empty() {
            self.root.push(".");
        }
    }
}

const SETTINGS: Map<String, PhpSettingShape> =
    Map { what: "names of settings", key: parse_setting_name, value: PhpSettingShape };

/// The value of a setting in `php.ini`.
struct PhpSettingShape;

impl Shape for PhpSettingShape {
    type Out = String;

    fn kind(&self) -> ShapeKind {
        ShapeKind::new("a text, a number or a flag", json!({ "type": ["string", "integer", "boolean"] }))
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<String> {
        match &node.data {
            NodeData::Text(text) if text.contains(['\n', '\r', '\0']) => {
                check.report_invalid(&node.span, "the value of a setting is one line, as in php.ini");
                None
            }
            NodeData::Text(text) => Some(text.clone()),
            NodeData::Integer(number) => Some(number.to_string()),
            NodeData::Flag(flag) => Some(u8::from(*flag).to_string()),
            _ => {
                check.report_type_mismatch(node, &self.kind().text);
                None
            }
        }
    }
}

fn parse_setting_name(text: &str) -> Result<String, InvalidValue> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if text.chars().all(is_name) && !text.is_empty() {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("this is not the name of a setting", "write one such as \"memory_limit\""))
    }
}

fn php_agrees(php: &mut PhpApp, node: &Node, check: &mut Checker) {
    let Some(root) = node.entry("root") else { return };
    if matches!(&root.value.data, NodeData::Text(text) if text.starts_with("unix:") || text.contains("://")) {
        let finding = check.error(
            &root.value.span,
            "`php` of an application with a server".to_owned(),
            "this is not a folder",
        );
        finding.help("an application has PHP inside; for PHP-FPM write `php` beside `files` in a route");
        return;
    }
    if php.root.extension().is_none_or(|extension| extension != "php") {
        return;
    }
    if let Some(front) = node.entry("front") {
        let title = "`front` of an application whose root names a front script already".to_owned();
        check.error(&front.key_span, title, "a second one").related(root.value.span.clone(), "the first one");
    }
    php.split_root_script();
}
