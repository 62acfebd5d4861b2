//! Formats of `GET /metrics`, and their negotiation.

/// Exposition format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0 text.
    OpenMetrics,
    /// Prometheus protobuf format, the only one with native histograms.
    Protobuf,
}

impl MetricsFormat {
    /// Media type of the format.
    pub fn media_type(self) -> &'static str {
        match self {
            MetricsFormat::Text => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// The format that an `Accept` field prefers; among equal preferences, the most expressive one.
    pub fn accepted(field: &[u8]) -> MetricsFormat {
        let text = String::from_utf8_lossy(field).to_ascii_lowercase();
        let of_range = |range: &str| {
            let mut parts = range.split(';').map(|part| part.split_whitespace().collect::<String>());
            let kind = parts.next()?;
            let parameters = parts.collect::<Vec<_>>();
            let has = |parameter: &str| parameters.iter().any(|other| other == parameter);
            let format = match kind.as_str() {
                "text/plain" => MetricsFormat::Text,
                "application/openmetrics-text" => MetricsFormat::OpenMetrics,
                "application/vnd.google.protobuf"
                    if has("proto=io.prometheus.client.metricfamily") && has("encoding=delimited") =>
                {
                    MetricsFormat::Protobuf
                }
                _ => return None,
            };
            let quality = parameters.iter().find_map(|parameter| parameter.strip_prefix("q="));
            let quality = quality.map_or(Some(1.0), |quality| quality.parse::<f64>().ok())?;
            (quality > 0.0).then_some(((quality * 1_000.0) as u64, format as u8, format))
        };
        let best = text.split(',').filter_map(of_range).max_by_key(|(quality, rank, _)| (*quality, *rank));
        best.map_or(MetricsFormat::Text, |(_, _, format)| format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_format_of_the_scraper_is_chosen() {
        let protobuf =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for (field, want) in [
            (String::new(), MetricsFormat::Text),
            ("*/*".into(), MetricsFormat::Text),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;q=0.5".into(),
                MetricsFormat::OpenMetrics,
            ),
            ("text/plain, application/openmetrics-text;q=0.5".into(), MetricsFormat::Text),
            (
                format!("{protobuf},application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1"),
                MetricsFormat::Protobuf,
            ),
            (format!("{protobuf};q=0"), MetricsFormat::Text),
            ("application/vnd.google.protobuf".into(), MetricsFormat::Text),
            (format!("{protobuf};q=0.3, text/plain; q=0.4"), MetricsFormat::Text),
            ("\u{e9};q=x,,;".into(), MetricsFormat::Text),
        ] {
            assert_eq!(MetricsFormat::accepted(field.as_bytes()), want, "{field}");
        }
    }
}
