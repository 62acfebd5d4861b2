//! Random packets against an independent model of the protocol: a table of the requests that each state
//! allows.

use link::{DESCRIPTORS_MAX, LinkRequest, LinkSession, LinkState, REQUEST_DESCRIPTORS_MAX};

const RUNS: u64 = 2_000;
const PACKETS: usize = 60;

/// Requests, the states that allow them (F: before the start, S: starting, R: serving), whether they need an
/// offer, and their descriptors.
const TABLE: &[(&str, &str, bool, usize)] = &[
    ("start", "F", false, 0),
    ("ready", "S", false, 0),
    ("failed it is full", "FSR", false, 0),
    ("alive", "SR", false, 0),
    ("reloaded again", "R", false, 0),
    ("upgrade", "R", false, 0),
    ("config", "R", false, 0),
    ("adopted", "SR", true, 0),
    ("rejected", "SR", false, 0),
    ("sockets 1 0", "SR", true, 0),
    ("open /log", "SR", false, 0),
    ("read /key", "SR", false, 0),
    ("list /keys", "SR", false, 0),
    ("control-file /run/a.sock", "SR", false, 0),
    ("launch a 0 1 150", "SR", false, 154),
    ("launch a 0 0 2", "SR", false, 6),
    ("signal a 15", "SR", false, 1),
    ("usage a", "SR", false, 1),
    ("own-usage", "SR", false, 0),
    ("ended 7", "SR", false, 0),
    ("file a 3", "SR", false, 1),
    ("descriptor 3", "", false, 0),
    ("identity 0 0 0 root", "", false, 0),
    ("start twice", "", false, 0),
];

/// A seeded random number generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

#[test]
fn session_accepts_exactly_what_the_model_allows() {
    let mut accepted = 0_u64;
    let mut refused = 0_u64;
    for seed in 0..RUNS {
        let mut random = Random(seed);
        let mut session = LinkSession::default();
        let mut state = 'F';
        let mut offer = false;
        let mut ahead = 0;
        for _ in 0..PACKETS {
            // Mostly a request that the state allows, so that sessions last.
            let allowed: Vec<_> =
                TABLE.iter().filter(|row| row.1.contains(state) && (!row.2 || offer)).collect();
            let (text, states, needs_offer, wanted) = match random.below(12) {
                1.. if !allowed.is_empty() => *allowed[random.below(allowed.len())],
                _ => TABLE[random.below(TABLE.len())],
            };
            // Mostly the right number of descriptors, otherwise too few or too many.
            let count = match random.below(16) {
                0 => random.below(4),
                _ => wanted.saturating_sub(ahead).min(DESCRIPTORS_MAX),
            };
            let (text, count) = match random.below(16) {
                0 => ("more", random.below(DESCRIPTORS_MAX + 2)),
                _ => (text, count),
            };
            let is_right = match text {
                "more" => {
                    "SR".contains(state)
                        && (1..=DESCRIPTORS_MAX).contains(&count)
                        && ahead + count <= REQUEST_DESCRIPTORS_MAX
                }
                _ => states.contains(state) && (!needs_offer || offer) && ahead + count == wanted,
            };
            let outcome = session.accept(text, count);
            assert_eq!(
                outcome.is_ok(),
                is_right,
                "seed {seed}: {text:?} with {count} in {state}, {ahead} ahead: {outcome:?}"
            );
            let Ok(request) = outcome else {
                refused += 1;
                break;
            };
            accepted += 1;
            ahead = if request == LinkRequest::More { ahead + count } else { 0 };
            match request {
                LinkRequest::Start => state = 'S',
                LinkRequest::Ready => state = 'R',
                LinkRequest::Failed(_) => state = 'X',
                LinkRequest::Adopted | LinkRequest::Rejected => offer = false,
                LinkRequest::Config => {
                    offer = random.below(3) > 0;
                    session.set_offered(offer);
                }
                _ => {}
            }
            let expected = match state {
                'F' => LinkState::Fresh,
                'S' => LinkState::Starting,
                'R' => LinkState::Serving,
                _ => LinkState::Failed,
            };
            assert_eq!(session.state(), expected);
        }
    }
    assert!(accepted > 2 * RUNS && refused > RUNS / 2, "{accepted} {refused}");
}
