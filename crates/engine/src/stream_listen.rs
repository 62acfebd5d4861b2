//! Listening addresses of streams, in addition to those of sites.

use config::Config;
use net::{ConfiguredListener, Listen, StreamListener};

/// Stream settings of a listening address; `None` if no stream uses it.
pub(crate) fn stream_listener(config: &Config, address: &Listen) -> Option<StreamListener> {
    let has_it = |stream: &&config::Stream| stream.listen.iter().any(|listener| listener.address == *address);
    let mut streams = config.streams.iter().filter(has_it).peekable();
    streams.peek()?;
    let reads_name = streams.any(|stream| !stream.names.is_empty());
    let is_only = config.listeners().all(|listener| listener.address != *address);
    Some(StreamListener { key: key(address), reads_server_name: reads_name, is_only })
}

/// Listeners of streams at addresses that no site uses.
pub(crate) fn stream_only_listeners(config: &Config) -> Vec<ConfiguredListener> {
    let mut own: Vec<ConfiguredListener> = Vec::new();
    for listener in config.streams.iter().flat_map(|stream| &stream.listen) {
        let is_known = |known: &ConfiguredListener| known.address == listener.address;
        if !config.listeners().any(is_known) && !own.iter().any(is_known) {
            own.push(ConfiguredListener { tls: Some(false), ..listener.clone() });
        }
    }
    own
}

/// Lookup key for the streams of an address.
pub fn key(address: &Listen) -> String {
    address.to_string()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn stream_listener_is_shared_only_if_sites_have_its_address() {
        let text = "listen = \":443\"\n[[site]]\nhosts = [\"a.example\"]\ntls = { certificate = \"c\", key = \"k\" }\n\
                    [[stream]]\nlisten = [\":443\", \":8443\"]\nnames = \"b.example\"\nto = \"b:443\"\n\
                    [[stream]]\nlisten = [\":25\", \":8443\"]\nto = \"c:25\"\n";
        let (config, _) = Config::parse(text, "komainu.toml", Path::new("/")).unwrap();
        let of = |text: &str| {
            let found = stream_listener(&config, &text.parse().unwrap());
            found.map(|found| (found.reads_server_name, found.is_only))
        };
        assert_eq!(of(":443"), Some((true, false)));
        assert_eq!(of(":8443"), Some((true, true)));
        assert_eq!(of(":25"), Some((false, true)));
        assert_eq!(of(":80"), None);
        let own = stream_only_listeners(&config);
        let own: Vec<String> = own.iter().map(|listener| listener.address.to_string()).collect();
        assert_eq!(own, [":8443", ":25"]);
    }
}
