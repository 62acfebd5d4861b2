//! Pool of idle connections to other servers: owned by one core, usable by all.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustls::Connection;

use crate::core::Core;
use crate::link::Link;
use crate::remote::Remote;
use crate::stream::Stream;
use crate::tls::TlsStream;

/// The idle connections of one core, each with its owner's data. The core itself reuses one without a system
/// call; another core may take one over, or close one. The lock is held for a few instructions, and other
/// cores take it only if they have no idle connection of their own.
pub struct IdleLinks<T> {
    owner: Arc<Remote>,
    /// Ordered by last use, most recent last.
    links: Mutex<VecDeque<(IdleLink, T)>>,
    /// Number of connections, to check without the lock.
    count: AtomicUsize,
}

/// A connection that no task uses. Its source stays registered with its core.
struct IdleLink {
    socket: OwnedFd,
    tls: Option<Box<Connection>>,
    token: u64,
}

impl<T> IdleLinks<T> {
    /// Creates an empty list for connections of this core.
    #[must_use]
    pub fn new(core: &Core) -> IdleLinks<T> {
        IdleLinks { owner: core.remote(), links: Mutex::default(), count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(IdleLink, T)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of connections; other cores may change it at any time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a connection that belongs to the list's own core.
    pub fn put(&self, link: Link, data: T) {
        let (stream, tls) = match link {
            Link::Plain(stream) => (stream, None),
            Link::Tls(tls) => {
                let (stream, tls) = tls.into_parts();
                (stream, Some(tls))
            }
        };
        debug_assert!(stream.core().owns_remote(&self.owner), "a connection lies with its own core");
        let Some((socket, token)) = stream.into_idle() else { return };
        let mut links = self.lock();
        links.push_back((IdleLink { socket, tls, token }, data));
        self.count.store(links.len(), Ordering::Relaxed);
    }

    /// Takes the most recently used connection. If `core` is not the list's own, the connection moves to it.
    pub fn take(&self, core: &Core) -> Option<(Link, T)> {
        loop {
            let mut links = self.lock();
            let (idle, about) = links.pop_back()?;
            self.count.store(links.len(), Ordering::Relaxed);
            drop(links);
            if let Some(link) = self.resume(core, idle) {
                return Some((link, about));
            }
        }
    }

    /// Closes the connection idle for the longest time; false if there is none. Callable from any thread.
    pub fn close_oldest(&self) -> bool {
        let mut links = self.lock();
        let oldest = links.pop_front();
        self.count.store(links.len(), Ordering::Relaxed);
        drop(links);
        oldest.map(|(idle, _)| self.close(idle)).is_some()
    }

    /// Closes the connections that `keep` rejects, and those whose peer has closed or has sent unrequested
    /// bytes. Must be called on the list's own core.
    pub fn sweep(&self, core: &Core, keep: impl Fn(&T) -> bool) {
        let mut links = self.lock();
        let mut gone = Vec::new();
        let mut doubtful = Vec::new();
        for (idle, about) in std::mem::take(&mut *links) {
            match core.source(idle.token).is_some_and(|source| source.ready() & crate::source::READ != 0) {
                _ if !keep(&about) => gone.push(idle),
                true => doubtful.push((idle, about)),
                false => links.push_back((idle, about)),
            }
        }
        self.count.store(links.len(), Ordering::Relaxed);
        drop(links);
        gone.into_iter().for_each(|idle| self.close(idle));
        for (idle, about) in doubtful {
            // The bytes may be only a TLS session ticket.
            if let Some(mut link) = self.resume(core, idle)
                && link.is_reusable()
            {
                self.put(link, about);
            }
        }
    }

    fn resume(&self, core: &Core, idle: IdleLink) -> Option<Link> {
        let IdleLink { socket, tls, token } = idle;
        let stream = if core.owns_remote(&self.owner) {
            Stream::resume(core, socket, token)
        } else {
            // Fails only for a descriptor that is not registered.
            let _ = epoll::delete(self.owner.epoll(), &socket);
            self.owner.release(token);
            Stream::new(core, socket).ok()
        }?;
        Some(match tls {
            None => Link::Plain(stream),
            Some(tls) => Link::Tls(Box::new(TlsStream::from_parts(stream, tls))),
        })
    }

    fn close(&self, idle: IdleLink) {
        let token = idle.token;
        drop(idle);
        self.owner.release(token);
    }
}

impl<T> Drop for IdleLinks<T> {
    fn drop(&mut self) {
        while self.close_oldest() {}
    }
}
