//! Client that opens one attack connection after another until the time is over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use net::{Core, Fault, Interest, Link};
use times::{Millis, Moment};

use super::attacks::{Attack, AttackTurn};
use super::outcomes::{ConnectionOutcomes, ResponseScanner};
use super::wire::{AttackTarget, client_start};
use crate::connect;
use crate::plan::LoadTarget;

/// Timeout for making a connection.
const CONNECT_MS: u64 = 2_000;
/// Pause in milliseconds before a connection that the server has closed is replaced.
const PAUSE_MS: u64 = 20;
/// Time in milliseconds for which an attacker that does not read during the attack reads at its end.
const FINAL_READ_MS: u64 = 300;
/// Maximum wait in milliseconds before a connection is checked again.
const CHECK_INTERVAL_MS: u64 = 100;
const READ_BYTES: usize = 64 * 1024;

/// Results of an attack so far.
#[derive(Debug, Default)]
pub(crate) struct AttackProgress {
    pub(crate) outcomes: RefCell<ConnectionOutcomes>,
    pub(crate) sent_bytes: Cell<u64>,
    pub(crate) connections: Cell<u64>,
    /// Attackers that are still running.
    pub(crate) running_attackers: Cell<usize>,
}

/// One of an attack's connections, replaced whenever the server closes it.
pub(crate) struct Attacker {
    pub(crate) core: Core,
    pub(crate) attack: Attack,
    pub(crate) target: Rc<AttackTarget>,
    pub(crate) origin: Rc<LoadTarget>,
    pub(crate) progress: Rc<AttackProgress>,
    pub(crate) until_ms: u64,
}

impl Attacker {
    /// Attacks until the time is over.
    pub(crate) async fn run(self) {
        while self.core.now().0 < self.until_ms {
            match connect::connect_link(&self.core, &self.origin, CONNECT_MS).await {
                Ok((link, _)) => {
                    self.progress.connections.set(self.progress.connections.get() + 1);
                    self.run_connection(link).await;
                }
                Err(_) => self.progress.outcomes.borrow_mut().refused += 1,
            }
            let left_ms = self.until_ms.saturating_sub(self.core.now().0);
            self.core.sleep(Millis(PAUSE_MS.min(left_ms))).await;
        }
        self.progress.running_attackers.set(self.progress.running_attackers.get() - 1);
    }

    /// Runs one connection until it ends.
    async fn run_connection(&self, mut link: Link) {
        let mut scan = ResponseScanner::new(self.attack.is_http2);
        let mut room = vec![0; READ_BYTES];
        let is_open = self.exchange(&mut link, &mut scan, &mut room).await.is_ok();
        let until_ms = self.core.now().0 + FINAL_READ_MS;
        let mut is_over = !is_open;
        // The remaining bytes tell why the server ended the connection.
        while !self.attack.reads_responses || is_over {
            match link.try_read(&mut room) {
                Ok(Some(len @ 1..)) if self.core.now().0 < until_ms => {
                    scan.feed(&room[..len], &mut self.progress.outcomes.borrow_mut());
                }
                Ok(None) if !is_over => {
                    if link.readable(Moment(until_ms)).await.is_err() {
                        break;
                    }
                }
                Ok(Some(0)) | Err(_) => {
                    is_over = true;
                    break;
                }
                _ => break,
            }
        }
        scan.end(!is_over, &mut self.progress.outcomes.borrow_mut());
    }

    /// Sends turn by turn until the time is over.
    ///
    /// # Errors
    /// Fails if the server ends the connection.
    async fn exchange(
        &self,
        link: &mut Link,
        scan: &mut ResponseScanner,
        room: &mut [u8],
    ) -> Result<(), Fault> {
        let mut out = if self.attack.is_http2 { client_start(&[]) } else { Vec::new() };
        let mut at = 0;
        let mut turn = 0;
        let mut next_ms = 0;
        let mut stays = false;
        loop {
            let now_ms = self.core.now().0;
            if now_ms >= self.until_ms {
                return Ok(());
            }
            if at == out.len() && now_ms >= next_ms && !stays {
                match (self.attack.turn)(&self.target, turn) {
                    AttackTurn::Send(bytes) => (out, at) = (bytes, 0),
                    AttackTurn::Hold => stays = true,
                }
                turn += 1;
                next_ms = now_ms + self.attack.pause_ms;
            }
            let sent = if at < out.len() { link.try_write(&[&out[at..]], false)? } else { 0 };
            at += sent;
            self.progress.sent_bytes.set(self.progress.sent_bytes.get() + sent as u64);
            let is_behind = at < out.len() || !link.try_flush()?;
            if self.attack.reads_responses {
                while let Some(len) = link.try_read(room)? {
                    if len == 0 {
                        return Err(Fault::Disconnected);
                    }
                    scan.feed(&room[..len], &mut self.progress.outcomes.borrow_mut());
                }
            }
            if is_behind && sent == 0 {
                let interest = link.interest(Interest::of(self.attack.reads_responses, true));
                match link
                    .stream()
                    .ready_for(interest, Moment(self.until_ms.min(now_ms + CHECK_INTERVAL_MS)))
                    .await
                {
                    Err(Fault::Timeout) | Ok(()) => {}
                    Err(fault) => return Err(fault),
                }
            } else if stays || !is_behind && next_ms > now_ms {
                let until_ms =
                    if stays { now_ms + CHECK_INTERVAL_MS } else { next_ms.min(now_ms + CHECK_INTERVAL_MS) };
                self.core.sleep(Millis(until_ms.min(self.until_ms).saturating_sub(now_ms))).await;
            }
            self.core.yield_now().await;
        }
    }
}
