//! NGINX Unit.

use crate::directive::{ForeignDirective, here};

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["listeners", "pass"], "`listen`, for all sites or in a `[[site]]`"),
    here(
        &["routes", "match", "action"],
        "`[[route]]`; `path`, `host`, `method`, `header`, `query`, `client`, and `not` for `!`; an action",
    )
    .ambiguous(),
    here(
        &["share", "index", "fallback", "chroot"],
        "`files`, `index`, `proxy` or `app` beside it; every lookup is confined to the root",
    )
    .ambiguous(),
    here(&["processes"], "`workers = { min, max }` in `[apps.NAME]`").ambiguous(),
    here(&["limits"], "`timeouts.request`, `recycle.requests` in `[apps.NAME]`")
        .within("applications")
        .ambiguous(),
    here(
        &["environment", "working_directory", "user", "group"],
        "`env`, `folder`, `user`, `group` in `[apps.NAME]`",
    )
    .ambiguous(),
    here(&["targets"], "`targets`, for Python; of PHP, an application for each root").ambiguous(),
    here(
        &["type: php", "root", "script", "options"],
        "`php` in `[apps.NAME]`: the folder, `front`, `ini`, `admin_ini`",
    )
    .see("PHP inside", "php.md#php-inside")
    .ambiguous(),
    here(&["mime_types"], "`types` in `files = { ... }`; common ones are known"),
    here(&["isolation"], "`sandbox` and `limits` of the application, systemd's unit").ambiguous(),
    here(&["certificates"], "`tls`, or nothing").ambiguous(),
    here(&["PUT /config/…"], "a file, and `komainu reload`; or the control API")
        .see("the control API", "operations.md#the-control-api"),
    here(&["GET /control/applications/shop/restart"], "`komainu reload shop`"),
    here(&["access_log", "settings.http"], "`[log]`, `[limits]`, `[timeouts]`").ambiguous(),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];

pub(crate) const DIFFERENCES: &[&str] = &[
    "All listeners have the same sites and routes.",
    "Upstream servers get X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and Via (`forwarded` in `proxy`).",
    "Files with a leading dot are not served (`hidden` in `files`), and upper and lower case differ in paths.",
];
