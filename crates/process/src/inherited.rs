//! State that a server process receives from its supervisor at start.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rights::privilege::{self, Identity};

use crate::link::{IDENTITY, Packet, SupervisorLink};

/// State passed by the supervisor.
pub struct SupervisorHandover {
    /// The link to the supervisor.
    pub link: SupervisorLink,
    /// The user to become.
    pub identity: Identity,
    /// Text of the configuration file, if there is one.
    pub text: Option<String>,
    /// The control socket, opened by the supervisor.
    pub control: Option<UnixListener>,
    /// Sockets by listener of the configuration.
    pub sockets: Vec<Vec<OwnedFd>>,
    /// The process id of the supervisor.
    pub supervisor: u32,
    /// Whether another server process has served before this one.
    pub is_restart: bool,
    /// Whether this process replaces a server that continues if it fails to start.
    pub replaces_server: bool,
    /// Interval at which the supervisor expects a sign of life.
    pub watchdog: Option<Duration>,
}

impl SupervisorHandover {
    /// Receives the state passed by the supervisor and drops root's privileges; `None` in a process that no
    /// supervisor has started. Call this while the process has a single thread.
    ///
    /// # Errors
    /// The state is invalid, or the privileges cannot be dropped; the process must exit then.
    pub fn receive() -> io::Result<Option<SupervisorHandover>> {
        let Some(link) = SupervisorLink::inherited()? else { return Ok(None) };
        let supervisor = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid() as u32);
        let identity = std::env::var(IDENTITY).ok().as_deref().and_then(Identity::parse);
        let packets = link.start()?;
        let invalid = || io::Error::other("the supervisor hands over what this version does not know");
        let mut given = SupervisorHandover {
            link,
            identity: identity.ok_or_else(invalid)?,
            text: None,
            control: None,
            sockets: Vec::new(),
            supervisor,
            is_restart: false,
            replaces_server: false,
            watchdog: None,
        };
        for packet in packets {
            match packet.first_word_and_rest() {
                ("config", "") => given.text = Some(read_text(packet)?),
                ("again", "") => given.is_restart = true,
                ("replaces", "") => given.replaces_server = true,
                ("watchdog", us) => given.watchdog = us.parse().ok().map(Duration::from_micros),
                ("control", "") => {
                    given.control = packet.descriptors.into_iter().next().map(UnixListener::from)
                }
                ("listener", "") => given.sockets.push(Vec::new()),
                ("sockets", "") => given.sockets.last_mut().ok_or_else(invalid)?.extend(packet.descriptors),
                _ => return Err(invalid()),
            }
        }
        let Identity { name, uid, .. } = &given.identity;
        if *uid == 0 {
            return Err(invalid());
        }
        privilege::become_user(&given.identity)
            .map_err(|error| io::Error::other(format!("cannot become {name} (uid {uid}): {error}")))?;
        Ok(Some(given))
    }
}

/// Reads the text from a packet's descriptor.
///
/// # Errors
/// The packet has no descriptor, or its file cannot be read as UTF-8.
pub fn read_text(packet: Packet) -> io::Result<String> {
    let file = packet.descriptors.into_iter().next().map(File::from);
    let mut text = String::new();
    let limit = settings::document::TEXT_BYTES_MAX as u64 + 1;
    file.ok_or_else(|| io::Error::other("no text came"))?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}
