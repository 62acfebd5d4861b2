use super::*;

fn record(kind: u8, content: &[u8], padding: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    header(&mut bytes, kind, content.len());
    bytes[6] = padding;
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len() + usize::from(padding), 0);
    bytes
}

fn end(protocol_status: u8) -> Vec<u8> {
    record(END_REQUEST, &[0, 0, 0, 0, protocol_status, 0, 0, 0], 0)
}

/// Reads pieces of bytes: returns the response, the error messages, and the last step.
fn read(pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>, RecordStep), &'static str> {
    let mut reader = FastCgiReader::default();
    let mut output = Vec::new();
    let mut errors = Vec::new();
    let mut last = RecordStep::NeedMore;
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let (consumed, step) = reader.feed(rest)?;
            rest = &rest[consumed..];
            last = step;
            match step {
                RecordStep::NeedMore => break,
                RecordStep::Output(len) => {
                    output.extend_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
                RecordStep::Errors(len) => {
                    errors.extend_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
                RecordStep::End | RecordStep::Overloaded => break,
            }
        }
    }
    Ok((output, errors, last))
}

#[test]
fn fastcgi_response_is_read_alike_however_it_is_split() {
    let large = vec![b'x'; 65_535];
    let bytes = [
        record(STDERR, b"PHP message: oh", 1),
        record(STDOUT, b"Status: 200\r\n\r\nhel", 5),
        record(STDERR, b"", 0),
        record(STDOUT, b"lo", 0),
        record(STDOUT, b"", 3),
        end(0),
    ]
    .concat();
    let want = (b"Status: 200\r\n\r\nhello".to_vec(), b"PHP message: oh".to_vec(), RecordStep::End);
    assert_eq!(read(&[&bytes]), Ok(want.clone()));
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single), Ok(want.clone()));
    for at in 0..bytes.len() {
        let (left, right) = bytes.split_at(at);
        assert_eq!(read(&[left, right]), Ok(want.clone()), "split at {at}");
    }
    let (output, ..) = read(&[&record(STDOUT, &large, 255), &end(0)]).expect("a large record");
    assert_eq!(output, large);
}

#[test]
fn invalid_fastcgi_records_are_errors() {
    let with = |at: usize, byte: u8| {
        let mut bytes = record(STDOUT, b"x", 0);
        bytes[at] = byte;
        bytes
    };
    for (bytes, reason) in [
        (with(0, 2), "does not speak"),
        (b"HTTP/1.1 200 OK\r\n".to_vec(), "does not speak"),
        (with(3, 2), "another request"),
        (with(3, 0), "another request"),
        (with(2, 1), "another request"),
        (with(1, 0), "of a kind"),
        (with(1, BEGIN_REQUEST), "of a kind"),
        (with(1, STDIN), "of a kind"),
        (with(1, 11), "of a kind"),
        (record(END_REQUEST, b"", 0), "another length"),
        (record(END_REQUEST, &[0; 9], 0), "another length"),
        ([record(STDOUT, b"", 0), record(STDOUT, b"", 0)].concat(), "has ended"),
        ([record(STDERR, b"", 0), record(STDERR, b"x", 0)].concat(), "has ended"),
        (end(1), "beside others"),
        (end(3), "no FastCGI responder"),
        (end(9), "a status"),
    ] {
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        for pieces in [vec![&bytes[..]], single] {
            let error = read(&pieces).expect_err("an error");
            assert!(error.contains(reason), "{bytes:?}: {error}");
        }
    }
    assert_eq!(read(&[&end(2)]).map(|(.., step)| step), Ok(RecordStep::Overloaded));
}

#[test]
fn padding_after_the_end_record_is_skipped() {
    let mut reader = FastCgiReader::default();
    let bytes = record(END_REQUEST, &[0; 8], 3);
    assert_eq!(reader.feed(&bytes), Ok((16, RecordStep::End)));
    assert!(!reader.is_record_complete());
    assert_eq!(reader.skip_padding(b"ab"), 2);
    assert_eq!(reader.skip_padding(b"cdef"), 1);
    assert!(reader.is_record_complete());
    assert_eq!(reader.feed(b"more"), Ok((0, RecordStep::End)));
}

#[test]
fn request_records_have_one_id_and_no_padding() {
    let mut variables = Variables::new();
    variables.push(b"A", b"b");
    let mut out = Vec::new();
    begin(&mut out, &variables, true);
    assert_eq!(out[..16], [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(out[16..28], [1, 4, 0, 1, 0, 4, 0, 0, 1, 1, b'A', b'b']);
    assert_eq!(out[28..], [1, 4, 0, 1, 0, 0, 0, 0]);
    variables.push(b"LONG", &[b'v'; 100_000]);
    out.clear();
    begin(&mut out, &variables, false);
    assert_eq!(out[10], 0);
    assert_eq!(out.len(), 16 + 8 * 3 + variables.block().len());
    out.clear();
    assert_eq!(body_header(&mut out, 100_000), CONTENT_BYTES_MAX);
    assert_eq!(body_header(&mut out, 3), 3);
    end_body(&mut out);
    assert_eq!(out, [1, 5, 0, 1, 0xff, 0xf8, 0, 0, 1, 5, 0, 1, 0, 3, 0, 0, 1, 5, 0, 1, 0, 0, 0, 0]);
}
