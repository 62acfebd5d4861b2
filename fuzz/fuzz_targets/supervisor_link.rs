//! Fuzzes packets from a compromised server to its supervisor. Each line is a packet: an optional byte with
//! the number of descriptors, and the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use link::{DESCRIPTORS_MAX, LinkState, REQUEST_DESCRIPTORS_MAX, LinkRequest, LinkSession};

fuzz_target!(|input: &[u8]| {
    let mut session = LinkSession::default();
    let mut collected = 0;
    for packet in input.split(|byte| *byte == b'\n') {
        let (count, text) = packet.split_first().map_or((0, packet), |(first, rest)| match first {
            0x80.. => (usize::from(*first - 0x80), rest),
            _ => (0, packet),
        });
        let text = String::from_utf8_lossy(text);
        let before = session.state();
        let Ok(request) = session.accept(&text, count) else { return };
        // An accepted packet has exactly one meaning and one text.
        assert_eq!(request.to_string(), text);
        assert_eq!(LinkRequest::parse(&text), Ok(request));
        assert!(count <= DESCRIPTORS_MAX);
        collected += count;
        assert!(collected <= REQUEST_DESCRIPTORS_MAX);
        if request != LinkRequest::More {
            assert!(request.accepts_descriptors(collected));
            collected = 0;
        }
        match before {
            LinkState::Fresh => assert!(matches!(request, LinkRequest::Start | LinkRequest::Failed(_))),
            LinkState::Failed => unreachable!("nothing follows a failure"),
            LinkState::Starting => assert!(!matches!(request, LinkRequest::Start | LinkRequest::Upgrade | LinkRequest::Config)),
            LinkState::Serving => assert!(!matches!(request, LinkRequest::Start | LinkRequest::Ready)),
        }
        if request == LinkRequest::Config {
            session.set_offered(packet.len() % 2 == 0);
        }
    }
});
