//! `GET /v1/events`: the lines of the error log as they come, as server-sent events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Fields, Length, Name, Status};
use net::{Exchange, Fault};

use crate::events::{EVENTS_MAX, EventRing};

/// Clients that follow at the same time.
const FOLLOWERS_MAX: usize = 16;
/// How often it is looked for new lines.
const LOOK_MS: u64 = 250;
/// How often a client is sent something, so that one that has left is noticed.
const ALIVE_MS: u64 = 15_000;
/// Lines that one who begins to follow is sent at once.
const FIRST_MAX: usize = 50;

/// Those who follow. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers(Arc<AtomicUsize>);

struct Follower(Arc<AtomicUsize>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Followers {
    fn begin(&self) -> Option<Follower> {
        let follower = Follower(self.0.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < FOLLOWERS_MAX).then_some(follower)
    }

    /// Sends the last lines, or those after `Last-Event-ID`, and each new one, until the client leaves or `is_over`. Who reads slowly
    /// misses lines, and holds none of them here.
    pub(crate) async fn follow(
        &self,
        exchange: &mut Exchange<'_>,
        ring: &EventRing,
        is_over: impl Fn() -> bool,
    ) -> Result<(), Fault> {
        let Some(_follower) = self.begin() else {
            let why = "16 clients follow the events already: close one, or try again";
            return exchange.refuse(Status::SERVICE_UNAVAILABLE, why).await;
        };
        let last_seen =
            exchange.request().fields().find(|(_, name, _)| name.eq_ignore_ascii_case(b"last-event-id"));
        let last_seen =
            last_seen.and_then(|(_, _, value)| std::str::from_utf8(value).ok()?.parse::<u64>().ok());
        // A number that is still to come is one of an earlier process.
        let resumed = last_seen.filter(|number| *number <= ring.last());
        let (mut seen, mut count_max) =
            (resumed.unwrap_or(0), if resumed.is_some() { EVENTS_MAX } else { FIRST_MAX });
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/event-stream");
        fields.push(Name::CacheControl, b"no-store");
        exchange.begin(Status::OK, &fields, Length::Unknown);
        if !exchange.content_wanted() {
            return Ok(());
        }
        // The client sees at once that it is answered.
        exchange.write(b": lines of the error log\n\n").await?;
        let core = exchange.core().clone();
        let mut silent_ms = 0;
        loop {
            let mut text = String::new();
            for event in ring.after(seen, count_max) {
                seen = event.number;
                text.push_str(&format!("id: {seen}\ndata: {}\n\n", event.json()));
            }
            count_max = EVENTS_MAX;
            if text.is_empty() && silent_ms >= ALIVE_MS {
                text.push_str(":\n\n");
            }
            match text.is_empty() {
                true => silent_ms += LOOK_MS,
                false => {
                    silent_ms = 0;
                    exchange.write(text.as_bytes()).await?;
                }
            }
            exchange.flush().await?;
            if is_over() {
                return Ok(());
            }
            core.sleep(LOOK_MS).await;
        }
    }
}
