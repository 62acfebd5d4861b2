//! The sessions of a listening socket by their clients, and the order in which those are given up that may be
//! forged.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// The client of a session, at a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey {
    /// The sender of the datagrams, to which answers go.
    pub(crate) peer: SocketAddr,
    /// The address of this machine that the client uses, if known.
    pub(crate) local: Option<IpAddr>,
    /// The client that a proxy names.
    pub(crate) reported: Option<SocketAddr>,
}

struct SessionEntry<S> {
    session: Rc<S>,
    /// Number of a session whose client is unconfirmed.
    unconfirmed: Option<u64>,
}

/// The sessions of a listening socket. A client is confirmed once it sends a datagram after it was sent an answer:
/// senders with forged addresses see no answer.
pub(super) struct SessionTable<S> {
    sessions: HashMap<ClientKey, SessionEntry<S>>,
    /// Unconfirmed clients in the order of their sessions.
    unconfirmed: BTreeMap<u64, ClientKey>,
    next_number: u64,
}

impl<S> Default for SessionTable<S> {
    fn default() -> SessionTable<S> {
        SessionTable { sessions: HashMap::new(), unconfirmed: BTreeMap::new(), next_number: 0 }
    }
}

impl<S> SessionTable<S> {
    pub(super) fn get(&self, key: &ClientKey) -> Option<&Rc<S>> {
        self.sessions.get(key).map(|entry| &entry.session)
    }

    /// Adds the session of an unconfirmed client that has none.
    pub(super) fn insert(&mut self, key: ClientKey, session: Rc<S>) {
        let number = self.next_number;
        self.next_number += 1;
        self.unconfirmed.insert(number, key);
        self.sessions.insert(key, SessionEntry { session, unconfirmed: Some(number) });
    }

    /// Confirms a client. Returns false if it was confirmed before.
    pub(super) fn confirm(&mut self, key: &ClientKey) -> bool {
        let number = self.sessions.get_mut(key).and_then(|entry| entry.unconfirmed.take());
        number.is_some_and(|number| self.unconfirmed.remove(&number).is_some())
    }

    /// Removes a session, unless the client has another one by now. Returns whether the client was unconfirmed.
    pub(super) fn remove(&mut self, key: &ClientKey, session: &Rc<S>) -> bool {
        if !self.sessions.get(key).is_some_and(|entry| Rc::ptr_eq(&entry.session, session)) {
            return false;
        }
        let entry = self.sessions.remove(key);
        if self.sessions.is_empty() {
            // After a flood, the table has room for many.
            self.sessions = HashMap::new();
        }
        entry
            .and_then(|entry| entry.unconfirmed)
            .is_some_and(|number| self.unconfirmed.remove(&number).is_some())
    }

    /// Removes and returns the oldest session of an unconfirmed client.
    pub(super) fn take_oldest_unconfirmed(&mut self) -> Option<Rc<S>> {
        let (_, key) = self.unconfirmed.pop_first()?;
        self.sessions.remove(&key).map(|entry| entry.session)
    }

    /// Returns all sessions.
    pub(super) fn all(&self) -> Vec<Rc<S>> {
        self.sessions.values().map(|entry| entry.session.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> ClientKey {
        ClientKey { peer: SocketAddr::from(([192, 0, 2, 1], port)), local: None, reported: None }
    }

    #[test]
    fn oldest_unconfirmed_session_is_given_up_confirmed_ones_never() {
        let mut table = SessionTable::default();
        (1..=4).for_each(|port| table.insert(key(port), Rc::new(port)));
        assert!(table.confirm(&key(1)) && !table.confirm(&key(1)) && !table.confirm(&key(9)));
        let third = table.get(&key(3)).unwrap().clone();
        assert!(table.remove(&key(3), &third) && !table.remove(&key(3), &third));
        assert_eq!(table.take_oldest_unconfirmed().as_deref(), Some(&2));
        assert_eq!(table.take_oldest_unconfirmed().as_deref(), Some(&4));
        assert_eq!(table.take_oldest_unconfirmed(), None);
        assert_eq!(table.all(), [Rc::new(1)]);
        let first = table.get(&key(1)).unwrap().clone();
        assert!(!table.remove(&key(1), &first), "a confirmed client");
        assert!(table.all().is_empty());
    }

    #[test]
    fn ended_session_does_not_remove_its_successor() {
        let mut table = SessionTable::default();
        let first = Rc::new(1);
        table.insert(key(1), first.clone());
        assert_eq!(table.take_oldest_unconfirmed().as_deref(), Some(&1));
        table.insert(key(1), Rc::new(2));
        assert!(!table.remove(&key(1), &first));
        assert_eq!(table.get(&key(1)).map(|session| **session), Some(2));
        assert_eq!(table.take_oldest_unconfirmed().as_deref(), Some(&2));
    }

    #[test]
    fn clients_differ_by_local_and_reported_address() {
        let mut table = SessionTable::default();
        let reported = ClientKey { reported: Some(SocketAddr::from(([203, 0, 113, 1], 9))), ..key(1) };
        let local = ClientKey { local: Some(IpAddr::from([198, 51, 100, 1])), ..key(1) };
        for (at, key) in [key(1), reported, local].into_iter().enumerate() {
            table.insert(key, Rc::new(at));
        }
        assert_eq!(table.all().len(), 3);
        assert_eq!(table.get(&local).map(|session| **session), Some(2));
    }
}
