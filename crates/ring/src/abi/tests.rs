use super::*;
use crate::channel::Channel;
use crate::layout::Options;
use crate::response_part::ResponsePart;
use std::process::Command;

const HEADER: &str = include_str!("../../../../workers/include/komainu.h");

fn field(id: u32, name: &str, value: &str) -> KomainuField {
    KomainuField {
        name: name.as_ptr().cast(),
        value: value.as_ptr().cast(),
        name_len: name.len() as u32,
        value_len: value.len() as u32,
        id,
    }
}

#[test]
fn request_is_served_through_the_c_functions() {
    let options = Options { worker_slots: 1, slots: 2, slot_fds: true, ..Options::default() };
    let channel = Channel::create(&options).unwrap();
    let mut server = channel.server(0);
    let mut head = Vec::new();
    wire::put(&mut head, FieldId::METHOD, b"POST").unwrap();
    wire::put_header(&mut head, b"Host", b"localhost").unwrap();
    wire::put_header(&mut head, b"X-Mine", b"1").unwrap();
    server.submit(&head, b"body", true).unwrap();

    let worker = KomainuWorker(channel.worker(WorkerSlot(0)));
    let text = |pointer: *const c_char, len: u32| {
        // SAFETY: a field of a live request.
        std::str::from_utf8(unsafe { slice_from(pointer, len as usize) }).unwrap().to_owned()
    };
    // SAFETY: live handles and local places throughout.
    unsafe {
        assert!(komainu_fd(&worker) > 2);
        assert_eq!(komainu_arm(&worker, 1), 0, "a request waits");
        let mut request = std::ptr::null_mut();
        assert_eq!(komainu_next(&worker, -1, &mut request), KOMAINU_OK);
        assert_eq!(komainu_next(&worker, 0, &mut std::ptr::null_mut()), KOMAINU_AGAIN);
        let mut fields = std::ptr::null();
        let count = komainu_fields(request, &mut fields);
        let fields = slice::from_raw_parts(fields, count);
        let seen: Vec<_> =
            fields.iter().map(|f| (f.id, text(f.name, f.name_len), text(f.value, f.value_len))).collect();
        let host = FieldId::of_header(b"host").unwrap().id().into();
        let expected = [(1, ":method", "POST"), (host, "host", "localhost"), (0, "X-Mine", "1")]
            .map(|(id, n, v)| (id, n.to_owned(), v.to_owned()));
        assert_eq!(seen, expected);

        assert_eq!(komainu_news(request), KOMAINU_READABLE);
        let mut body = [0; 9];
        assert_eq!(komainu_read(request, body.as_mut_ptr().cast(), 9), 4);
        assert_eq!(&body[..4], b"body");
        assert_eq!(komainu_try_read(request, body.as_mut_ptr().cast(), 9), 0);
        assert_eq!(komainu_write(request, b"x".as_ptr().cast(), 1, 0), KOMAINU_ORDER);
        let reply = [field(0, "Content-Type", "text/plain"), field(host, "", "h"), field(0, "X-Mine", "2")];
        assert_eq!(komainu_head(request, 200, reply.as_ptr(), 3), KOMAINU_OK);
        assert_eq!(komainu_write(request, b"OK".as_ptr().cast(), 2, KOMAINU_MORE), KOMAINU_OK);
        assert_eq!(komainu_try_write(request, b"!".as_ptr().cast(), 1), 1);
        assert_eq!(komainu_log(request, 6, b"line".as_ptr().cast(), 4), KOMAINU_OK);
        assert_eq!(komainu_cancelled(request), 0);
        assert_eq!(komainu_end(request), KOMAINU_OK);
    }
    let mut parts = Vec::new();
    server.poll(|server, ticket| {
        loop {
            let mut bytes = Vec::new();
            let Ok(Some(received)) = server.receive(ticket, &mut bytes, 100) else { break };
            parts.push((received.part, bytes));
        }
    });
    let (status, fields) = wire::response(&parts[0].1).unwrap();
    let fields: Vec<_> = fields.map(|field| field.map(|f| (f.name, f.value)).unwrap()).collect();
    let expected: [(&[u8], &[u8]); 3] =
        [(b"content-type", b"text/plain"), (b"host", b"h"), (b"X-Mine", b"2")];
    assert_eq!((status, fields.as_slice()), (200, &expected[..]));
    assert_eq!(parts[0].0, ResponsePart::Head);
    let rest = [
        (ResponsePart::Data, b"OK".to_vec()),
        (ResponsePart::Data, b"!".to_vec()),
        (ResponsePart::Log(6), b"line".to_vec()),
    ];
    let rest = [&rest[..], &[(ResponsePart::End, Vec::new())]].concat();
    assert_eq!(parts[1..], rest);
}

