//! Groups whose servers are replaced while they are used, without a new router.
//!
//! A [`CurrentGroup`] is shared by all cores and has the group that is in force. Each core follows it by a [`CoreGroup`]: the next
//! request takes the new servers, and requests under way end with those that they have begun with. Connections to servers
//! that stay are kept.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use net::Core;

use crate::group::{EventSink, Group, GroupState};
use crate::shared::GroupShared;

/// The group in force, for all cores.
#[derive(Debug)]
pub struct CurrentGroup {
    /// Number of replacements.
    version: AtomicU64,
    shared: RwLock<Arc<GroupShared>>,
}

impl CurrentGroup {
    /// Begins with this group.
    #[must_use]
    pub fn new(shared: Arc<GroupShared>) -> CurrentGroup {
        CurrentGroup { version: AtomicU64::new(0), shared: RwLock::new(shared) }
    }

    /// Returns the group in force.
    #[must_use]
    pub fn get(&self) -> Arc<GroupShared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another group in force. It should be a successor of the one before ([`crate::KnownServers::replace`]).
    pub fn replace(&self, shared: Arc<GroupShared>) {
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = shared;
        self.version.fetch_add(1, Ordering::Release);
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// A core's part of the group in force. Cheap to clone.
#[derive(Clone)]
pub struct CoreGroup(Rc<CoreGroupState>);

struct CoreGroupState {
    current: Arc<CurrentGroup>,
    version: Cell<u64>,
    group: RefCell<Group>,
}

impl CoreGroup {
    /// Creates a core's part of a group, which reports errors and changes of servers to `report`.
    #[must_use]
    pub fn new(core: &Core, current: &Arc<CurrentGroup>, report: EventSink) -> CoreGroup {
        // Read first: a replacement in between is followed once more.
        let version = current.version();
        let group = Group::with_events(core, &current.get(), report);
        CoreGroup::of(current.clone(), version, group)
    }

    /// A group that is never replaced.
    pub(crate) fn fixed(group: Group) -> CoreGroup {
        CoreGroup::of(Arc::new(CurrentGroup::new(group.shared().clone())), 0, group)
    }

    fn of(current: Arc<CurrentGroup>, version: u64, group: Group) -> CoreGroup {
        CoreGroup(Rc::new(CoreGroupState { current, version: version.into(), group: group.into() }))
    }

    /// Whether it follows this group.
    #[must_use]
    pub fn follows(&self, current: &Arc<CurrentGroup>) -> bool {
        Arc::ptr_eq(&self.0.current, current)
    }

    /// Returns the group in force.
    #[must_use]
    pub fn group(&self) -> Group {
        self.follow();
        self.0.group.borrow().clone()
    }

    /// Takes over a replacement, if there is one. Requests do so by themselves; an idle core has to be told, so that it
    /// lets go of servers that are gone.
    pub fn follow(&self) {
        let version = self.0.current.version();
        if self.0.version.replace(version) != version {
            let next = self.0.group.borrow().succeeded_by(&self.0.current.get());
            self.0.group.replace(next);
        }
    }

    /// Returns the version of the group that [`CoreGroup::state`] has returned last.
    pub(crate) fn version(&self) -> u64 {
        self.0.version.get()
    }

    /// Returns the state of the group in force.
    pub(crate) fn state(&self) -> Rc<GroupState> {
        self.follow();
        self.0.group.borrow().0.clone()
    }
}
