use super::*;

fn item(name: &str, kind: FolderItemKind, modified_s: i64) -> FolderItem {
    FolderItem { name: name.into(), kind, modified_s }
}

fn folder() -> FolderItems {
    let items = vec![
        item("b.txt", FolderItemKind::File(1536), 784_111_777),
        item("<a>&\"'.txt", FolderItemKind::File(17), 1_795_253_400),
        item("zoo", FolderItemKind::Folder, 0),
        item("c:d%.bin", FolderItemKind::File(24_000_000), 951_782_400),
    ];
    FolderItems { items, is_truncated: false }
}

fn names(style: ListingStyle) -> Vec<String> {
    let mut items = folder().items;
    sort(&mut items, style);
    items.into_iter().map(|item| String::from_utf8(item.name).unwrap()).collect()
}

const PLAIN: ListingStyle =
    ListingStyle { format: ListingFormat::Html, sort: SortKey::Name, descending: false };

#[test]
fn html_listing_equals_the_golden_file() {
    let mut folder = folder();
    sort(&mut folder.items, PLAIN);
    assert_eq!(html(b"/files/my <pics>/", &folder, PLAIN), include_str!("golden.html"));
}

#[test]
fn json_listing_equals_the_golden_file() {
    let mut folder = folder();
    sort(&mut folder.items, PLAIN);
    folder.items.push(item("quote\" back\\ line\n", FolderItemKind::File(0), -1));
    assert_eq!(json(b"/files/", &folder), include_str!("golden.json"));
}

#[test]
fn directories_are_listed_first_and_files_sorted() {
    let by = |sort, descending| names(ListingStyle { sort, descending, ..PLAIN });
    let a = "<a>&\"'.txt";
    let b = "b.txt";
    let c = "c:d%.bin";
    let zoo = "zoo";
    assert_eq!(by(SortKey::Name, false), [zoo, a, b, c]);
    assert_eq!(by(SortKey::Name, true), [zoo, c, b, a]);
    assert_eq!(by(SortKey::Size, true), [zoo, c, b, a]);
    assert_eq!(by(SortKey::Size, false), [zoo, a, b, c]);
    assert_eq!(by(SortKey::Time, false), [zoo, b, c, a]);
}

#[test]
fn listing_style_depends_on_query_and_accept() {
    let json = ListingStyle { format: ListingFormat::Json, ..PLAIN };
    for (query, accept, want) in [
        ("", "", PLAIN),
        ("", "text/html,application/xhtml+xml,*/*;q=0.8", PLAIN),
        ("", "application/json", json),
        ("", "application/json;q=0.5, text/html", PLAIN),
        ("", "*/*", PLAIN),
        ("format=json", "text/html", json),
        ("format=html", "application/json", PLAIN),
        ("sort=size&order=desc", "", ListingStyle { sort: SortKey::Size, descending: true, ..PLAIN }),
        ("x=1&sort=time", "", ListingStyle { sort: SortKey::Time, ..PLAIN }),
        ("sort=colour&order=up&=&&format", "", PLAIN),
    ] {
        let got = ListingStyle::of(Some(query.as_bytes()), Some(accept.as_bytes()));
        assert_eq!(got, want, "{query} {accept}");
    }
    assert_eq!(ListingStyle::of(None, None), PLAIN);
}

#[test]
fn notes_report_empty_and_truncated_listings() {
    let empty = FolderItems::default();
    assert!(html(b"/", &empty, PLAIN).contains("<p>This folder is empty."));
    let cut = FolderItems { is_truncated: true, ..folder() };
    assert!(html(b"/", &cut, PLAIN).contains("<p>Only 4 entries are shown; there are more."));
    assert!(!html(b"/", &cut, PLAIN).contains("../"));
    assert!(html(b"/a/", &cut, PLAIN).contains("../"));
}

#[test]
fn misleading_characters_in_names_are_replaced() {
    let folder = FolderItems {
        items: vec![item("a\u{202e}gpj.exe\u{7}", FolderItemKind::File(0), 0)],
        is_truncated: false,
    };
    let page = html(b"/", &folder, PLAIN);
    assert!(page.contains("a\u{fffd}gpj.exe\u{fffd}") && page.contains("./a%E2%80%AEgpj.exe%07"));
}

#[test]
fn sizes_and_times_are_formatted() {
    for (bytes, want) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10 * 1024, "10 KiB"),
        (1024 * 1024 - 1, "1023 KiB"),
        (5 << 30, "5.0 GiB"),
        (u64::MAX, "15 EiB"),
    ] {
        let mut text = String::new();
        write_size(&mut text, bytes);
        assert_eq!(text, want);
    }
    for (unix_s, want) in [
        (0, "1970-01-01 00:00:00"),
        (-1, "1969-12-31 23:59:59"),
        (951_782_399, "2000-02-28 23:59:59"),
        (951_782_400, "2000-02-29 00:00:00"),
        (951_868_800, "2000-03-01 00:00:00"),
        (1_795_253_400, "2026-11-21 09:30:00"),
        (4_107_542_400, "2100-03-01 00:00:00"),
    ] {
        assert_eq!(format_time(unix_s, ' ', true), want);
    }
}
