//! Opening, changing and closing the control listener.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use config::Control;
use failure::IoFailure;
use logging::notice::ErrorLog;
use net::{CertificateStore, Listen, Listener, Listeners, NewListeners, TlsAcceptor};
use process::control_file;
use process::link::SupervisorLink;
use rights::privilege::Identity;

use crate::access::ControlAccess;
use crate::endpoint::{self, ControlSources};

/// Time for which a replacing server retries to bind an address that its predecessor still uses.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Returns the sockets to bind for an address.
fn sockets_to_bind(address: &Listen, is_tls: bool) -> Vec<net::ListenOptions> {
    let listen = |bind: net::BindAddress| net::ListenOptions { is_tls, ..bind.into() };
    address.bind_addresses().into_iter().map(listen).collect()
}

/// The control listener, open or not. Clones share their state.
#[derive(Clone)]
pub struct ControlListener {
    sources: ControlSources,
    link: Option<SupervisorLink>,
    notices: ErrorLog,
    /// TLS settings of new connections.
    tls: TlsAcceptor,
    state: Arc<Mutex<ListenerState>>,
}

#[derive(Default)]
struct ListenerState {
    /// Address of the active configuration, and whether its connections use TLS.
    configured_address: Option<(Listen, bool)>,
    open: Option<OpenListener>,
    is_closed: bool,
}

struct OpenListener {
    stop_handle: net::StopHandle,
    listeners: Listeners,
    is_closing: Arc<AtomicBool>,
}

impl OpenListener {
    /// Stops accepting connections; requests in progress are completed.
    fn close(self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.stop_handle.drain();
    }
}

/// Difference between the open listener and a new configuration.
pub enum ListenerChange {
    /// Only permissions change.
    SameAddress(Box<Control>),
    /// TLS is switched on or off for the same address.
    TlsToggle(Listen, bool, NewListeners),
    /// The address changes; its sockets are already bound, if there is one.
    Address(Option<(Listen, bool)>, Vec<Listener>),
}

