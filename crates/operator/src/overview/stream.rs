//! `GET /v1/events`: lines of the error log as server-sent events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Fields, Length, Name, Status};
use logging::events::{EVENTS_MAX, EventRing};
use net::{Exchange, Fault};
use times::{Millis, Moment};

/// Maximum number of clients.
const CLIENTS_MAX: usize = 16;
/// Interval between two checks for new lines.
const POLL_INTERVAL: Millis = Millis(250);
/// Interval of keep-alive comments, by which a disconnected client is noticed.
const KEEP_ALIVE_INTERVAL: Millis = Millis(15_000);
/// Lines sent at once to a new client.
const INITIAL_LINES_MAX: usize = 50;

/// Maximum duration of a stream without a token; browsers reconnect automatically. A client that no longer
/// reads cannot be detected while its kernel accepts data.
const OPEN_TIME_MAX: Millis = Millis(300_000);

/// The clients that follow events, oldest first. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventClients(Arc<Mutex<Vec<EventClient>>>);

#[derive(Debug)]
struct EventClient {
    has_token: bool,
    /// Name of the client's token or certificate, or its address.
    client: String,
    /// Set when the place is given to another client.
    is_displaced: Arc<AtomicBool>,
}

struct EventClientSlot {
    clients: EventClients,
    is_displaced: Arc<AtomicBool>,
}

impl Drop for EventClientSlot {
    fn drop(&mut self) {
        self.clients.lock().retain(|one| !Arc::ptr_eq(&one.is_displaced, &self.is_displaced));
    }
}

impl EventClients {
    fn lock(&self) -> MutexGuard<'_, Vec<EventClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a place. If all are taken, a client with a token displaces one without; otherwise the oldest
    /// stream of the client with the most streams is displaced, if that client has at least two more than
    /// this one.
    fn try_reserve(&self, client: &str, has_token: bool) -> Option<EventClientSlot> {
        let mut all = self.lock();
        if all.len() >= CLIENTS_MAX {
            let open = all.iter().position(|one| has_token && !one.has_token);
            let at = open.or_else(|| {
                let count = |client: &str| all.iter().filter(|one| one.client == client).count();
                let (at, most) = (0..all.len())
                    .map(|at| (at, count(&all[at].client)))
                    .rev()
                    .max_by_key(|(_, count)| *count)?;
                let may = has_token || !all[at].has_token;
                (may && most >= count(client) + 2).then_some(at)
            })?;
            all.remove(at).is_displaced.store(true, Ordering::Relaxed);
        }
        let is_displaced = Arc::new(AtomicBool::new(false));
        all.push(EventClient { has_token, client: client.to_owned(), is_displaced: is_displaced.clone() });
        Some(EventClientSlot { clients: self.clone(), is_displaced })
    }

    /// Sends the last lines, or those after `Last-Event-ID`, and then each new line, until the client
    /// disconnects or `is_over` returns true. Slow clients miss lines, which are not buffered for them. A
    /// stream without a token ends after [`OPEN_MS_MAX`], or when another client needs its place.
    pub(crate) async fn stream_events(
        &self,
        exchange: &mut Exchange<'_>,
        ring: &EventRing,
        client: &str,
        has_token: bool,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        let Some(follower) = self.try_reserve(client, has_token) else {
            let why = "16 clients follow the events already: close one, or try again";
            return exchange.refuse(Status::SERVICE_UNAVAILABLE, why).await;
        };
        let last_seen =
            exchange.request().fields().find(|(_, name, _)| name.eq_ignore_ascii_case(b"last-event-id"));
        let last_seen =
            last_seen.and_then(|(_, _, value)| std::str::from_utf8(value).ok()?.parse::<u64>().ok());
        // A larger number than the last one is from an earlier process.
        let resumed = last_seen.filter(|number| *number <= ring.last());
        let mut seen = resumed.unwrap_or(0);
        let mut count_max = if resumed.is_some() { EVENTS_MAX } else { INITIAL_LINES_MAX };
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/event-stream");
        fields.push(Name::CacheControl, b"no-store");
        exchange.begin(Status::OK, &fields, Length::Unknown);
        if !exchange.wants_content() {
            return Ok(());
        }
        // Send the head at once.
        exchange.write(b": lines of the error log\n\n").await?;
        let core = exchange.core().clone();
        let until = if has_token { Moment::NEVER } else { core.now() + OPEN_TIME_MAX };
        let mut silent_for = Millis::ZERO;
        loop {
            let mut text = String::new();
            for event in ring.after(seen, count_max) {
                seen = event.number;
                text.push_str(&format!("id: {seen}\ndata: {}\n\n", event.json()));
            }
            count_max = EVENTS_MAX;
            if text.is_empty() && silent_for >= KEEP_ALIVE_INTERVAL {
                text.push_str(":\n\n");
            }
            if text.is_empty() {
                silent_for = silent_for + POLL_INTERVAL
            } else {
                silent_for = Millis::ZERO;
                exchange.write(text.as_bytes()).await?;
            }
            exchange.flush().await?;
            if is_over() || core.now() >= until || follower.is_displaced.load(Ordering::Relaxed) {
                return Ok(());
            }
            core.sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_stream_with_a_token_displaces_one_without() {
        let followers = EventClients::default();
        let begin = |at: usize, has_token| followers.try_reserve(&format!("client {at}"), has_token);
        let mut open: Vec<EventClientSlot> = (0..CLIENTS_MAX).filter_map(|at| begin(at, false)).collect();
        assert!(open.len() == CLIENTS_MAX && begin(99, false).is_none());
        let holders: Vec<EventClientSlot> = (0..CLIENTS_MAX).filter_map(|at| begin(100 + at, true)).collect();
        assert!(holders.len() == CLIENTS_MAX && begin(999, true).is_none());
        assert!(open.iter().all(|one| one.is_displaced.load(Ordering::Relaxed)));
        // Dropping a displaced follower frees no place.
        open.clear();
        assert!(begin(99, false).is_none() && begin(999, true).is_none());
        drop(holders);
        assert!(followers.lock().is_empty() && begin(99, false).is_some());
    }

    #[test]
    fn client_with_most_event_streams_is_displaced_by_others() {
        let followers = EventClients::default();
        let greedy: Vec<EventClientSlot> =
            (0..CLIENTS_MAX).filter_map(|_| followers.try_reserve("greedy", true)).collect();
        assert!(greedy.len() == CLIENTS_MAX && followers.try_reserve("greedy", true).is_none());
        assert!(
            followers.try_reserve("open", false).is_none(),
            "one without a token displaces none with one"
        );
        let other: Vec<EventClientSlot> =
            (0..CLIENTS_MAX).filter_map(|_| followers.try_reserve("other", true)).collect();
        assert_eq!(other.len(), CLIENTS_MAX / 2);
        assert!(greedy[0].is_displaced.load(Ordering::Relaxed), "the oldest goes first");
        let left = greedy.iter().filter(|one| !one.is_displaced.load(Ordering::Relaxed)).count();
        assert_eq!(left, CLIENTS_MAX / 2);
    }
}
