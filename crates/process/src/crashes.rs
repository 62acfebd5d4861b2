//! Crash reports: the location and backtrace of a panic, and the core dump of a process killed by a signal.
//!
//! This process installs no handler for SIGSEGV and similar signals: it would require unsafe code, in a
//! process whose memory may be corrupted. The supervisor or systemd reports the signal, and the kernel writes
//! a core dump if that is configured.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

use logging::Level;
use logging::notice::ErrorLog;
use rustix::process::Signal;

/// Number of locations whose first panic is logged with a backtrace. Symbolizing one costs CPU time and
/// memory, so a client that can trigger panics must not cause it repeatedly.
const LOCATIONS_MAX: usize = 16;
/// Maximum bytes of a backtrace in the log.
const BACKTRACE_BYTES_MAX: usize = 16 * 1024;

/// Kernel setting for core dumps.
const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Signals that dump core by default (signal(7)), without those that are sent on purpose.
const CRASH_SIGNALS: [Signal; 7] =
    [Signal::ILL, Signal::TRAP, Signal::ABORT, Signal::BUS, Signal::FPE, Signal::SEGV, Signal::SYS];

/// Installs a panic hook that logs each panic with its location, and the first at a location with a
/// backtrace.
pub fn install_panic_hook(notices: &ErrorLog) {
    let notices = notices.clone();
    let places = PanicLocations::default();
    std::panic::set_hook(Box::new(move |info| places.report(&notices, info)));
}

/// Locations of panics so far: file, line and column.
#[derive(Default)]
struct PanicLocations(Mutex<BTreeSet<(String, u32, u32)>>);

impl PanicLocations {
    fn report(&self, notices: &ErrorLog, info: &PanicHookInfo<'_>) {
        let thread = std::thread::current();
        let text = format!("the thread {} {info}", thread.name().unwrap_or("without a name"));
        let place = info.location().map(|place| (place.file().to_owned(), place.line(), place.column()));
        let kind = place.as_ref().map_or_else(String::new, |(file, line, _)| format!(" at {file}:{line}"));
        if place.is_some_and(|place| self.is_new(place)) {
            return notices
                .report(Level::Error, &format!("{text}\n{}", format_backtrace(&Backtrace::force_capture())));
        }
        notices.throttled(Level::Error, format!("a panic{kind}"), || text);
    }

    /// Whether this is the first panic at a location and the limit for backtraces is not reached.
    fn is_new(&self, place: (String, u32, u32)) -> bool {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.len() < LOCATIONS_MAX && places.insert(place)
    }
}

/// Formats a backtrace, truncated to [`BACKTRACE_BYTES_MAX`].
fn format_backtrace(backtrace: &Backtrace) -> String {
    if backtrace.status() != BacktraceStatus::Captured {
        return "there is no backtrace on this system".to_owned();
    }
    let text = backtrace.to_string();
    let end = (0..=BACKTRACE_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    format!("the way there, the innermost function first:\n{}", text[..end.unwrap_or(0)].trim_end())
}

/// Describes the core dump of a process killed by a signal such as SIGSEGV, as a suffix for its status; empty
/// if the process ended otherwise.
pub fn describe_core_dump(status: ExitStatus) -> String {
    core_text(status, std::fs::read_to_string(CORE_PATTERN).unwrap_or_default().trim())
}

fn core_text(status: ExitStatus, pattern: &str) -> String {
    match (status.core_dumped(), pattern.strip_prefix('|')) {
        (true, Some(program)) => {
            let program = Path::new(program.split(' ').next().unwrap_or_default());
            let remedy =
                if program.ends_with("systemd-coredump") { "; `coredumpctl info` shows it" } else { "" };
            format!(", its core went to {}{remedy}", program.display())
        }
        (true, None) => format!(", its core is a file named by kernel.core_pattern ({pattern})"),
        (false, _)
            if status
                .signal()
                .and_then(Signal::from_named_raw)
                .is_some_and(|one| CRASH_SIGNALS.contains(&one)) =>
        {
            ", and left no core (docs/operations.md, \"When the server crashes\")".to_owned()
        }
        (false, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use logging::sink::{LogSink, LogTarget};

    use super::*;

    #[test]
    fn panics_are_logged_and_only_the_first_has_a_backtrace() {
        let path = std::env::temp_dir().join(format!("komainu-panics-{}", std::process::id()));
        let sink = LogSink::open(LogTarget::File(path.clone())).unwrap();
        let notices = ErrorLog::new(sink.clone(), Level::Error);
        let ours = "panics on purpose";
        let places = PanicLocations::default();
        let before = std::panic::take_hook();
        // Panics of other tests go to the previous hook.
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(ours) {
                places.report(&notices, info)
            } else {
                before(info)
            }
        }));
        let panics = || {
            let thread = std::thread::Builder::new().name(ours.into());
            let ended = thread.spawn(|| panic_here("the reason")).unwrap().join();
            assert!(ended.is_err());
        };
        (0..3).for_each(|_| panics());
        sink.close();
        let log = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let place = format!("{}:", file!());
        assert!(log.contains(&format!("error: the thread {ours} panicked at {place}")), "{log}");
        assert!(log.contains("the reason") && log.contains("panic_here"), "{log}");
        // One with a backtrace, one without, and one that is only counted.
        assert_eq!(
            (log.matches("the reason").count(), log.matches("the way there").count()),
            (2, 1),
            "{log}"
        );
        assert!(log.len() < 2 * BACKTRACE_BYTES_MAX);
    }

    #[inline(never)]
    fn panic_here(reason: &str) {
        assert!(reason.is_empty(), "{reason}");
    }

    #[test]
    fn number_of_remembered_panic_places_is_limited() {
        let places = PanicLocations::default();
        let traced = (0..100).filter(|line| places.is_new(("a".into(), *line, 1))).count();
        assert_eq!((traced, places.is_new(("a".into(), 0, 1))), (LOCATIONS_MAX, false));
    }

    #[test]
    fn location_of_the_core_dump_is_described() {
        const DUMPED: i32 = 0x80;
        let text = |status: i32, pattern: &str| core_text(ExitStatus::from_raw(status), pattern);
        let segv = Signal::SEGV.as_raw();
        let systemd = "|/usr/lib/systemd/systemd-coredump %P %u";
        assert_eq!(
            text(segv | DUMPED, systemd),
            ", its core went to /usr/lib/systemd/systemd-coredump; `coredumpctl info` shows it"
        );
        assert_eq!(text(segv | DUMPED, "|/bin/apport %p"), ", its core went to /bin/apport");
        assert_eq!(
            text(segv | DUMPED, "/var/core.%p"),
            ", its core is a file named by kernel.core_pattern (/var/core.%p)"
        );
        assert!(text(segv, systemd).contains("left no core"));
        for status in [Signal::KILL.as_raw(), Signal::TERM.as_raw(), 256] {
            assert_eq!(text(status, systemd), "");
        }
    }
}
