//! Replacement of handlers' errors by the site's error pages.

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

    /// Whether a response with this status is replaced.
    pub(crate) fn intercepts(&self, status: Status) -> bool {
        matches!(self.state.interception, Interception::On)
            && status.code() >= 400
            && self.state.error_pages.as_ref().is_some_and(|pages| pages.has_page(status))
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

    /// Sends the error page in place of the error response of the handler, which was held back; nothing without one.
    ///
    /// # Errors
    /// See [`Exchange::write`].
    pub async fn send_page(&mut self) -> Result<(), Fault> {
        if let Interception::HeldBack(error) = std::mem::take(&mut self.state.interception) {
            self.state.reply = ReplyState::Unsent;
            let (status, fields) = *error;
            return self.refuse_with(status, "there is no further information", &fields).await;
        }
        Ok(())
    }
}
