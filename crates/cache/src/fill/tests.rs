//! Tests of the readers and the writer of a fill.

use super::*;

const MAX: u64 = 1 << 20;

fn fill() -> (Arc<Fill>, FillReader, Arc<FillCounts>) {
    let count = Arc::default();
    let (fill, reader) = Fill::new(b"k"[..].into(), None, 0, MAX, &count);
    (fill, reader, count)
}

fn response(outcome: Result<(RequestVariant, Freshness), NotStored>, length: Option<u64>) -> FillResponse {
    let is_shared = outcome.is_ok();
    FillResponse { status: Status::OK, fields: Fields::new(), length, outcome, is_shared }
}

fn stored() -> Result<(RequestVariant, Freshness), NotStored> {
    Ok((RequestVariant::default(), crate::object::tests::freshness(0, 10)))
}

fn read(reader: &FillReader) -> (Vec<u8>, Poll<Result<(), IncompleteResponse>>) {
    let cx = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    loop {
        match reader.poll_piece(&cx) {
            Poll::Ready(Ok(Some(piece))) => all.extend_from_slice(&piece),
            Poll::Ready(Ok(None)) => return (all, Poll::Ready(Ok(()))),
            Poll::Ready(Err(broken)) => return (all, Poll::Ready(Err(broken))),
            Poll::Pending => return (all, Poll::Pending),
        }
    }
}

#[test]
fn every_reader_receives_the_whole_body_whenever_it_joins() {
    let (fill, first, count) = fill();
    let cx = Context::from_waker(Waker::noop());
    assert!(first.poll_head(&cx).is_pending());
    fill.respond(response(stored(), None));
    assert!(matches!(first.poll_head(&cx), Poll::Ready(FillHead::Response(_))));
    let bytes: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
    fill.write(&bytes[..100_000]);
    assert_eq!(read(&first), (bytes[..100_000].to_vec(), Poll::Pending));
    let second = fill.join().unwrap();
    assert_eq!(read(&second).0, bytes[..100_000]);
    fill.write(&bytes[100_000..]);
    let body = fill.body().unwrap();
    fill.finish();
    assert_eq!(body.slices(0..MAX).flatten().copied().collect::<Vec<u8>>(), bytes);
    assert_eq!(read(&first), (bytes[100_000..].to_vec(), Poll::Ready(Ok(()))));
    assert!(fill.join().is_none(), "what is complete is found in the store");
    drop((first, second));
    assert_eq!(count.all.load(Ordering::Relaxed), 1);
    drop(fill);
    assert_eq!(count.all.load(Ordering::Relaxed), 0);
}

#[test]
fn unstored_response_is_sent_only_to_the_leader() {
    let (fill, leader, _) = fill();
    let follower = fill.join().unwrap();
    let cx = Context::from_waker(Waker::noop());
    fill.respond(response(Err(NotStored::Private), None));
    assert!(matches!(leader.poll_head(&cx), Poll::Ready(FillHead::Response(_))));
    assert!(matches!(follower.poll_head(&cx), Poll::Ready(FillHead::NotShared)));
    drop(follower);
    fill.write(&vec![1; 300_000]);
    assert_eq!(fill.backlog(), 300_000 - WINDOW_BYTES);
    assert_eq!(read(&leader).0.len(), 300_000);
    assert_eq!((fill.backlog(), fill.held_bytes()), (0, fill.held_bytes().min(PIECE_BYTES)));
    assert!(!fill.is_abandoned());
    drop(leader);
    assert!(fill.is_abandoned() && fill.body().is_none());
}

#[test]
fn oversized_response_still_reaches_its_readers() {
    let (fill, leader, _) = fill();
    let follower = fill.join().unwrap();
    fill.respond(response(stored(), None));
    fill.write(&vec![1; MAX as usize]);
    assert_eq!(fill.backlog(), 0);
    fill.write(&[1]);
    assert!(fill.backlog() > 0 && fill.join().is_none());
    assert_eq!(read(&leader).0.len(), MAX as usize + 1);
    assert_eq!(fill.backlog(), 0, "the fastest reader decides");
    assert_eq!(read(&follower).0.len(), MAX as usize + 1);
    assert!(fill.body().is_none());
}

#[test]
fn slow_reader_does_not_delay_others() {
    let (fill, leader, _) = fill();
    let second = fill.join().unwrap();
    let slow = fill.join().unwrap();
    fill.respond(response(stored(), None));
    let piece = vec![1; PIECE_BYTES];
    for _ in 0..100 {
        fill.write(&piece);
        assert_eq!((read(&leader).1, read(&second).1), (Poll::Pending, Poll::Pending));
        assert_eq!(fill.backlog(), 0);
        assert!(fill.held_bytes() as u64 <= LAG_BYTES_MAX + 2 * PIECE_BYTES as u64);
    }
    assert!(fill.held_bytes() <= 2 * PIECE_BYTES, "nothing is kept for it any more");
    assert_eq!(read(&slow), (Vec::new(), Poll::Ready(Err(IncompleteResponse))));
    // A single reader, or one as slow as all others, is waited for.
    drop((leader, slow));
    (0..100).for_each(|_| fill.write(&piece));
    assert!(fill.backlog() > 0);
    assert_eq!(read(&second), (vec![1; 100 * PIECE_BYTES], Poll::Pending));
}