impl ControlListener {
    /// Creates a closed listener.
    pub fn new(sources: ControlSources, link: Option<SupervisorLink>, notices: ErrorLog) -> ControlListener {
        let tls = TlsAcceptor::new(CertificateStore::new());
        ControlListener { sources, link, notices, tls, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the listener if the configuration has one. A replacing server retries in the background until
    /// its predecessor has released the address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn open(&self, control: &Control, access: &ControlAccess, replaces: bool) -> io::Result<()> {
        access.configure_tls(&self.tls)?;
        let Some(address) = &control.listen else { return Ok(()) };
        self.state().configured_address = Some((address.clone(), control.tls.is_some()));
        match self.bind(address, control) {
            Err(error) if replaces && error.kind() == io::ErrorKind::AddrInUse => {
                let later = self.clone();
                let address = address.clone();
                let control = control.clone();
                let thread = std::thread::Builder::new().name("operate".into());
                thread.spawn(move || later.retry_open(&address, &control, error)).map(drop)
            }
            bound => self.start_server(bound?),
        }
    }

    /// Retries until the predecessor has released the address.
    fn retry_open(&self, address: &Listen, control: &Control, error: io::Error) {
        let until = Instant::now() + PREDECESSOR_TIMEOUT;
        let is_wanted = || {
            let state = self.state();
            let wanted = (address.clone(), control.tls.is_some());
            !state.is_closed && state.open.is_none() && state.configured_address == Some(wanted)
        };
        let mut started = Err(error);
        while started.is_err() && Instant::now() < until && is_wanted() {
            std::thread::sleep(RETRY_PAUSE);
            started = self.bind(address, control).and_then(|listeners| self.start_server(listeners));
        }
        if let (Err(error), true) = (started, is_wanted()) {
            self.notices.error(&error.to_string());
        }
    }

    fn bind(&self, address: &Listen, control: &Control) -> io::Result<Vec<Listener>> {
        let explained = |error: io::Error| {
            let mut text = format!("`control.listen` = \"{address}\": {error}");
            if let (Listen::Unix(path), io::ErrorKind::PermissionDenied) = (address, error.kind()) {
                let folder = Path::new(path).parent().unwrap_or(Path::new("/")).display();
                let user = Identity::of_process().name;
                text.push_str(&format!(
                    ": the server makes this socket as the user {user}, who may not write in {folder}: name a folder of that user, \
                     as `install -d -o {user} /run/komainu-control` makes one"
                ));
            }
            let error = io::Error::new(error.kind(), text);
            if let Listen::Unix(path) = address { error.about(path) } else { error }
        };
        let bound = sockets_to_bind(address, control.tls.is_some());
        let bound = bound.into_iter().map(|listen| Listener::bind(listen, 1)).collect::<io::Result<_>>();
        let listeners = bound.map_err(explained)?;
        self.set_socket_permissions(address, control)?;
        Ok(listeners)
    }

    fn set_socket_permissions(&self, address: &Listen, control: &Control) -> io::Result<()> {
        match address {
            Listen::Unix(path) => {
                control_file::apply(path, control.mode, control.group.as_deref(), self.link.as_ref())
            }
            _ => Ok(()),
        }
    }

    fn start_server(&self, listeners: Vec<Listener>) -> io::Result<()> {
        let is_leaving = Arc::new(AtomicBool::new(false));
        let tls = self.tls.clone();
        let (stop, listeners) = endpoint::start(listeners, tls, &self.sources, &is_leaving, &self.notices)?;
        self.sources.api.history.start_thread(&self.sources.api.info)?;
        let opened = OpenListener { stop_handle: stop, listeners, is_closing: is_leaving };
        let mut state = self.state();
        if state.is_closed {
            opened.close();
        } else if let Some(before) = state.open.replace(opened) {
            before.close();
        }
        Ok(())
    }

    /// Compares with a new configuration. Sockets of a new address are bound here, before anything else
    /// changes.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn prepare_change(&self, control: &Control) -> io::Result<ListenerChange> {
        let state = self.state();
        let wanted = control.listen.clone().map(|address| (address, control.tls.is_some()));
        if state.configured_address == wanted {
            return Ok(ListenerChange::SameAddress(Box::new(control.clone())));
        }
        if let (Some((before, _)), Some((address, is_tls)), Some(open)) =
            (&state.configured_address, &wanted, &state.open)
            && before == address
        {
            // All sockets are open already, so none has to be bound.
            let not_open =
                |_, _, _: &[net::BindAddress]| Err(io::Error::other("the control listener has changed"));
            let same = open.listeners.prepare(sockets_to_bind(address, *is_tls), false, not_open)?;
            return Ok(ListenerChange::TlsToggle(address.clone(), *is_tls, same));
        }
        drop(state);
        let bound = control.listen.as_ref().map(|address| self.bind(address, control)).transpose()?;
        Ok(ListenerChange::Address(wanted, bound.unwrap_or_default()))
    }

    /// Opens the new address and then closes the old one, whose requests in progress are completed.
    ///
    /// # Errors
    /// The thread cannot be started, or the permissions cannot be changed.
    pub fn apply_change(&self, change: ListenerChange, access: &ControlAccess) -> io::Result<()> {
        access.configure_tls(&self.tls)?;
        match change {
            ListenerChange::SameAddress(control) => control
                .listen
                .as_ref()
                .map_or(Ok(()), |address| self.set_socket_permissions(address, &control)),
            ListenerChange::TlsToggle(address, is_tls, listeners) => {
                let mut state = self.state();
                state.configured_address = Some((address, is_tls));
                if let Some(open) = &state.open {
                    open.listeners.replace(listeners);
                }
                Ok(())
            }
            ListenerChange::Address(wanted, listeners) => {
                self.state().configured_address = wanted;
                if !listeners.is_empty() {
                    return self.start_server(listeners);
                }
                let before = self.state().open.take();
                before.into_iter().for_each(OpenListener::close);
                Ok(())
            }
        }
    }

    /// Returns the URLs of the open listener.
    pub fn urls(&self) -> Vec<net::ListenUrl> {
        self.state().open.as_ref().map(|open| open.listeners.urls()).unwrap_or_default()
    }

    /// Closes the listener for good, so that a replacing server can bind the address.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.open.take().into_iter().for_each(OpenListener::close);
    }
}
