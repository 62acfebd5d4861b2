use serde_json::json;

use super::*;
use crate::text::{format_text, to_json as as_json};

fn durations(classes: [u64; 4]) -> Value {
    json!({ "count": classes.iter().sum::<u64>(), "classes": classes })
}

/// Returns a status document with this total number of requests.
fn status(requests: u64, age_ms: u64) -> Value {
    let route = |site: &str, route: &str, handler: &str, count: u64| {
        json!({
            "site": site, "route": route, "handler": handler, "requests": count, "response_bytes": count * 1000,
            "statuses": { "2xx": count - count / 10, "5xx": count / 10 }, "duration": durations([0, count, 0, 0]),
        })
    };
    let server = |url: &str, state: &str| {
        json!({
            "url": url, "state": state, "active": 3, "requests": requests, "statuses": {}, "ejections": 1,
            "failures": { "connect": requests / 100 }, "response": durations([0, 0, requests, 0]),
        })
    };
    let worker = |number: u64, state: &str, current: Value| {
        json!({
            "worker": number, "pid": 4000 + number, "state": state, "requests": requests, "age_ms": age_ms,
            "usage": { "cpu_ms": age_ms / 2, "pss_bytes": 20 << 20 }, "current": current,
        })
    };
    let hostile = "/a\u{1b}[31m\u{202e}?q=\u{7}<script>";
    json!({
        "pid": 7, "version": "0.1.0", "state": "serving", "age_ms": age_ms, "listen": ["http://127.0.0.1:8080"],
        "class_bounds_ms": [1.0, 2.0, 4.0],
        "usage": { "cpu_ms": age_ms / 10, "pss_bytes": 30 << 20 },
        "memory": { "held_bytes": 5 << 20, "budget_bytes": 512 << 20 },
        "connections": { "open": 12, "accepted": requests },
        "routes": [route("*", "/quiet", "respond", 0), route("shop.test", "/api/*", "proxy", requests)],
        "upstreams": [{ "waiting": 2, "servers": [server("http://10.0.0.1:80", "up"), server("http://10.0.0.2:80", "ejected")] }],
        "apps": [{ "name": "shop", "queue": { "waiting": 4, "claimed": 1 }, "processes": [
            worker(1, "ready", json!([{ "method": "GET", "target": hostile, "age_ms": 1500 }])), worker(2, "starting", json!([])),
        ] }],
        "certificates": [{ "name": "shop.test", "issuer": "E5", "expires_in_s": 86_400 * 30, "last_error": null }],
        "cache": { "hits": requests, "misses": requests, "bytes": 1 << 20, "bytes_max": 64 << 20 },
        "events": [
            { "number": 1, "unix_ms": 3_600_000, "level": "info", "text": "started" },
            { "number": 2, "unix_ms": 3_661_000, "level": "error", "text": format!("http://10.0.0.2:80: {hostile}: refused") },
        ],
    })
}

fn sample() -> StatusInterval {
    StatusInterval::new(status(3_000, 12_000), Some(&status(1_000, 10_000)))
}

fn draw_to_buffer(width: u16, height: u16, view_state: &ViewState) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(&mut buffer, area, &sample(), view_state);
    buffer
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width).map(|line| line.concat().trim_end().to_owned()).collect()
}

#[test]
fn screen_of_24_lines_shows_every_important_table() {
    let lines = lines(&draw_to_buffer(80, 24, &ViewState::new(false)));
    let all = lines.join("\n");
    assert_eq!(lines[0], "Komainu 0.1.0  serving  PID 7  up 12 s  http://127.0.0.1:8080");
    assert!(
        lines[1].starts_with("1,000 req/s  5xx 100/s (10 %)  p50 ≤2.0 ms  p99 ≤2.0 ms  waiting 6"),
        "{all}"
    );
    for wanted in
        ["1 Routes", "2 Upstream servers", "3 Applications", "6 Events", "/api/*", "10.0.0.1", "GET /a?[31m?"]
    {
        assert!(all.contains(wanted), "{wanted} in\n{all}");
    }
    assert!(lines[23].contains("q end"), "{all}");
    // The busiest route is the first.
    let route = lines.iter().position(|line| line.contains("/api/*")).unwrap();
    assert!(lines[route - 1].contains("req/s*"), "{all}");
}

#[test]
fn a_wide_screen_has_every_column() {
    let all = lines(&draw_to_buffer(200, 60, &ViewState::new(false))).join("\n");
    for table in tables(&sample()) {
        for column in table.columns {
            assert!(all.contains(column.heading), "{} of {} in\n{all}", column.heading, table.title);
        }
        assert!(all.contains(table.title), "{all}");
    }
    assert!(!all.contains("more)"), "{all}");
}

