//! Conditions of requests, for directives that apply to some of them.

use crate::cache_rule::{cookie_name, parameter};
use crate::geo::{Countries, CountryPattern};
use crate::header;
use crate::network::{SOURCE, TrustedSource};
use crate::pattern::{Condition, ValuePattern};
use crate::record::directives;
use crate::shape::{Map, OneOrMore};

directives! {
    /// Conditions, all of which a request has to meet. A value is a text, in which `*` matches any run of characters, or `true` for any
    /// value. Clients can write all of them but `client` and `country`.
    Conditions in "`when`" {
        /// Header fields.
        "header" header: Vec<(String, ValuePattern)> = {}, Map { what: "header names", key: header::name, value: Condition };
        /// Cookies.
        "cookie" cookie: Vec<(String, ValuePattern)> = {}, Map { what: "names of cookies", key: cookie_name, value: Condition };
        /// Query parameters, decoded.
        "query" query: Vec<(String, ValuePattern)> = {}, Map { what: "parameter names", key: parameter, value: Condition };
        /// Clients, by address: networks, addresses and `"unix"`.
        "client" client: Vec<TrustedSource> = absent("every client"), OneOrMore(SOURCE);
        /// Countries of clients, which need `[geo]`; `"none"` where it is not known.
        "country" country: Vec<CountryPattern> = absent("every country"), Countries;
    }
}
