//! Requests of a server to its supervisor.

use std::fmt;
use std::str::FromStr;

/// A request of the server.
///
/// Requests refer to objects of the supervisor's own copy of the configuration: a file by its path there, a
/// listener by its index, an application by its name. Processes are passed as descriptors (pidfd), and the
/// supervisor verifies that they run that application; only one that has ended is named by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRequest<'a> {
    /// Requests everything that a server needs to start: the first request, sent once.
    Start,
    /// The server has started to serve. Sent once.
    Ready,
    /// The server cannot start, for this reason.
    Failed(&'a str),
    /// A keep-alive for systemd's watchdog.
    Alive,
    /// The outcome of a reload, for systemd.
    Reloaded(&'a str),
    /// Start the program again and replace this server.
    Upgrade,
    /// Read the configuration again and offer it.
    Config,
    /// The offered configuration has taken effect.
    Adopted,
    /// The offered configuration was rejected.
    Rejected,
    /// Requests the sockets of a listener of the offered configuration.
    Sockets {
        /// The listener's index in the configuration, counted from 0.
        listener: usize,
        /// Number of its sockets that the server has already received.
        from: usize,
    },
    /// Open a log.
    OpenLog(&'a str),
    /// Open a certificate or key for reading.
    Read(&'a str),
    /// List the names in a directory of certificates or keys.
    List(&'a str),
    /// Set the permissions and the group of the control listener's Unix socket.
    ControlFile(&'a str),
    /// Start a process of an application that has its own user. Attaches the descriptors that the process
    /// inherits.
    Launch {
        /// The application.
        app: &'a str,
        /// The first slot of the worker.
        first_slot: usize,
        /// Number of slots of the worker; 0 for a prototype.
        slots: usize,
        /// Number of server threads.
        threads: usize,
    },
    /// Send a signal to a process of the application. Attaches its pidfd. There is no answer.
    Signal {
        /// The application.
        app: &'a str,
        /// The signal number.
        signal: i32,
    },
    /// Get the resource usage of a process of the application. Attaches its pidfd.
    Usage {
        /// The application.
        app: &'a str,
    },
    /// Get the resource usage of the supervisor itself.
    OwnUsage,
    /// Get the exit status of a process of an application.
    Ended {
        /// The process id. A pidfd names no process that was reaped.
        pid: u32,
    },
    /// Open for reading a regular file that a process of the application has open. Attaches its pidfd.
    File {
        /// The application.
        app: &'a str,
        /// The descriptor number in that process.
        number: u32,
    },
    /// Descriptors of the next request, if one packet cannot hold all of them.
    More,
}

/// A packet that no server of this version sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkViolation(pub &'static str);

impl fmt::Display for LinkViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LinkViolation {}

const UNKNOWN: LinkViolation = LinkViolation("unknown request");
const INCOMPLETE: LinkViolation = LinkViolation("arguments that this request does not have");

impl<'a> LinkRequest<'a> {
    /// Parses the text of a packet.
    ///
    /// # Errors
    /// The text is not a valid request.
    pub fn parse(text: &'a str) -> Result<LinkRequest<'a>, LinkViolation> {
        let (word, rest) = text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest)));
        if let Some(request) = LinkRequest::of_word(word) {
            return match rest {
                None => Ok(request),
                Some(_) => Err(INCOMPLETE),
            };
        }
        let rest = rest.ok_or(UNKNOWN)?;
        Ok(match word {
            "failed" => LinkRequest::Failed(rest),
            "reloaded" => LinkRequest::Reloaded(rest),
            "open" => LinkRequest::OpenLog(parse_argument(rest)?),
            "read" => LinkRequest::Read(parse_argument(rest)?),
            "list" => LinkRequest::List(parse_argument(rest)?),
            "control-file" => LinkRequest::ControlFile(parse_argument(rest)?),
            "sockets" => {
                let [listener, from] = split_words(rest)?;
                LinkRequest::Sockets { listener: parse_number(listener)?, from: parse_number(from)? }
            }
            "launch" => {
                let [app, first_slot, slots, threads] = split_words(rest)?;
                let first_slot = parse_number(first_slot)?;
                let slots = parse_number(slots)?;
                LinkRequest::Launch { app, first_slot, slots, threads: parse_number(threads)? }
            }
            "signal" => {
                let [app, signal] = split_words(rest)?;
                LinkRequest::Signal { app, signal: parse_number(signal)? }
            }
            "usage" => {
                let [app] = split_words(rest)?;
                LinkRequest::Usage { app }
            }
            "ended" => LinkRequest::Ended { pid: parse_number(rest)? },
            "file" => {
                let [app, descriptor] = split_words(rest)?;
                LinkRequest::File { app, number: parse_number(descriptor)? }
            }
            _ => return Err(UNKNOWN),
        })
    }

    /// Requests without arguments.
    fn of_word(word: &str) -> Option<LinkRequest<'static>> {
        const WORDS: [LinkRequest<'static>; 9] = [
            LinkRequest::Start,
            LinkRequest::Ready,
            LinkRequest::Alive,
            LinkRequest::Upgrade,
            LinkRequest::Config,
            LinkRequest::Adopted,
            LinkRequest::Rejected,
            LinkRequest::OwnUsage,
            LinkRequest::More,
        ];
        WORDS.into_iter().find(|request| request.word() == word)
    }

    fn word(&self) -> &'static str {
        match self {
            LinkRequest::Start => "start",
            LinkRequest::Ready => "ready",
            LinkRequest::Failed(_) => "failed",
            LinkRequest::Alive => "alive",
            LinkRequest::Reloaded(_) => "reloaded",
            LinkRequest::Upgrade => "upgrade",
            LinkRequest::Config => "config",
            LinkRequest::Adopted => "adopted",
            LinkRequest::Rejected => "rejected",
            LinkRequest::Sockets { .. } => "sockets",
            LinkRequest::OpenLog(_) => "open",
            LinkRequest::Read(_) => "read",
            LinkRequest::List(_) => "list",
            LinkRequest::ControlFile(_) => "control-file",
            LinkRequest::Launch { .. } => "launch",
            LinkRequest::Signal { .. } => "signal",
            LinkRequest::Usage { .. } => "usage",
            LinkRequest::OwnUsage => "own-usage",
            LinkRequest::Ended { .. } => "ended",
            LinkRequest::File { .. } => "file",
            LinkRequest::More => "more",
        }
    }

    /// Whether this many descriptors belong to the request.
    #[must_use]
    pub fn accepts_descriptors(&self, descriptors: usize) -> bool {
        match self {
            // The control socket, output and errors; the channel's memory and one descriptor for each thread.
            LinkRequest::Launch { threads, .. } => threads.checked_add(4) == Some(descriptors),
            LinkRequest::Signal { .. } | LinkRequest::Usage { .. } | LinkRequest::File { .. } => {
                descriptors == 1
            }
            LinkRequest::More => descriptors > 0,
            _ => descriptors == 0,
        }
    }
}

/// Formats the text of the packet.
impl fmt::Display for LinkRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            LinkRequest::Failed(text)
            | LinkRequest::Reloaded(text)
            | LinkRequest::OpenLog(text)
            | LinkRequest::Read(text)
            | LinkRequest::List(text)
            | LinkRequest::ControlFile(text) => write!(f, " {text}"),
            LinkRequest::Sockets { listener, from } => write!(f, " {listener} {from}"),
            LinkRequest::Launch { app, first_slot, slots, threads } => {
                write!(f, " {app} {first_slot} {slots} {threads}")
            }
            LinkRequest::Signal { app, signal } => write!(f, " {app} {signal}"),
            LinkRequest::Usage { app } => write!(f, " {app}"),
            LinkRequest::Ended { pid } => write!(f, " {pid}"),
            LinkRequest::File { app, number } => write!(f, " {app} {number}"),
            _ => Ok(()),
        }
    }
}

