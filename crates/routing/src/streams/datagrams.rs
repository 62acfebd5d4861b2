//! Sessions of streams over UDP: which server they go to, and when the configuration ends them.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use engine::generations::{CoreGeneration, RequestGuard};
use logging::access::stream::StreamEnd;
use net::{
    Core, DatagramClient, DatagramEnd, DatagramRelayOptions, DropReason, Peer, ServeDatagrams, StreamStart,
};
use proxy::{DATAGRAM_REFUSED, OpenStreamError};

use crate::streams::configured::StreamLog;
use crate::streams::limits::StreamPermits;
use crate::streams::report::StreamReport;
use crate::streams::route::StreamRoutes;

/// Returns the generation in force, and whether its configuration has a place for a session.
pub(crate) type CurrentGeneration = Rc<dyn Fn(&SessionPlace<'_>) -> (Rc<CoreGeneration>, bool)>;

/// The place of a session in a configuration.
pub(crate) struct SessionPlace<'s> {
    listener: &'s str,
    label: &'s str,
    /// The server's name, if one is chosen.
    upstream: Option<&'s str>,
    client: Peer,
    /// The generation that is known to have the place.
    known: &'s Rc<CoreGeneration>,
}

impl SessionPlace<'_> {
    /// Whether the session may continue with the streams of a generation.
    pub(crate) fn is_in(&self, streams: &StreamRoutes, generation: &Rc<CoreGeneration>) -> bool {
        Rc::ptr_eq(self.known, generation)
            || streams.datagram_stream(self.listener).is_some_and(|stream| {
                let has = |name| (0..stream.servers.len()).any(|at| &**stream.group.display_name(at) == name);
                stream.label == self.label && stream.admits(self.client) && self.upstream.is_none_or(has)
            })
    }
}

/// A session, its generation, and its place in the configuration.
struct RelayedSession {
    report: Rc<StreamReport>,
    listener: String,
    client: Peer,
    generation: RefCell<(Rc<CoreGeneration>, RequestGuard)>,
    current: CurrentGeneration,
}

impl RelayedSession {
    /// Whether the configuration has a place for the session. The session belongs to the generation in force from
    /// then on: otherwise a client that never stops would keep the configuration that it began with.
    fn is_valid(&self) -> bool {
        let mut own = self.generation.borrow_mut();
        let stream = &self.report.stream;
        let place = SessionPlace {
            listener: &self.listener,
            label: &stream.label,
            upstream: self.report.upstream.get().map(|server| &**stream.group.display_name(server)),
            client: self.client,
            known: &own.0,
        };
        let (generation, has_place) = (self.current)(&place);
        if has_place && !Rc::ptr_eq(&own.0, &generation) {
            let guard = generation.begin();
            *own = (generation, guard);
        }
        has_place && !own.0.is_closed()
    }
}

impl StreamRoutes {
    /// Decides how to handle the first datagram of a client.
    pub(crate) fn choose_datagrams(
        &self,
        start: &StreamStart<'_>,
        core: &Core,
        log: &StreamLog,
        generation: Rc<CoreGeneration>,
        current: CurrentGeneration,
    ) -> Result<ServeDatagrams, DropReason> {
        let stream = self.datagram_stream(start.listener).ok_or(DropReason::NoStream)?;
        if !stream.admits(start.client) {
            return Err(DropReason::Denied);
        }
        let places = stream.limits.acquire(start.client).map_err(|_| DropReason::Limit)?;
        let report = StreamReport::new(core, start.client, None, log.clone(), stream.clone()).over_udp();
        let guard = generation.begin();
        let session = RelayedSession {
            report: Rc::new(report),
            listener: start.listener.to_owned(),
            client: start.client,
            generation: RefCell::new((generation, guard)),
            current,
        };
        Ok(Box::new(move |client| {
            client.set_tap(session.report.clone());
            Box::pin(serve(session, client, places))
        }))
    }
}

/// Relays datagrams until the session ends.
async fn serve(session: RelayedSession, client: DatagramClient, _places: StreamPermits) {
    let end = pin!(relay(&session, &client)).await;
    session.report.end.set(end);
}

async fn relay(session: &RelayedSession, client: &DatagramClient) -> StreamEnd {
    let report = &*session.report;
    let stream = &*report.stream;
    let options = DatagramRelayOptions { idle: stream.idle_timeout, responses: stream.responses };
    let mut tried = Vec::new();
    loop {
        let is_second_try = !tried.is_empty();
        let opened = stream.group.open_datagrams(client, &stream.label, stream.connect_timeout, &mut tried);
        // Boxed because it is needed only until a server is chosen.
        let upstream = match Box::pin(opened).await {
            Ok(upstream) => upstream,
            Err(OpenStreamError::ClientDisconnected) => return stream_end(client.early_end()),
            Err(OpenStreamError::Failed(reason, server)) => {
                report.upstream.set(server);
                client.drop_waiting(DropReason::NoUpstream);
                return StreamEnd::Unreachable(if is_second_try { DATAGRAM_REFUSED } else { reason });
            }
        };
        report.upstream.set(Some(upstream.server));
        report.connect_us.set(Some(upstream.connect_us));
        stream.servers[upstream.server].connections.add(1);
        let relayed =
            client.relay(&upstream.link, options, || upstream.record_answer(), || session.is_valid());
        match relayed.await {
            DatagramEnd::Refused => {
                upstream.record_refusal(&stream.label);
                if client.answers() > 0 || !client.has_unanswered() {
                    return StreamEnd::Unreachable(DATAGRAM_REFUSED);
                }
                tried.push(upstream.server);
            }
            end => {
                let expects_answers = stream.responses.is_some_and(|count| count > 0);
                if end == DatagramEnd::Idle && expects_answers && client.answers() == 0 {
                    upstream.record_silence(&stream.label);
                }
                return stream_end(end);
            }
        }
    }
}

fn stream_end(end: DatagramEnd) -> StreamEnd {
    match end {
        DatagramEnd::Answered => StreamEnd::Answered,
        DatagramEnd::Idle => StreamEnd::Idle,
        DatagramEnd::Refused => StreamEnd::Unreachable(DATAGRAM_REFUSED),
        DatagramEnd::GivenUp => StreamEnd::GivenUp,
        DatagramEnd::Closed => StreamEnd::Stopped,
        DatagramEnd::Replaced => StreamEnd::Replaced,
    }
}
