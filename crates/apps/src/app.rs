//! Public handle of an application.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use net::Core;

use crate::descriptors;
use crate::handle::Handle;
use crate::load_results::LoadError;
use crate::log::{AppLog, Log};
use crate::options::Options;
use crate::process::{AppSnapshot, ProcessInfo, WorkerExit};
use crate::queues::{CommandQueue, EventQueue, SupervisorCommand, lock};
use crate::supervisor::{Supervisor, SupervisorStatus};

/// Time that the supervisor may take to report its processes.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2);

/// An application with its processes, shared by all cores. When it is dropped, its processes are asked to end.
pub struct App {
    app_log: AppLog,
    commands: Arc<CommandQueue>,
    inboxes: Vec<Arc<EventQueue>>,
    status: Arc<SupervisorStatus>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl App {
    /// Starts the application for a server with `cores` cores. Returns before it is loaded; requests wait
    /// until then.
    ///
    /// # Errors
    /// Fails if there is not enough memory, no descriptor or no thread, or if the options are out of range.
    pub fn start(options: Options, cores: usize, log: Log) -> io::Result<App> {
        // Forked workers are orphaned on purpose and reparented to this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        descriptors::start()?;
        let options = Arc::new(options);
        let app_log = AppLog { app: options.name.as_str().into(), log };
        let commands = Arc::new(CommandQueue::new()?);
        let inboxes: Vec<Arc<EventQueue>> = (0..cores.max(1)).map(|_| Arc::default()).collect();
        let board = Arc::new(SupervisorStatus::default());
        let supervisor = Supervisor::new(
            options.clone(),
            app_log.clone(),
            commands.clone(),
            inboxes.clone(),
            board.clone(),
        )?;
        let thread = std::thread::Builder::new()
            .name(format!("app-{}", options.name))
            .spawn(move || supervisor.run())?;
        Ok(App { app_log, commands, inboxes, status: board, supervisor: Mutex::new(Some(thread)) })
    }

    /// Returns the handle for core `index`; call this once on each core.
    ///
    /// # Panics
    /// If there is no core with this index.
    #[must_use]
    pub fn handle(&self, core: &Core, index: usize) -> Handle {
        let inbox = self.inboxes[index].clone();
        let commands = self.commands.clone();
        Handle::new(core, index, inbox, commands, self.app_log.clone())
    }

    /// Name of the application.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.app_log.app
    }

    /// Reloads the application; its workers take over when they are ready, and no request is lost. If loading
    /// fails, the error is logged, and the old workers continue to serve.
    pub fn reload(&self) {
        self.commands.send(SupervisorCommand::Reload(None));
    }

    /// Reloads the application with other options. Every option except the name may change.
    pub fn reload_with(&self, options: Options) {
        self.commands.send(SupervisorCommand::Reload(Some(Box::new(options))));
    }

    /// Returns a receiver for the result of the load in progress, or of the last one if none is in progress.
    /// The sender is dropped if the application is stopped first.
    #[must_use]
    pub fn load_result(&self) -> Receiver<Result<(), LoadError>> {
        let (report, reported) = sync_channel(1);
        self.commands.send(SupervisorCommand::AwaitLoad(report));
        reported
    }

    /// Processes of the application with their CPU time and memory; empty if the supervisor has ended.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessInfo> {
        self.snapshot().processes
    }

    /// Processes of the application, their current requests, and the queue; empty if the supervisor has
    /// ended.
    #[must_use]
    pub fn snapshot(&self) -> AppSnapshot {
        self.request_snapshot(true)
    }

    /// Returns a snapshot without `processes`, whose resource usage takes milliseconds to read.
    #[must_use]
    pub fn queue_snapshot(&self) -> AppSnapshot {
        self.request_snapshot(false)
    }

    fn request_snapshot(&self, has_processes: bool) -> AppSnapshot {
        // The board has room for one request at a time.
        let _alone = lock(&self.status.snapshot_lock);
        let (report, reported) = sync_channel(1);
        *lock(&self.status.snapshot_request) = Some((report, has_processes));
        self.commands.send(SupervisorCommand::Snapshot);
        reported.recv_timeout(SNAPSHOT_TIMEOUT).unwrap_or_default()
    }

    /// Number of workers that have ended in each way, in the order of [`WorkerExit::ALL`].
    #[must_use]
    pub fn exits(&self) -> [u64; WorkerExit::ALL.len()] {
        std::array::from_fn(|at| self.status.exits[at].load(Ordering::Relaxed))
    }

    /// Ends all processes and waits for them; they may finish their requests within `timeouts.stop`. Call
    /// this when the cores have no more requests.
    pub fn stop(&self) {
        self.commands.send(SupervisorCommand::Stop);
        if let Some(thread) = lock(&self.supervisor).take() {
            // A panic of the thread has been logged.
            let _ = thread.join();
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.commands.send(SupervisorCommand::Stop);
    }
}
