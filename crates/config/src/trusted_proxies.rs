//! Trusted proxies.

use http::Dialect;
use settings::directives;
use settings::shape::{Flag, List, Word};
use shapes::network::{SOURCE, TrustedSource};

directives! {
    /// Proxies in front of this server, such as a load balancer, that send the client's address. A list of networks
    /// is shorthand for `from`.
    ///
    /// ```toml
    /// trusted_proxies = ["10.0.0.0/8", "2001:db8::/32"]
    /// ```
    ///
    /// The client's address is then the last address in the field that is not one of these proxies; its scheme, `http`
    /// or `https`, is taken from the same proxy. They are used in the access log, `$client_ip`, `hash:client`, the
    /// application's `REMOTE_ADDR` and the PROXY protocol to upstream servers. Such fields from other addresses are
    /// ignored.
    TrustedProxies in "`trusted_proxies`" {
        /// Networks, addresses, and `"unix"` for all connections over a Unix socket.
        "from" from: Vec<TrustedSource> = [], List(SOURCE);
        /// The fields with the client's address: `"x-forwarded"` is `X-Forwarded-For` and `X-Forwarded-Proto`,
        /// `"forwarded"` is the field of RFC 7239. Only one kind is used, because a proxy that does not know the other
        /// one forwards what the client wrote there.
        "fields" fields: Dialect = "x-forwarded",
            Word(&[("x-forwarded", Dialect::XForwarded), ("forwarded", Dialect::Standard)]);
        /// Whether addresses of these proxies in the field are passed over. If false, the last address in the field is
        /// the client's, as with nginx's `real_ip_recursive off`.
        "recursive" recursive: bool = true, Flag;
    }
}
