//! Replacement of errors by the site's error pages, or by those of a server.

use std::rc::Rc;

use http::{Fields, Status};

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::request_state::{Interception, ReplyState};

/// Fields of the original error that are kept.
const KEPT_FIELDS: [&str; 3] = ["www-authenticate", "retry-after", "allow"];

impl Exchange<'_> {
    /// Replaces errors of the handler by the site's error pages, for statuses that have one. Errors of this
    /// server have a page in any case.
    pub fn intercept_errors(&mut self) {
        self.state.interception = Interception::On;
    }

    /// Holds back responses with one of these statuses, also those of [`Exchange::refuse`], until
    /// [`Exchange::take_intercepted_error`]. Other errors are replaced as before.
    pub fn intercept_statuses(&mut self, statuses: Rc<[Status]>) {
        let uses_pages = matches!(self.state.interception, Interception::On);
        self.state.interception = Interception::Of { statuses, uses_pages };
    }

    /// Whether a response of the handler with this status is replaced.
    pub(crate) fn intercepts(&self, status: Status) -> bool {
        let has_page = || {
            status.code() >= 400
                && self.state.error_pages.as_ref().is_some_and(|pages| pages.has_page(status))
        };
        match &self.state.interception {
            Interception::Off | Interception::HeldBack(_) => false,
            Interception::On => has_page(),
            Interception::Of { statuses, uses_pages } => {
                statuses.contains(&status) || *uses_pages && has_page()
            }
        }
    }

    /// Whether an error page of this server with this status is held back.
    pub(crate) fn intercepts_page(&self, status: Status) -> bool {
        matches!(&self.state.interception, Interception::Of { statuses, .. } if statuses.contains(&status))
    }

    /// Lets error pages of this server pass.
    pub(crate) fn end_interception(&mut self) {
        if !self.has_intercepted_error() {
            self.state.interception = Interception::Off;
        }
    }

    /// Records a response that is not sent. Its body is dropped.
    pub(crate) fn intercept(&mut self, status: Status, fields: &Fields) {
        let mut kept = Fields::new();
        for (name, value) in fields.iter() {
            if KEPT_FIELDS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
                let _ = kept.try_push(name, value);
            }
        }
        self.state.interception = Interception::HeldBack(Box::new((status, kept)));
        self.state.reply = ReplyState::Suppressed;
    }

    /// Whether an error was held back, so that [`Exchange::send_page`] must be called next.
    #[must_use]
    pub fn has_intercepted_error(&self) -> bool {
        matches!(self.state.interception, Interception::HeldBack(_))
    }

    /// Returns the status of the error that was held back.
    #[must_use]
    pub fn intercepted_status(&self) -> Option<Status> {
        match &self.state.interception {
            Interception::HeldBack(error) => Some(error.0),
            _ => None,
        }
    }

    /// Takes the error that was held back, with the fields that belong to it. A response must be sent next, which is not replaced.
    pub fn take_intercepted_error(&mut self) -> Option<(Status, Fields)> {
        match std::mem::take(&mut self.state.interception) {
            Interception::HeldBack(error) => {
                self.state.reply = ReplyState::Unsent;
                Some(*error)
            }
            _ => None,
        }
    }

    /// Sends the error page in place of the error response of the handler, which was held back; nothing without one.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn send_page(&mut self) -> Result<(), Fault> {
        if let Some((status, fields)) = self.take_intercepted_error() {
            return self.refuse_with(status, "there is no further information", &fields).await;
        }
        Ok(())
    }
}