fn parse_argument(text: &str) -> Result<&str, LinkViolation> {
    if text.is_empty() || text.contains('\0') { Err(INCOMPLETE) } else { Ok(text) }
}

/// Splits text into exactly `COUNT` words, separated by one space each.
fn split_words<const COUNT: usize>(text: &str) -> Result<[&str; COUNT], LinkViolation> {
    let mut found = text.split(' ');
    let mut words = [""; COUNT];
    for word in &mut words {
        *word = parse_argument(found.next().ok_or(INCOMPLETE)?)?;
    }
    match found.next() {
        None => Ok(words),
        Some(_) => Err(INCOMPLETE),
    }
}

/// Parses a number in canonical form: no `+` sign, no leading zeros.
fn parse_number<N: FromStr + ToString>(text: &str) -> Result<N, LinkViolation> {
    let number: N = text.parse().map_err(|_| INCOMPLETE)?;
    if number.to_string() == text { Ok(number) } else { Err(INCOMPLETE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_print_as_they_are_parsed() {
        for text in [
            "start",
            "ready",
            "failed cannot bind 1.2.3.4:80",
            "alive",
            "reloaded loaded again",
            "upgrade",
            "config",
            "adopted",
            "rejected",
            "sockets 0 128",
            "open /var/log/a b.log",
            "read /etc/key.pem",
            "list /etc/keys",
            "control-file /run/a.sock",
            "launch shop 0 0 2",
            "launch shop 4 2 8",
            "signal shop 15",
            "usage shop",
            "own-usage",
            "ended 12",
            "file shop 7",
            "more",
        ] {
            assert_eq!(LinkRequest::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_request_texts_are_rejected() {
        for text in [
            "",
            " ",
            "start ",
            "start now",
            "Start",
            "ready\n",
            "failed",
            "open",
            "open ",
            "read /a\0b",
            "sockets",
            "sockets 0",
            "sockets 0 1 2",
            "sockets -1 0",
            "sockets 0  1",
            "sockets 00 1",
            "sockets +1 0",
            "sockets 99999999999999999999 0",
            "launch shop 0 0",
            "launch  0 0 2",
            "signal 9",
            "signal shop",
            "signal shop 9 9",
            "usage",
            "usage 12 13",
            "ended -1",
            "file shop -1",
            "descriptor 3",
            "identity 0 0 0 root",
            "end",
            "error x",
            "stop",
        ] {
            assert!(LinkRequest::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn descriptor_counts_must_match_the_request() {
        let takes = |text: &str, count: usize| LinkRequest::parse(text).unwrap().accepts_descriptors(count);
        assert!(
            takes("launch shop 0 1 2", 6) && !takes("launch shop 0 1 2", 5) && !takes("launch shop 0 1 2", 7)
        );
        assert!(!takes(&format!("launch shop 0 1 {}", usize::MAX), 3));
        assert!(takes("signal shop 9", 1) && !takes("signal shop 9", 0) && !takes("signal shop 9", 2));
        assert!(takes("start", 0) && !takes("start", 1) && !takes("more", 0));
    }
}
