//! Countries of clients, by their addresses.

use settings::checker::{Checker, InvalidValue};
use settings::directives;
use settings::node::Node;
use settings::shape::{OneOrMore, PathShape, Shape, ShapeKind, Text};
use shapes::template::GEO_REMEDY;
use std::path::PathBuf;

directives! {
    /// Countries of clients, from a local file that maps networks to countries. The server never queries
    /// another one.
    ///
    /// ```toml
    /// [geo]
    /// database = "/usr/share/GeoIP/GeoLite2-Country.mmdb"
    ///
    /// [[route]]
    /// path    = "/shop/*"
    /// country = ["DE", "AT", "CH"]
    /// proxy   = "http://127.0.0.1:3000"
    /// ```
    ///
    /// `country` is a condition of routes and of `when`; `$country` is the code in header fields, redirects,
    /// maps, bodies and access logs, and empty if unknown. The address is the one that `trusted_proxies`
    /// report, if they do. A reload reads the file again. If the file is broken, the previous countries stay
    /// in use, and the log reports it.
    Geo in "`[geo]`" {
        /// A file in MaxMind's format (`.mmdb`) with countries, such as GeoLite2-Country, GeoLite2-City or DB-IP's country file; up to 256 MiB. It
        /// is read once, at the start and by a reload.
        "database" database: PathBuf = required(""), PathShape("a file");
    }
}

/// Country of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CountryPattern {
    /// Unknown, as for private networks and Unix sockets.
    None,
    /// The code of ISO 3166-1, in upper case.
    Code([u8; 2]),
}

impl CountryPattern {
    /// Whether the pattern matches a country's code, if that is known.
    pub fn matches(&self, country: Option<[u8; 2]>) -> bool {
        match self {
            Self::None => country.is_none(),
            Self::Code(code) => country == Some(*code),
        }
    }

    fn parse(text: &str) -> Result<Self, InvalidValue> {
        const COUNTRY_REMEDY: &str =
            "write a code of ISO 3166-1 such as \"DE\", or \"none\" where it is not known";
        match text.as_bytes() {
            b"none" => Ok(Self::None),
            b"UK" => Err(InvalidValue::new("the code of the United Kingdom is GB", "write \"GB\"")),
            [first, second] if first.is_ascii_uppercase() && second.is_ascii_uppercase() => {
                Ok(Self::Code([*first, *second]))
            }
            [_, _] if text.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                let upper = text.to_ascii_uppercase();
                Err(InvalidValue::new("codes of countries are in upper case", format!("write \"{upper}\"")))
            }
            _ => Err(InvalidValue::new("this is not a code of a country", COUNTRY_REMEDY)),
        }
    }
}

/// Countries, which need `[geo]`.
pub(crate) struct Countries;

const CODES: OneOrMore<Text<CountryPattern>> =
    OneOrMore(Text { what: "a country such as \"DE\", or \"none\"", parse: CountryPattern::parse });

impl Shape for Countries {
    type Out = Vec<CountryPattern>;

    fn kind(&self) -> ShapeKind {
        CODES.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Self::Out> {
        let read = CODES.read(node, check);
        if !check.defined_variables.has_geo {
            let title = "`country` without `[geo]`".to_owned();
            check.error(&node.span, title, "the country of no client is known").help(GEO_REMEDY);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use crate::matcher::{RouteMatch, RouteRequest, Routes};
    use crate::server::Config;
    use std::path::Path;

    const GEO: &str = "[geo]\ndatabase = \"c.mmdb\"\n";

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "komainu.toml", Path::new("/etc"))
            .map(|(config, _)| config)
            .map_err(|report| report.to_string())
    }

    #[test]
    fn route_is_selected_by_the_country_of_the_client() {
        let text = format!(
            "{GEO}[[route]]\ncountry = [\"DE\", \"AT\"]\nrespond = \"near\"\n[[route]]\ncountry = \"none\"\nrespond = \"unknown\"\n\
             [[route]]\nrespond = \"far\"\n"
        );
        let config = parse(&text).unwrap();
        let routes = Routes::compile(&config);
        assert!(routes.uses_country());
        let found = |country: Option<&[u8; 2]>| {
            let request = RouteRequest {
                host: b"a",
                listener_key: 0,
                method: b"GET",
                path: b"/",
                query: b"",
                client: None,
                country: country.copied(),
            };
            let explained = routes.explain_match(&request, |_: &str| None);
            assert!(explained.route_matches.iter().all(|step| !matches!(step, RouteMatch::Client)));
            routes.find(&request, |_: &str| None).unwrap().route
        };
        assert_eq!([found(Some(b"DE")), found(Some(b"AT")), found(None), found(Some(b"FR"))], [0, 0, 1, 2]);
        assert!(!Routes::compile(&parse("[[route]]\nrespond = 200\n").unwrap()).uses_country());
    }

    #[test]
    fn country_errors_are_reported() {
        let route = |condition: &str| format!("{GEO}[[route]]\n{condition}\nrespond = 200\n");
        for (text, part) in [
            (route("country = \"de\""), "write \"DE\""),
            (route("country = \"UK\""), "write \"GB\""),
            (route("country = \"Germany\""), "ISO 3166-1"),
            (route("country = 49"), "expected a country"),
            ("[[route]]\ncountry = \"DE\"\nrespond = 200\n".to_owned(), "`country` without `[geo]`"),
            (
                "response_headers = { set = { X-Country = \"$country\" } }\n".to_owned(),
                "`$country` needs `[geo]`",
            ),
            ("[geo]\n".to_owned(), "`geo.database` is missing"),
            (format!("{GEO}[maps.country]\nof = \"$host\"\n"), "variable already"),
        ] {
            let said = parse(&text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        }
        // Without `[geo]` the name is free.
        parse("response_headers = { set = { X-A = \"$country\" } }\n[maps.country]\nof = \"$host\"\n")
            .unwrap();
        parse("[[route]]\npath = '~ ^/(?<country>[a-z]+)$'\nredirect = \"/x/$country\"\n").unwrap();
        let map = "[maps.area]\nof = \"$country\"\nvalues = { DE = \"eu\" }\n[log]\naccess = \"$country $status\"\n";
        parse(&format!("response_headers = {{ set = {{ X-A = \"$area\" }} }}\n{GEO}{map}")).unwrap();
    }
}
