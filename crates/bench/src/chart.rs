//! Charts as SVG: lines over time or over percentiles, and bars. Colours come from the page's style.

use crate::quantity;

/// Width and height of a chart in SVG user units; the page scales it to about this size in pixels.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 30.0;
/// Horizontal space that a label of the lower axis needs at its size on a phone.
const LABEL: f64 = 42.0;

/// Line of a chart.
pub struct Series {
    /// Name shown in the legend.
    pub name: String,
    /// Points in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// Scale of an axis and its labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Linear, from zero, with labels at powers of two: for bytes.
    Binary,
    /// Logarithmic, base 10.
    Log,
    /// Percentiles by their distance from 100 %: 90, 99 and 99.9 are evenly spaced.
    Nines,
}

/// An axis.
pub struct Axis {
    /// Scale of the axis.
    pub scale: Scale,
    /// Formats the label of a value.
    pub label: fn(f64) -> String,
}

/// Draws a line chart; returns an empty string if there is nothing to draw.
#[must_use]
pub fn line_chart(title: &str, series: &[Series], x: &Axis, y: &Axis) -> String {
    let all = || series.iter().flat_map(|s| &s.points);
    let (Some(across), Some(up)) =
        (value_range(all().map(|p| p.0), x.scale), value_range(all().map(|p| p.1), y.scale))
    else {
        return String::new();
    };
    let place = |&(px, py): &(f64, f64)| {
        let along = axis_position(px, across, x.scale) * (WIDTH - LEFT - RIGHT);
        let above = axis_position(py, up, y.scale) * (HEIGHT - TOP - BOTTOM);
        (LEFT + along, HEIGHT - BOTTOM - above)
    };
    let mut body = String::new();
    for tick in ticks(up, y.scale) {
        let (_, at) = place(&(across.0, tick));
        body += &format!(
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            escape(&(y.label)(tick))
        );
    }
    let mut last = f64::NEG_INFINITY;
    for tick in ticks(across, x.scale) {
        let (at, _) = place(&(tick, up.0));
        // The last label has less space on its right.
        let (anchor, room) = if at > WIDTH - RIGHT - 20.0 { ("end", LABEL * 1.5) } else { ("middle", LABEL) };
        if at - last < room {
            continue;
        }
        last = at;
        body += &format!(
            "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            escape(&(x.label)(tick))
        );
    }
    for (number, one) in series.iter().enumerate() {
        let path: Vec<String> =
            one.points.iter().map(&place).map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !path.is_empty() {
            // A zero-length line shows a single point.
            body += &format!("<path class=\"line s{number}\" d=\"M{}h0\"/>", path.join("L"));
        }
    }
    let legend: String = series
        .iter()
        .enumerate()
        .map(|(number, s)| format!("<span><i class=\"s{number}\"></i>{}</span>", escape(&s.name)))
        .collect();
    figure(title, &legend, &svg(title, WIDTH, HEIGHT, &body), "")
}

/// Bar of a chart.
pub struct ChartBar {
    /// Label of the bar.
    pub name: String,
    /// Value that determines the length of the bar.
    pub value: f64,
    /// Least and greatest measured value.
    pub range: (f64, f64),
    /// Text at the end of the bar.
    pub label: String,
    /// Whether the bar is drawn in the first colour instead of the muted one.
    pub is_highlighted: bool,
}

/// Draws a bar chart, one bar below the other. The bars are rows of the page, so that names keep their size
/// on narrow screens.
#[must_use]
pub fn bar_chart(title: &str, bars: &[ChartBar]) -> String {
    let most = bars.iter().map(|bar| bar.range.1.max(bar.value)).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let length = |value: f64| value / most * 100.0;
    let mut rows = String::new();
    for bar in bars {
        let class = if bar.is_highlighted { "bar s0" } else { "bar quiet" };
        rows += &format!(
            "<div class=\"row\"><span>{}</span><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect class=\"{class}\" width=\"{:.1}\" height=\"10\"/><path class=\"range\" d=\"M{:.1} 5H{:.1}\"/></svg><b>{}</b></div>\n",
            escape(&bar.name),
            length(bar.value).max(0.2),
            length(bar.range.0),
            length(bar.range.1),
            escape(&bar.label)
        );
    }
    figure(title, "", &format!("<div class=\"bars\">\n{rows}</div>"), " class=\"wide\"")
}

fn svg(title: &str, width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">{body}</svg>",
        escape(title)
    )
}

fn figure(title: &str, legend: &str, svg: &str, class: &str) -> String {
    format!(
        "<figure{class}><figcaption>{}<span class=\"legend\">{legend}</span></figcaption>{svg}</figure>\n",
        escape(title)
    )
}

/// Escapes text for HTML or SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn value_range(values: impl Iterator<Item = f64>, scale: Scale) -> Option<(f64, f64)> {
    let mut low = f64::INFINITY;
    let mut high = f64::NEG_INFINITY;
    for value in values.filter(|value| value.is_finite() && (scale != Scale::Log || *value > 0.0)) {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return None;
    }
    Some(match scale {
        Scale::Linear | Scale::Binary => (low.min(0.0), if high > 0.0 { high * 1.05 } else { 1.0 }),
        Scale::Log => (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()).max(low * 10.0)),
        Scale::Nines => (low, high),
    })
}

