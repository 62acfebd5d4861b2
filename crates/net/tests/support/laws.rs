//! Properties that hold for all inputs, for fuzz targets and tests. A violated property panics.

use net::ProxyProtocol;
use net::proxy_protocol::{self, HeaderParse};

/// Maximum length of an accepted header: version 2 with 4 KiB of addresses and extensions.
const HEADER_BYTES_MAX: usize = 16 + 4096;

/// The PROXY protocol header: a prefix of a header is neither accepted nor refused, the bytes behind a header
/// do not matter, the parser never asks for more than its limit, and written addresses are parsed back.
pub(crate) fn proxy_header(bytes: &[u8]) {
    match proxy_protocol::read(bytes) {
        Err(_) => {}
        Ok(HeaderParse::NeedMore) => {
            assert!(bytes.len() < HEADER_BYTES_MAX, "more is asked for beyond the limit");
            for cut in 0..bytes.len() {
                assert_eq!(proxy_protocol::read(&bytes[..cut]), Ok(HeaderParse::NeedMore), "cut at {cut}");
            }
        }
        Ok(HeaderParse::Complete(len, header)) => {
            assert!(len <= bytes.len() && len <= HEADER_BYTES_MAX);
            for cut in 0..len {
                assert_eq!(proxy_protocol::read(&bytes[..cut]), Ok(HeaderParse::NeedMore), "cut at {cut}");
            }
            assert_eq!(
                proxy_protocol::read(&bytes[..len]),
                Ok(HeaderParse::Complete(len, header)),
                "what follows matters"
            );
            for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
                let mut written = Vec::new();
                proxy_protocol::write(&mut written, version, header.endpoints);
                let Ok(HeaderParse::Complete(len, again)) = proxy_protocol::read(&written) else {
                    panic!("{:?} is refused", written.escape_ascii().to_string());
                };
                let canonical = |ends: Option<proxy_protocol::Endpoints>| {
                    ends.map(|ends| {
                        [ends.source, ends.destination].map(|end| (end.ip().to_canonical(), end.port()))
                    })
                };
                assert_eq!((len, canonical(again.endpoints)), (written.len(), canonical(header.endpoints)));
            }
        }
    }
}