#[test]
fn colors_are_used_only_if_enabled() {
    let buffer = draw_to_buffer(100, 40, &ViewState::new(false));
    assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let buffer = draw_to_buffer(100, 40, &ViewState::new(true));
    assert!(buffer.content.iter().any(|cell| cell.fg == Color::Red));
}

#[test]
fn any_screen_size_is_drawn_without_panic() {
    for width in [1, 19, 20, 40, 79, 300] {
        for height in [1, 5, 6, 7, 10, 13, 100] {
            for page in [TopPage::All, TopPage::Help, TopPage::One(0), TopPage::One(5)] {
                draw_to_buffer(width, height, &ViewState { page, scroll: 99, ..ViewState::new(true) });
            }
        }
    }
    let area = Rect::new(0, 0, 80, 24);
    draw(&mut Buffer::empty(area), area, &StatusInterval::new(json!({}), None), &ViewState::new(true));
    draw(&mut Buffer::empty(area), area, &StatusInterval::new(json!([1]), None), &ViewState::new(true));
}

#[test]
fn keys_change_page_sorting_and_interval() {
    use std::time::Duration;

    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    let mut watch = crate::screen::TopScreen {
        interval_data: sample(),
        last_document: status(3_000, 12_000),
        view_state: ViewState::new(false),
        interval: Duration::from_secs(2),
    };
    let mut press = |keys: &str| {
        keys.chars()
            .all(|key| watch.handle_key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE)))
            .then(|| (watch.view_state.clone(), watch.interval))
    };
    let (choice, _) = press("2s").unwrap();
    assert_eq!((choice.page, choice.sort[1]), (TopPage::One(1), Some(0)));
    let all = lines(&draw_to_buffer(80, 24, &choice)).join("\n");
    assert!(
        all.contains("2 Upstream servers") && all.contains("group*") && !all.contains("1 Routes"),
        "{all}"
    );
    let (choice, every) = press("pr+?").unwrap();
    assert!(
        choice.is_paused
            && choice.is_reversed
            && choice.page == TopPage::Help
            && every == Duration::from_secs(1)
    );
    let all = lines(&draw_to_buffer(80, 24, &choice)).join("\n");
    assert!(all.contains("PAUSED") && all.contains("sort by the next column"), "{all}");
    let (choice, _) = press("6jjj").unwrap();
    assert_eq!((choice.page, choice.scroll), (TopPage::One(5), 1));
    assert!(press("q").is_none());
    watch.update(Err("gone\u{1b}".into()));
    assert_eq!(watch.view_state.last_error.as_deref(), Some("gone?"));
    watch.view_state.is_paused = false;
    assert!(lines(&draw_to_buffer(80, 24, &watch.view_state)).last().unwrap().contains("NO ANSWER: gone?"));
}

#[test]
fn text_and_json_output_contain_the_figures() {
    let text = format_text(&sample());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
    assert!(text.contains("\nUpstream servers\n") && text.contains("http://10.0.0.2:80"), "{text}");
    assert!(text.contains("01:01:01  error  http://10.0.0.2:80: /a?[31m??q=?<script>: refused"), "{text}");
    let document = as_json(&sample());
    assert_eq!(document["server"]["requests_per_s"], 1_000.0);
    let p50 = &document["routes"][1];
    assert_eq!((&p50["p50_ms"], &p50["p50_bound"]), (&json!(2.0), &json!("upper")));
    assert_eq!(document["upstreams"][1]["state"], "ejected");
    assert_eq!(document["workers"][0]["current"], "GET /a?[31m??q=?<script>");
    assert_eq!(
        (&document["cache"][0]["hit_rate"], &document["workers"][0]["cpu"]),
        (&json!(0.5), &json!(0.5))
    );
}

#[test]
fn status_of_another_process_is_not_compared() {
    let mut before = status(1_000, 10_000);
    before["pid"] = json!(8);
    let document = as_json(&StatusInterval::new(status(3_000, 12_000), Some(&before)));
    assert_eq!(document["server"]["requests_per_s"], 250.0);
}

#[test]
fn space_is_shared_up_to_the_needed_size() {
    assert_eq!(allot_lines(&[10, 4, 10], 18), [7, 4, 7]);
    assert_eq!(allot_lines(&[5, 5], 100), [5, 5]);
    assert_eq!(allot_lines(&[9, 9, 9], 9), [5, 4, 0]);
    assert_eq!(allot_lines(&[], 9), [0; 0]);
}
