//! The states of a server, and the requests that each allows.

use crate::limits::{DESCRIPTORS_MAX, REQUEST_DESCRIPTORS_MAX};
use crate::request::{LinkRequest, LinkViolation};

/// The state of a server, as reported to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The server has sent no request yet.
    Fresh,
    /// The server has received what it needs to start.
    Starting,
    /// The server has reported that it serves.
    Serving,
    /// The server has reported that it cannot start.
    Failed,
}

/// The supervisor's view of one server: the requests that it may send next.
///
/// ```text
/// Fresh ── start ──> Starting ── ready ──> Serving
///   └──── failed ────> Failed <── failed ────┘
/// ```
///
/// `config` offers a configuration if the supervisor could read one; `sockets` and `adopted` need such an
/// offer, which `adopted` and `rejected` end.
#[derive(Debug)]
pub struct LinkSession {
    state: LinkState,
    is_offered: bool,
    /// Descriptors of packets received before their request.
    collected_descriptors: usize,
}

impl Default for LinkSession {
    fn default() -> LinkSession {
        LinkSession { state: LinkState::Fresh, is_offered: false, collected_descriptors: 0 }
    }
}

impl LinkSession {
    /// The state of the server.
    #[must_use]
    pub fn state(&self) -> LinkState {
        self.state
    }

    /// Validates the text and the number of descriptors of a packet. The caller carries out the returned
    /// request, except for [`LinkRequest::More`], after which the descriptors are kept for the next request.
    ///
    /// # Errors
    /// No server of this version sends this packet in this state: kill the server without carrying it out.
    pub fn accept<'a>(
        &mut self,
        text: &'a str,
        descriptors: usize,
    ) -> Result<LinkRequest<'a>, LinkViolation> {
        let request = LinkRequest::parse(text)?;
        self.check_allowed(&request)?;
        let descriptors = if descriptors > DESCRIPTORS_MAX {
            return Err(LinkViolation("too many descriptors in a packet"));
        } else {
            self.collected_descriptors + descriptors
        };
        if request == LinkRequest::More {
            if descriptors == self.collected_descriptors || descriptors > REQUEST_DESCRIPTORS_MAX {
                return Err(LinkViolation("descriptors that no request has"));
            }
            self.collected_descriptors = descriptors;
            return Ok(request);
        }
        self.collected_descriptors = 0;
        if !request.accepts_descriptors(descriptors) {
            return Err(LinkViolation("another number of descriptors than the request has"));
        }
        match request {
            LinkRequest::Start => self.state = LinkState::Starting,
            LinkRequest::Ready => self.state = LinkState::Serving,
            LinkRequest::Failed(_) => self.state = LinkState::Failed,
            LinkRequest::Adopted | LinkRequest::Rejected => self.is_offered = false,
            _ => {}
        }
        Ok(request)
    }

    /// Records that a configuration was sent in answer to [`LinkRequest::Config`]; with `false`, there was
    /// none to offer, and an earlier offer is void.
    pub fn set_offered(&mut self, is_offered: bool) {
        self.is_offered = is_offered;
    }

    fn check_allowed(&self, request: &LinkRequest<'_>) -> Result<(), LinkViolation> {
        let is_allowed = match (self.state, request) {
            (LinkState::Fresh, LinkRequest::Start | LinkRequest::Failed(_)) => true,
            (LinkState::Fresh, _) => return Err(LinkViolation("a request before `start`")),
            (LinkState::Failed, _) => return Err(LinkViolation("a request after `failed`")),
            (_, LinkRequest::Start) => return Err(LinkViolation("a second `start`")),
            (LinkState::Serving, LinkRequest::Ready) => return Err(LinkViolation("a second `ready`")),
            (state, LinkRequest::Upgrade | LinkRequest::Config | LinkRequest::Reloaded(_)) => {
                state == LinkState::Serving
            }
            (_, LinkRequest::Sockets { .. } | LinkRequest::Adopted) => self.is_offered,
            _ => true,
        };
        if is_allowed { Ok(()) } else { Err(LinkViolation("a request that its state does not allow")) }
    }
}