#[test]
fn attach_with_a_wrong_abi_version_reports_the_error() {
    let mut error = [0u8; 40];
    // SAFETY: a local buffer.
    let worker = unsafe { komainu_attach(KOMAINU_ABI + 1, 0, error.as_mut_ptr().cast(), error.len()) };
    assert!(worker.is_null());
    let text = CStr::from_bytes_until_nul(&error).unwrap().to_str().unwrap();
    assert!(text.starts_with("the module was built for version 2"), "{text}");
    assert_eq!(text.len(), 39, "cut to the buffer");
}

#[test]
fn c_header_matches_the_library() {
    for (name, value) in [
        ("KOMAINU_ABI", i64::from(KOMAINU_ABI)),
        ("KOMAINU_OK", KOMAINU_OK.into()),
        ("KOMAINU_AGAIN", KOMAINU_AGAIN.into()),
        ("KOMAINU_CANCELLED", KOMAINU_CANCELLED.into()),
        ("KOMAINU_ORDER", KOMAINU_ORDER.into()),
        ("KOMAINU_TOO_LARGE", KOMAINU_TOO_LARGE.into()),
        ("KOMAINU_BROKEN", KOMAINU_BROKEN.into()),
        ("KOMAINU_RETIRED", KOMAINU_RETIRED.into()),
        ("KOMAINU_MORE", KOMAINU_MORE.into()),
        ("KOMAINU_READABLE", KOMAINU_READABLE.into()),
        ("KOMAINU_WRITABLE", KOMAINU_WRITABLE.into()),
        ("KOMAINU_GONE", KOMAINU_GONE.into()),
        ("KOMAINU_CLIENT_CLOSED", KOMAINU_CLIENT_CLOSED.into()),
    ] {
        let found = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        let found = found.and_then(|rest| rest.split(' ').next()?.trim_matches(['(', ')']).parse().ok());
        assert_eq!(found, Some(value), "{name}");
    }
    // The ids of the request parts, by name.
    for id in 1..32u8 {
        let Some(name) = FieldId::of_id(id) else { continue };
        let define = format!("#define KOMAINU_{} {id}", name.text()[1..].replace('-', "_").to_uppercase());
        assert!(
            HEADER.contains(&format!("{define}\n")) || HEADER.contains(&format!("{define} ")),
            "{define}"
        );
    }
    let source = include_str!("../abi.rs");
    let ours: Vec<&str> = source
        .split("extern \"C\" fn ")
        .skip(1)
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| name.starts_with("komainu_"))
        .collect();
    assert!(ours.len() > 20);
    for name in ours {
        assert!(HEADER.contains(&format!("{name}(")), "{name} is not in the header");
    }
}

#[test]
fn c_header_compiles_as_c_and_cpp() {
    let source = r#"#include "komainu.h"
#include <stddef.h>
typedef char size_is_right[sizeof(komainu_field) == 32 ? 1 : -1];
typedef char id_is_last[offsetof(komainu_field, id) == 24 ? 1 : -1];
"#;
    assert_eq!((size_of::<KomainuField>(), std::mem::offset_of!(KomainuField, id)), (32, 24));
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/include");
    let file = std::env::temp_dir().join(format!("komainu-header-{}.c", std::process::id()));
    std::fs::write(&file, source).unwrap();
    for language in [["-xc", "-std=c99"], ["-xc++", "-std=c++11"]] {
        let run = Command::new("cc")
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", include])
            .args(language)
            .arg(&file)
            .output();
        let output = run.expect("a C compiler, which modules need too");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    std::fs::remove_file(file).unwrap();
}
