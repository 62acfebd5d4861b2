//! Varnish.

use crate::directive::{ForeignDirective, here};

const DIRECTIVES: &[ForeignDirective] = &[
    here(&["-s malloc,1G", "-s file"], "`[cache] memory`, `disk` (survives a restart)"),
    here(&["backend", "directors", "probe"], "`[upstreams.NAME]`, `balance`, `health`")
        .see("several servers", "proxy.md#several-servers")
        .ambiguous(),
    here(&["return (pass)", "return (pipe)"], "`bypass`; WebSockets pass by themselves"),
    here(&["ban"], "`komainu cache purge` by prefix or by tag, `--soft`")
        .see("purging", "cache.md#purging")
        .ambiguous(),
    here(&["xkey"], "`Cache-Tag`, `--tag`"),
    here(
        &["varnishlog", "(`X-Cache: HIT` by hand)"],
        "`Cache-Status` (RFC 9211) of each response, `komainu cache why URL`",
    ),
    here(&["varnishstat"], "`komainu cache stats`, `/metrics`"),
    here(&["vcl_synth"], "`respond`, `error_pages`"),
    here(&["(hitch or nginx in front)"], "`tls` of the site"),
    here(&["varnishadm vcl.load", "vcl.use"], "`komainu reload`"),
];

pub(crate) const TABLES: &[&[ForeignDirective]] = &[DIRECTIVES];