/// Returns the position of a value on its axis, 0 to 1.
fn axis_position(value: f64, (low, high): (f64, f64), scale: Scale) -> f64 {
    let place = |value: f64| match scale {
        Scale::Linear | Scale::Binary => value,
        Scale::Log => value.max(low).log10(),
        Scale::Nines => -(1.0 - value.min(99.9999) / 100.0).log10(),
    };
    let from = place(low);
    let to = place(high);
    if to > from { ((place(value) - from) / (to - from)).clamp(0.0, 1.0) } else { 0.0 }
}

fn ticks((low, high): (f64, f64), scale: Scale) -> Vec<f64> {
    match scale {
        Scale::Nines => {
            [0.0, 50.0, 90.0, 99.0, 99.9, 99.99].into_iter().filter(|&p| p >= low && p <= high).collect()
        }
        Scale::Log => {
            let decades = low.log10().round() as i32..=high.log10().round() as i32;
            decades.map(|decade| 10f64.powi(decade)).collect()
        }
        Scale::Binary => {
            let step = (high / 8.0).max(1.0).log2().ceil().exp2();
            (0..=(high / step).floor() as i64).map(|at| at as f64 * step).collect()
        }
        Scale::Linear => {
            let rough = (high - low) / 5.0;
            let magnitude = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0]
                .iter()
                .map(|m| m * magnitude)
                .find(|&step| step >= rough)
                .unwrap_or(rough);
            let first = (low / step).ceil() as i64;
            (first..=(high / step).floor() as i64).map(|at| at as f64 * step).collect()
        }
    }
}

/// Formats a number for an axis label.
#[must_use]
pub fn short_number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trim_zeros(value / 1e6)),
        v if v >= 1e3 => format!("{}k", trim_zeros(value / 1e3)),
        _ => trim_zeros(value),
    }
}

/// Formats microseconds for an axis label.
#[must_use]
pub fn short_time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", trim_zeros(us)),
        us if us < 1e6 => format!("{} ms", trim_zeros(us / 1e3)),
        us => format!("{} s", trim_zeros(us / 1e6)),
    }
}

/// Formats bytes for an axis label.
#[must_use]
pub fn short_bytes(bytes: f64) -> String {
    quantity::format_bytes(bytes)
}

fn trim_zeros(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Axis = Axis { scale: Scale::Linear, label: trim_zeros };

    #[test]
    fn ticks_are_round_and_within_the_range() {
        assert_eq!(ticks((0.0, 10.5), Scale::Linear), [0.0, 5.0, 10.0]);
        assert_eq!(ticks((0.0, 0.9), Scale::Linear).len(), 5);
        assert_eq!(ticks((0.0, 20.0), Scale::Binary), [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]);
        assert_eq!(ticks((10.0, 10_000.0), Scale::Log), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(ticks((0.0, 99.95), Scale::Nines), [0.0, 50.0, 90.0, 99.0, 99.9]);
    }

    #[test]
    fn share_is_proportional_on_every_scale() {
        assert_eq!(axis_position(5.0, (0.0, 10.0), Scale::Linear), 0.5);
        assert_eq!(axis_position(100.0, (10.0, 1_000.0), Scale::Log), 0.5);
        let nines = |p| axis_position(p, (0.0, 99.99), Scale::Nines);
        assert!((nines(90.0) - 0.25).abs() < 1e-9 && (nines(99.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn chart_escapes_names_and_is_empty_without_data() {
        let series = [Series { name: "a<b".into(), points: vec![(0.0, 1.0), (1.0, 2.0)] }];
        let chart = line_chart("Rate & more", &series, &TIME, &TIME);
        assert!(
            chart.contains("Rate &amp; more")
                && chart.contains("a&lt;b")
                && chart.contains("class=\"line s0\"")
        );
        assert_eq!(line_chart("x", &[], &TIME, &TIME), "");
        // Labels that would overlap are left out: at most eight of nine powers of ten fit.
        let wide = [Series { name: "w".into(), points: vec![(1.0, 1.0), (1e8, 2.0)] }];
        let axis = Axis { scale: Scale::Log, label: short_number };
        assert!(
            (4..=8).contains(&line_chart("W", &wide, &axis, &TIME).matches("text-anchor=\"middle\"").count())
        );
        assert!(!line_chart("W", &wide, &axis, &TIME).contains(">100M</text>"));
        let bar = |value| ChartBar {
            name: "n".into(),
            value,
            range: (value, value),
            label: "l".into(),
            is_highlighted: true,
        };
        assert!(bar_chart("B", &[bar(2.0), bar(1.0)]).matches("<rect").count() == 2);
        assert_eq!(bar_chart("B", &[bar(0.0)]), "");
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([999.0, 1_500.0, 2e6].map(short_number), ["999", "1.5k", "2M"]);
        assert_eq!([10.0, 2_500.0, 1e6].map(short_time), ["10 µs", "2.5 ms", "1 s"]);
    }
}
