//! Bandwidth limits of responses.

use settings::checker::InvalidValue;
use settings::directive_table::brief;
use settings::directives;
use settings::shape::{Maybe, Shape, Size, Text, Toggle};
use settings::units::{self, GIB, KIB};

const RATE_MAX: u64 = 1024 * GIB;
const RATE: Text<u64> = Text { what: "bytes a second such as \"1MiB/s\"", parse: parse_rate };

/// `bandwidth` of a site or a route; if absent, the level above applies.
pub(crate) fn policy() -> impl Shape<Out = Option<Option<BandwidthLimit>>> {
    Maybe(Toggle { on: None, off: || None, shape: Maybe(brief::<BandwidthLimit>("rate")) })
}

directives! {
    /// Rate at which a response is sent. A rate alone stands for `rate`. `false` exempts a route of a site
    /// that has a limit.
    ///
    /// ```toml
    /// [[route]]
    /// path      = "/downloads/*"
    /// files     = "/srv/downloads"
    /// bandwidth = { rate = "1MiB/s", after = "10MiB" }
    /// ```
    ///
    /// The rate applies to each response: a client that sends two requests at once gets twice as much. Use
    /// `concurrent` of `limit` to bound that. The limit covers files, upstream servers, applications and the
    /// cache, over HTTP/1 and HTTP/2. Upgraded connections (WebSocket) are not limited.
    BandwidthLimit in "`bandwidth` of a site or route" {
        /// Bytes a second, from `"1KiB/s"` to `"1TiB/s"`.
        "rate" bytes_per_s: u64 = required(""), RATE;
        /// Bytes at the beginning of each response that are not limited.
        "after" after_bytes: u64 = "0B", Size { min: 0, max: 1024 * GIB };
    }
}

fn parse_rate(text: &str) -> Result<u64, InvalidValue> {
    let remedy = "write a size and `/s`, such as \"1MiB/s\" or \"500KiB/s\"";
    let Some(size) = text.strip_suffix("/s") else {
        return Err(InvalidValue::new("this is not a rate of bytes", remedy));
    };
    // The remedy is one for a whole rate.
    let in_rate =
        |fault: InvalidValue| match fault.remedy.split_once('"').and_then(|(_, rest)| rest.split_once('"')) {
            Some((size, _)) => InvalidValue { remedy: format!("write \"{size}/s\""), ..fault },
            None => fault,
        };
    let bytes = units::parse_size(size).map_err(|fault| in_rate(fault).within(0..size.len()))?;
    if (KIB..=RATE_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(InvalidValue::new("too slow or too fast", "write a rate from \"1KiB/s\" to \"1TiB/s\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_rates_are_parsed() {
        assert_eq!(parse_rate("1KiB/s"), Ok(1024));
        assert_eq!(parse_rate("2000B/s"), Ok(2000));
        assert_eq!(parse_rate("10 MiB/s"), Ok(10 << 20));
        for wrong in
            ["", "/s", "1MiB", "1MiB/m", "1MB/s", "100k", "1023B/s", "2048TiB/s", "1MiB/s ", "-1KiB/s"]
        {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
