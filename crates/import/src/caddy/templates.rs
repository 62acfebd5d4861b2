//! Placeholders of Caddy, and the variables that take their place.

/// Translates the placeholders in a text to variables. Returns `None` if one has no equivalent.
pub(super) fn translate_template(text: &str) -> Option<String> {
    let mut out = text.replace('$', "$$");
    for (placeholder, variable) in [
        ("{http.request.host}", "$host"),
        ("{http.request.hostport}", "$http_host"),
        ("{http.request.uri.path}", "$path"),
        ("{http.request.uri.query}", "$args"),
        ("{http.request.uri}", "$uri"),
        ("{http.request.scheme}", "$scheme"),
        ("{http.request.method}", "$method"),
        ("{http.request.remote.host}", "$remote_addr"),
        ("{http.vars.client_ip}", "$remote_addr"),
        ("{http.reverse_proxy.upstream.hostport}", "$upstream"),
    ] {
        out = out.replace(placeholder, variable);
    }
    while let Some(at) = out.find("{http.request.header.") {
        let end = at + out[at..].find('}')?;
        let name = out[at + "{http.request.header.".len()..end].to_lowercase().replace('-', "_");
        out.replace_range(at..=end, &format!("$http_{name}"));
    }
    (!out.contains("{http.") && !out.contains("{env.")).then_some(out)
}