#[test]
fn interim_responses_are_bounded_and_reach_their_readers() {
    let cx = Context::from_waker(Waker::noop());
    let interim = |bytes: usize| {
        let fields = crate::object::tests::fields(&[("Link", &"x".repeat(bytes))]);
        InterimResponse { status: Status::of(103).unwrap(), fields }
    };
    let count = |reader: &FillReader| {
        let next = || match reader.poll_interim(&cx) {
            Poll::Ready(Some(interim)) => Some(interim),
            _ => None,
        };
        std::iter::from_fn(next).count()
    };
    for (is_shared, for_others) in [(true, INTERIMS_MAX), (false, 0)] {
        let (fill, leader, _) = fill();
        let follower = fill.join().unwrap();
        assert!(leader.poll_interim(&cx).is_pending());
        for _ in 0..INTERIMS_MAX + 5 {
            fill.add_interim(interim(10), is_shared);
        }
        assert!(fill.held_bytes() > 0);
        assert_eq!((count(&leader), count(&follower)), (INTERIMS_MAX, for_others));
        assert_eq!(count(&fill.join().unwrap()), for_others, "one who joins later gets them too");
        fill.respond(response(stored(), None));
        assert!(matches!(leader.poll_interim(&cx), Poll::Ready(None)));
        fill.add_interim(interim(10), true);
        assert_eq!(count(&leader), 0);
    }
    let (fill, leader, _) = fill();
    fill.add_interim(interim(INTERIM_BYTES_MAX - 100), true);
    fill.add_interim(interim(100), true);
    assert_eq!(count(&leader), 1, "their bytes are limited");
}

#[test]
fn failed_fill_is_reported_to_readers() {
    let (fill, leader, _) = fill();
    fill.respond(response(stored(), Some(5)));
    fill.write(b"abc");
    fill.fail();
    assert_eq!(read(&leader), (b"abc".to_vec(), Poll::Ready(Err(IncompleteResponse))));
    let (other, reader, _) = self::fill();
    other.fail();
    let cx = Context::from_waker(Waker::noop());
    assert!(matches!(reader.poll_head(&cx), Poll::Ready(FillHead::Failed)));
}

#[test]
fn number_of_fills_without_clients_is_limited() {
    let counts: Arc<FillCounts> = Arc::default();
    let begin = || Fill::new(b"k"[..].into(), None, 0, MAX, &counts);
    let left: Vec<Arc<Fill>> = (0..CLIENTLESS_MAX + 10).map(|_| begin().0).collect();
    assert_eq!(left.iter().filter(|fill| fill.is_abandoned()).count(), 10);
    assert!(left.last().unwrap().join().is_none(), "nobody waits for one that is given up");
    // Joining a fill without clients makes room for another.
    let reader = left[0].join().unwrap();
    let last = begin().0;
    assert!(!last.is_abandoned());
    let (fill, leader) = begin();
    fill.respond(response(stored(), None));
    fill.write(b"some of it");
    drop(leader);
    assert!(fill.is_abandoned(), "a response that is not complete counts, too");
    let (fill, leader) = begin();
    fill.respond(response(stored(), None));
    fill.finish();
    drop(leader);
    assert!(!fill.is_abandoned(), "a complete one is stored");
    let (fill, leader) = begin();
    leader.leave_to_background();
    assert!(!fill.is_abandoned(), "one that no client has asked for");
    drop((reader, left, last));
    assert_eq!((counts.clientless.load(Ordering::Relaxed), counts.all.load(Ordering::Relaxed)), (0, 3));
}

#[test]
fn followers_of_a_validation_may_get_another_response() {
    let object = |name| Arc::new(crate::object::tests::object(&[(name, "1")], ""));
    let cx = Context::from_waker(Waker::noop());
    for shared in [None, Some(object("Shared"))] {
        let (fill, leader, _) = fill();
        let follower = fill.join().unwrap();
        fill.serve_stored(object("Own"), shared.clone(), Validated::NotModified);
        let Poll::Ready(FillHead::Stored(own, _)) = leader.poll_head(&cx) else {
            panic!("nothing for the leader")
        };
        assert!(own.fields.first(b"own").is_some());
        match (follower.poll_head(&cx), shared) {
            (Poll::Ready(FillHead::NotShared), None) => {}
            (Poll::Ready(FillHead::Stored(got, _)), Some(shared)) => assert!(Arc::ptr_eq(&got, &shared)),
            other => panic!("{other:?}"),
        }
    }
}
