//! Runs an attack on HTTP/3 or QUIC: all its connections in turn, on the calling thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use failure::Failure;
use net::TlsClient;

use super::attacker::AttackProgress;
use super::quic_attacks::{QuicAttack, QuicTarget};
use super::quic_connection::QuicAttacker;
use super::quic_datagrams::DatagramAttacker;
use super::quic_wire::{InitialSealer, crypto_frame};
use super::wire::AttackTarget;

/// Pause if no connection has anything to do.
const IDLE: Duration = Duration::from_millis(1);

/// Attacks the server for a time; `sample` is called once per interval.
///
/// # Errors
/// Fails if there are no sockets, or the TLS settings do not fit QUIC.
pub(super) fn attack_quic(
    attack: &QuicAttack,
    http: AttackTarget,
    server: SocketAddr,
    tls: &TlsClient,
    duration: Duration,
    sample_interval: Duration,
    mut sample: impl FnMut(),
) -> Result<AttackProgress, Failure> {
    let progress = AttackProgress::default();
    let (sealer, hello) = InitialSealer::new(tls)?;
    let target = QuicTarget { http, hello: crypto_frame(0, &hello) };
    let mut connections = (0..attack.connections)
        .map(|_| QuicAttacker::new(attack, &target, server, tls, &progress))
        .collect::<Result<Vec<_>, _>>()?;
    let mut datagrams = match attack.connections {
        0 => Some(DatagramAttacker::new(attack, &target, server, &sealer, &progress)?),
        _ => None,
    };
    let until = Instant::now() + duration;
    let mut next_sample = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next_sample {
            sample();
            next_sample = now + sample_interval;
        }
        if now >= until {
            break;
        }
        let mut is_active = false;
        for connection in &mut connections {
            is_active |= connection.step(now)?;
        }
        if let Some(datagrams) = &mut datagrams {
            is_active |= datagrams.step()?;
        }
        if !is_active {
            std::thread::sleep(IDLE);
        }
    }
    connections.into_iter().for_each(QuicAttacker::finish);
    drop(datagrams);
    Ok(progress)
}
