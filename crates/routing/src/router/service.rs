//! [`Service`] of a core's connections: answers requests by the current configuration, then counts and logs
//! them.

use std::fmt::Display;
use std::pin::pin;
use std::rc::Rc;

use http::path::redact_target;
use logging::Level;
use net::{
    Core, DropReason, ErrorPages, Exchange, Fault, HandshakeFailure, Peer, RequestRecord, ServeDatagrams,
    Service, StreamChoice, StreamStart,
};

use super::Router;
use crate::internal::{NO_INTERNAL_ROUTE, NOT_INTERNAL};
use crate::pages::SitePages;
use crate::streams::configured::StreamLog;
use crate::streams::datagrams::CurrentGeneration;

/// Router of one core, shared with its log flusher.
pub struct SharedRouter(pub Rc<Router>);

impl Service for SharedRouter {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let (table, generation) = self.0.table();
        let _under_way = generation.begin();
        exchange.set_upgrade_tap(generation.clone());
        generation.run_until_closed(pin!(self.0.respond(table, exchange))).await
    }

    fn error_pages(&self) -> Rc<dyn ErrorPages> {
        Rc::new(SitePages::default())
    }

    fn log(&self, record: &RequestRecord<'_>) {
        self.0.metrics.count(record);
        if let Some(traces) = &self.0.table.borrow().0.traces {
            let labels = || self.0.metrics.labels(record.label);
            traces.report(record, labels, || self.0.id_generator.next());
        }
        if let Some(access) = &*self.0.access.borrow() {
            access.log(record, |request| super::find_site(&self.0.table.borrow().0, request));
        }
        let refused =
            record.notes.refusal.filter(|refusal| [NO_INTERNAL_ROUTE, NOT_INTERNAL].contains(refusal));
        if let Some(why) = refused.or(record.notes.ignores_file.then_some(NO_INTERNAL_ROUTE)) {
            self.0.notices.throttled(Level::Warn, why.to_owned(), || format_line(record, &why));
        }
        match record.fault {
            Some(fault @ (Fault::Io(_) | Fault::Failed(_))) => {
                let line = || format_line(record, fault);
                self.0.notices.throttled(Level::Error, fault.to_string(), line);
            }
            Some(fault) => self.0.notices.debug(&format_line(record, fault)),
            None => {}
        }
    }

    fn choose_stream(&self, start: &StreamStart<'_>, core: &Core) -> StreamChoice {
        let (table, generation) = self.0.table();
        table.streams.choose(start, core, &self.0.clone().stream_log(), &generation)
    }

    fn choose_datagrams(&self, start: &StreamStart<'_>, core: &Core) -> Result<ServeDatagrams, DropReason> {
        let (table, generation) = self.0.table();
        let router = self.0.clone();
        let current: CurrentGeneration = Rc::new(move |place| {
            let (table, generation) = router.table();
            let has_place = place.is_in(&table.streams, &generation);
            (generation, has_place)
        });
        let log = self.0.clone().stream_log();
        table.streams.choose_datagrams(start, core, &log, generation, current)
    }

    fn count_dropped(&self, listener: &str, reason: DropReason, datagrams: u64) {
        self.0.table().0.streams.count_dropped(listener, reason, datagrams);
    }

    fn handshake_failed(&self, peer: Peer, failure: &HandshakeFailure) {
        let line = || format!("{peer}: TLS handshake: {failure}");
        self.0.notices.throttled(Level::Info, format!("TLS handshake: {}", failure.reason), line);
    }
}

impl Router {
    /// Returns the receiver of records of connections that have ended.
    fn stream_log(self: Rc<Self>) -> StreamLog {
        Rc::new(move |record| {
            if let Some(access) = &*self.access.borrow() {
                access.log_stream(record);
            }
        })
    }
}

/// Formats a line of the error log: client, target, upstream server and message.
fn format_line(record: &RequestRecord<'_>, what: &dyn Display) -> String {
    let target = record.request.as_ref().map_or(&b"-"[..], |request| request.target());
    let upstream = record.notes.upstream.as_ref().filter(|_| matches!(record.fault, Some(Fault::Failed(_))));
    let upstream = upstream.map_or(String::new(), |upstream| format!("upstream {upstream}: "));
    format!("{} {:?}: {upstream}{what}", record.client.address, redact_target(target))
}
