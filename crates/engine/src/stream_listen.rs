//! Listening addresses of streams, in addition to those of sites.

use config::{Config, Stream};
use net::{ConfiguredListener, Listen, StreamListener};

/// Stream settings of a listening TCP address; `None` if no stream uses it.
pub(crate) fn stream_listener(config: &Config, address: &Listen) -> Option<StreamListener> {
    let has_it = |stream: &&Stream| stream.listen.iter().any(|listener| listener.address == *address);
    let of_tcp = config.streams.iter().filter(|stream| !stream.is_udp());
    let mut streams = of_tcp.filter(has_it).peekable();
    streams.peek()?;
    let reads_name = streams.any(|stream| !stream.names.is_empty());
    let is_only = config.listeners().all(|listener| listener.address != *address);
    Some(StreamListener { key: key(address, false), reads_server_name: reads_name, is_only })
}

/// Listeners of streams over UDP, with their stream settings.
pub(crate) fn udp_listeners(config: &Config) -> Vec<(&ConfiguredListener, StreamListener)> {
    let streams = config.streams.iter().filter(|stream| stream.is_udp());
    let listeners = streams.flat_map(|stream| &stream.listen);
    let settings = |listener: &ConfiguredListener| StreamListener {
        key: key(&listener.address, true),
        reads_server_name: false,
        is_only: true,
    };
    listeners.map(|listener| (listener, settings(listener))).collect()
}

/// Listeners of streams at TCP addresses that no site uses.
pub(crate) fn stream_only_listeners(config: &Config) -> Vec<ConfiguredListener> {
    let mut own: Vec<ConfiguredListener> = Vec::new();
    let of_tcp = config.streams.iter().filter(|stream| !stream.is_udp());
    for listener in of_tcp.flat_map(|stream| &stream.listen) {
        let is_known = |known: &ConfiguredListener| known.address == listener.address;
        if !config.listeners().any(is_known) && !own.iter().any(is_known) {
            own.push(ConfiguredListener { tls: Some(false), ..listener.clone() });
        }
    }
    own
}

/// Lookup key for the streams of an address.
pub fn key(address: &Listen, is_udp: bool) -> String {
    if is_udp { format!("udp {address}") } else { address.to_string() }
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

    #[test]
    fn streams_over_udp_have_listeners_of_their_own() {
        let text = "[[stream]]\nlisten = \":53\"\nto = \"a:53\"\n\
                    [[stream]]\nprotocol = \"udp\"\nlisten = [\":53\", \"127.0.0.1:54\"]\nto = \"b:53\"\n";
        let (config, _) = Config::parse(text, "komainu.toml", Path::new("/")).unwrap();
        assert_eq!(stream_only_listeners(&config).len(), 1);
        assert_eq!(stream_listener(&config, &"127.0.0.1:54".parse().unwrap()), None);
        let listens = crate::options::listen_options(&config).into_iter();
        let listens = listens.map(|listen| (listen.address.to_string(), listen.streams.unwrap().key));
        let wanted = [
            ("http://[::]:53", ":53"),
            ("udp://[::]:53", "udp :53"),
            ("udp://127.0.0.1:54", "udp 127.0.0.1:54"),
        ];
        assert!(listens.eq(wanted.map(|(address, key)| (address.to_owned(), key.to_owned()))));
    }
}
