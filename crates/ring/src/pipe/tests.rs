use super::*;
use crate::channel::Channel;
use crate::layout::Options;
use crate::shared::SharedMemory;
use std::sync::Arc;

fn shared(bytes: usize) -> Arc<SharedMemory> {
    let options = Options {
        threads: 1,
        worker_slots: 1,
        slots: 1,
        request_bytes: bytes,
        response_bytes: bytes,
        process_slots: 1,
        slot_fds: false,
    };
    Arc::clone(Channel::create(&options).unwrap().shared())
}

#[test]
fn frames_of_every_length_round_trip() {
    let shared = shared(64);
    let pipe = shared.slot(0, 0).request();
    let mut writer = Writer::new();
    let mut reader = Reader::new();
    for round in 0..200u32 {
        let payload: Vec<u8> = (0..round % 61).map(|byte| (byte + round) as u8).collect();
        assert!(writer.payload_room(pipe, payload.len() as u32).unwrap() >= Some(payload.len() as u32));
        writer.write_frame(pipe, FrameKind::Data, &payload);
        assert_eq!(reader.next(pipe), Ok(None), "not published yet");
        writer.publish(pipe, false);
        assert_eq!(
            reader.next(pipe),
            Ok(Some(Frame { kind: FrameKind::Data, unread: payload.len() as u32 }))
        );
        let mut back = Vec::new();
        if payload.is_empty() {
            reader.append(pipe, 1, &mut back);
        }
        // In pieces of seven bytes, with both ways of reading.
        while back.len() < payload.len() {
            if back.len() % 2 == 0 {
                reader.append(pipe, 7, &mut back);
            } else {
                let mut piece = [0; 7];
                let count = reader.copy(pipe, &mut piece);
                back.extend_from_slice(&piece[..count]);
            }
        }
        assert_eq!(back, payload);
        assert!(reader.should_report(pipe));
        reader.report(pipe);
    }
    writer.publish(pipe, true);
    assert_eq!(reader.next(pipe), Ok(None));
    assert!(reader.has_ended());
}

#[test]
fn body_passes_through_an_area_smaller_than_itself() {
    let shared = shared(128);
    let pipe = shared.slot(0, 0).response();
    let mut writer = Writer::new();
    let mut reader = Reader::new();
    let body: Vec<u8> = (0..10_000u32).map(|byte| (byte * 7) as u8).collect();
    let mut sent = 0;
    let mut back = Vec::new();
    while back.len() < body.len() {
        sent += writer.write_body(pipe, &body[sent..]).unwrap();
        writer.publish(pipe, sent == body.len());
        while reader.next(pipe).unwrap().is_some() {
            reader.append(pipe, 50, &mut back);
        }
        assert!(reader.should_report(pipe), "an emptied area is always reported");
        reader.report(pipe);
    }
    assert_eq!(back, body);
    assert!(reader.is_empty(pipe).unwrap() && reader.has_ended());
}

#[test]
fn nearly_full_area_accepts_only_whole_payloads() {
    let shared = shared(128);
    let pipe = shared.slot(0, 0).response();
    let mut writer = Writer::new();
    assert_eq!(writer.write_body(pipe, &[1; 500]), Ok(124));
    assert_eq!(writer.write_body(pipe, &[1]), Ok(0));
    // Twenty bytes are free: enough for a whole payload of sixteen, but too little for a part of a larger
    // one.
    pipe.tail.store(20, Relaxed);
    assert_eq!(writer.write_body(pipe, &[1; 100]), Ok(0));
    assert_eq!(writer.write_body(pipe, &[1; 16]), Ok(16));
}

#[test]
fn reader_rejects_invalid_positions() {
    let shared = shared(64);
    let pipe = shared.slot(0, 0).response();
    for head in [2, 5, 68, 1 << 31, u32::MAX, u32::MAX - 3] {
        pipe.head.store(head, Relaxed);
        let expected = if head == 5 { Ok(None) } else { Err(ProtocolViolation::Position) };
        // 4 and the `ENDED` flag: a frame's word without payload, whose kind is 0.
        let found = Reader::new().next(pipe);
        assert!(
            found == expected || (head == 5 && found == Err(ProtocolViolation::Frame)),
            "{head}: {found:?}"
        );
    }
}

#[test]
fn reader_rejects_invalid_frames() {
    let shared = shared(64);
    let pipe = shared.slot(0, 0).response();
    pipe.head.store(16, Relaxed);
    for word in [0u32, 7, 2 | 13 << 8, 2 | 0xff_ffff << 8, u32::MAX] {
        pipe.region.words()[pipe.base / 4].store(word, Relaxed);
        assert_eq!(Reader::new().next(pipe), Err(ProtocolViolation::Frame), "{word:#x}");
    }
    pipe.region.words()[pipe.base / 4].store(2 | 12 << 8, Relaxed);
    assert_eq!(Reader::new().next(pipe), Ok(Some(Frame { kind: FrameKind::Data, unread: 12 })));
}

#[test]
fn writer_rejects_invalid_tails() {
    let shared = shared(64);
    let pipe = shared.slot(0, 0).request();
    for tail in [1, 2, 64, 128, u32::MAX - 3] {
        let mut writer = Writer::new();
        writer.write_frame(pipe, FrameKind::Data, &[0; 56]);
        pipe.tail.store(tail, Relaxed);
        assert_eq!(writer.payload_room(pipe, 56), Err(ProtocolViolation::Position), "{tail}");
    }
    let mut writer = Writer::new();
    writer.write_frame(pipe, FrameKind::Data, &[0; 56]);
    pipe.tail.store(60, Relaxed);
    assert_eq!(writer.payload_room(pipe, 56), Ok(Some(60)));
    writer.write_frame(pipe, FrameKind::Data, &[0; 60]);
    assert_eq!(writer.payload_room(pipe, 0), Ok(None), "not even an empty frame");
}

#[test]
fn positions_wrap_around_at_32_bits() {
    let shared = shared(64);
    let pipe = shared.slot(0, 0).request();
    let start = u32::MAX - 19;
    let mut writer = Writer { at: start, tail: start };
    let mut reader = Reader { at: start, head: start, reported: start, ..Reader::new() };
    for round in 0..4u8 {
        writer.write_frame(pipe, FrameKind::Data, &[round; 11]);
        writer.publish(pipe, false);
        let mut back = Vec::new();
        assert_eq!(reader.next(pipe).unwrap().unwrap().unread, 11);
        reader.append(pipe, 64, &mut back);
        assert_eq!(back, [round; 11]);
        reader.report(pipe);
        assert_eq!(writer.payload_room(pipe, 60), Ok(Some(60)));
    }
}
