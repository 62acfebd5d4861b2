//! Errors of handlers in whose place the site's pages are sent.

use http::{Fields, Status};

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::state::{Interception, ReplyState};

/// Fields of an error that its page carries too.
const KEPT: [&str; 3] = ["www-authenticate", "retry-after", "allow"];

impl Exchange<'_> {
    /// Has errors of the handler that answers from now on replaced by the pages of the site, for the statuses that have one. What the
    /// server itself answers has its page either way.
    pub fn intercept_errors(&mut self) {
        self.state.interception = Interception::On;
    }

    /// Whether a response of this status is not to be sent.
    pub(crate) fn intercepts(&self, status: Status) -> bool {
        matches!(self.state.interception, Interception::On)
            && status.code() >= 400
            && self.state.pages.as_ref().is_some_and(|pages| pages.has(status))
    }

    /// Notes a response that is not sent. What the handler writes of it is dropped.
    pub(crate) fn intercept(&mut self, status: Status, fields: &Fields) {
        let mut kept = Fields::new();
        for (name, value) in fields.iter() {
            if KEPT.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
                let _ = kept.try_push(name, value);
            }
        }
        self.state.interception = Interception::Done(Box::new((status, kept)));
        self.state.reply = ReplyState::Elsewhere;
    }

    /// Whether an error was not sent, so that [`Exchange::send_page`] has to be called once the handler has ended.
    #[must_use]
    pub fn has_intercepted(&self) -> bool {
        matches!(self.state.interception, Interception::Done(_))
    }

    /// Sends the page in place of the error that was not sent.
    ///
    /// # Errors
    /// As [`Exchange::write`].
    pub async fn send_page(&mut self) -> Result<(), Fault> {
        if let Interception::Done(error) = std::mem::take(&mut self.state.interception) {
            self.state.reply = ReplyState::Unsent;
            let (status, fields) = *error;
            return self.refuse_with(status, "there is no further information", &fields).await;
        }
        Ok(())
    }
}
