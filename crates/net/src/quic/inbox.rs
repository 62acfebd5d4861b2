//! A connection as its endpoint knows it: the events that wait for its task, and its timer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;

use quinn_proto::ConnectionEvent;
use times::Moment;

use super::new_address::AddressLimits;
use crate::core::Core;
use crate::source::Source;

/// State shared by the endpoint and the connection's task.
pub(super) struct ConnectionInbox {
    core: Core,
    /// Readable when there are events, a timer is due, or the socket has room again.
    pub(super) source: Rc<Source>,
    pub(super) events: RefCell<VecDeque<ConnectionEvent>>,
    /// Time of the entry in the endpoint's timers.
    pub(super) timer: Cell<Moment>,
    pub(super) addresses: AddressLimits,
}

impl ConnectionInbox {
    pub(super) fn new(core: &Core, client: IpAddr) -> ConnectionInbox {
        ConnectionInbox {
            core: core.clone(),
            source: core.add_source(),
            events: RefCell::default(),
            timer: Cell::new(Moment::NEVER),
            addresses: AddressLimits::new(client),
        }
    }
}

impl Drop for ConnectionInbox {
    fn drop(&mut self) {
        self.core.deregister(&self.source);
    }
}
