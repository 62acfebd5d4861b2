//! Runs attacks: an ordinary client alone, then beside each attack in turn.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use failure::{Failure, FailureContext};
use http::Version;
use net::{ConnectAddress, Core};
use times::Millis;

use super::attacker::{AttackProgress, Attacker};
use super::attacks::Attack;
use super::outcomes::ConnectionOutcomes;
use super::quic_run::attack_quic;
use super::report::{AttackReport, AttackSuiteReport, ClientFigures};
use super::selection::AnyAttack;
use super::wire::AttackTarget;
use crate::load;
use crate::plan::{ConnectOptions, LoadPlan, LoadTarget, Pace};
use crate::procfs;
use crate::request::{BenchRequest, RequestSettings};
use crate::server_usage;
use crate::url::Url;

/// Connections of the ordinary client.
const CONNECTIONS: usize = 2;
/// Pause of the ordinary client between two requests.
const THINK_TIME: Duration = Duration::from_millis(5);
/// Timeout of the ordinary client's requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval in milliseconds at which the server's memory is read.
const MEMORY_SAMPLE_MS: u64 = 50;

/// Options of a run of attacks.
#[derive(Clone, Debug)]
pub struct AttackOptions {
    /// URL that is attacked and that the ordinary client requests.
    pub url: Url,
    /// Connection options.
    pub reach: ConnectOptions,
    /// Duration of each attack.
    pub duration: Duration,
    /// Root processes of the server; empty to find them by their listening sockets.
    pub server_pids: Vec<u32>,
    /// Whether addresses outside this machine and private networks may be attacked.
    pub is_forced: bool,
}

/// Whether an address may be attacked without being forced: it belongs to this machine or to a private
/// network.
fn is_private(address: SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Rejects targets that are not the user's own server.
fn check_target(options: &AttackOptions, origin: &LoadTarget) -> Result<(), Failure> {
    match &origin.address {
        ConnectAddress::Tcp(address) if !options.is_forced && !is_private(*address) => {
            Err(Failure::new(format!(
                "{address} is neither this machine's nor an address of a private network: attack servers of your own alone \
             (--force attacks it all the same)"
            )))
        }
        _ => Ok(()),
    }
}

fn client_plan(options: &AttackOptions, version: Version) -> Result<LoadPlan, Failure> {
    let manner = RequestSettings { version, keep_alive: true, ..RequestSettings::default() };
    let mut plan = LoadPlan::new(&[BenchRequest::get(options.url.clone())], &manner, &options.reach)?;
    plan.connections = CONNECTIONS;
    plan.pace = Pace::Closed { think: THINK_TIME };
    plan.duration = Some(options.duration);
    plan.warm_up = Duration::ZERO;
    plan.timeout = REQUEST_TIMEOUT;
    plan.connect_timeout = REQUEST_TIMEOUT;
    Ok(plan)
}

/// Runs the ordinary client. A failure to connect at all counts as one failed request.
fn run_ordinary_client(plan: &LoadPlan) -> ClientFigures {
    match load::run_load(plan, &AtomicBool::new(false), &mut ()) {
        Ok(measured) => ClientFigures::from_measured(&measured),
        Err(error) => ClientFigures { failed: 1, failure: error.to_string(), ..ClientFigures::default() },
    }
}

/// Attacks the server in all these ways; `begins` is called before each attack.
///
/// # Errors
/// Fails for an address that may not be attacked, or a server that does not respond before the first attack.
pub fn run(
    options: &AttackOptions,
    attacks: &[AnyAttack],
    mut begins: impl FnMut(AnyAttack),
) -> Result<AttackSuiteReport, Failure> {
    let mut before: Vec<(Version, ClientFigures)> = Vec::new();
    let mut reports = Vec::new();
    let mut pids = options.server_pids.clone();
    for &attack in attacks {
        let version = attack.version();
        let plan = client_plan(options, version)?;
        check_target(options, &plan.origins[0])?;
        if pids.is_empty() {
            pids = server_usage::find_server(&plan);
        }
        if !before.iter().any(|(measured, _)| *measured == version) {
            let alone = run_ordinary_client(&plan);
            if alone.responses == 0 {
                let version = match version {
                    Version::Http2 => "HTTP/2",
                    Version::Http3 => "HTTP/3",
                    _ => "HTTP/1.1",
                };
                let failure = format!("{} does not answer over {version}: {}", options.url, alone.failure);
                return Err(Failure::new(failure));
            }
            before.push((version, alone));
        }
        let before = before.iter().find(|(measured, _)| *measured == version);
        let before = before.map(|(_, figures)| figures.clone()).unwrap_or_default();
        begins(attack);
        reports.push(run_attack(options, attack, &plan, before, &procfs::process_tree(&pids))?);
    }
    Ok(AttackSuiteReport { url: options.url.to_string(), reports })
}

/// Effects of an attack.
struct AttackEffect {
    outcomes: ConnectionOutcomes,
    sent_bytes: u64,
    connections: u64,
}

impl From<&AttackProgress> for AttackEffect {
    fn from(progress: &AttackProgress) -> AttackEffect {
        AttackEffect {
            outcomes: progress.outcomes.take(),
            sent_bytes: progress.sent_bytes.get(),
            connections: progress.connections.get(),
        }
    }
}

fn target(options: &AttackOptions) -> AttackTarget {
    AttackTarget {
        authority: options.url.authority(),
        path: options.url.target.clone(),
        is_https: options.url.tls,
    }
}

/// Returns the server with the TLS settings of an attacker over QUIC: full handshakes, and a ClientHello that
/// fits into one datagram.
fn attacker_origin(options: &AttackOptions) -> Result<LoadTarget, Failure> {
    let reach =
        ConnectOptions { no_resumption: true, tls_groups: vec!["X25519".into()], ..options.reach.clone() };
    let plan = client_plan(&AttackOptions { reach, ..options.clone() }, Version::Http3)?;
    plan.origins.into_iter().next().ok_or(Failure::new("there is no server to attack"))
}

/// Attacks over TCP. `sample` is called regularly meanwhile.
fn attack_tcp(
    options: &AttackOptions,
    attack: Attack,
    origin: &LoadTarget,
    sample: impl Fn() + 'static,
) -> Result<AttackEffect, Failure> {
    let core = Core::for_client(1)?;
    let inner = core.clone();
    let origin = Rc::new(origin.clone());
    let target = Rc::new(target(options));
    let duration_ms = options.duration.as_millis() as u64;
    let effect = core.run_until_end(async move {
        let progress = Rc::new(AttackProgress::default());
        let until_ms = inner.now().0 + duration_ms;
        progress.running_attackers.set(attack.connections);
        for _ in 0..attack.connections {
            let attacker = Attacker {
                core: inner.clone(),
                attack,
                target: target.clone(),
                origin: origin.clone(),
                progress: progress.clone(),
                until_ms,
            };
            inner.spawn(attacker.run());
        }
        while progress.running_attackers.get() > 0 {
            inner.sleep(Millis(MEMORY_SAMPLE_MS)).await;
            sample();
        }
        AttackEffect::from(&*progress)
    })?;
    Ok(effect)
}

/// Runs one attack with the ordinary client beside it.
fn run_attack(
    options: &AttackOptions,
    attack: AnyAttack,
    plan: &LoadPlan,
    before: ClientFigures,
    pids: &[u32],
) -> Result<AttackReport, Failure> {
    let memory_before = procfs::total_rss(pids);
    let cpu_before = procfs::read_usage(pids);
    let (sender, receiver) = channel();
    let client = plan.clone();
    let thread = std::thread::Builder::new().name("client".into());
    let thread = thread.spawn(move || {
        // The receiver waits for this message.
        let _ = sender.send(run_ordinary_client(&client));
    });
    let thread = thread.context("cannot start a thread")?;
    let peak = Rc::new(Cell::new(memory_before));
    let sample_memory = {
        let peak = peak.clone();
        let pids = pids.to_vec();
        move || peak.set(peak.get().max(procfs::total_rss(&pids)))
    };
    let effect = match attack {
        AnyAttack::Tcp(attack) => attack_tcp(options, *attack, &plan.origins[0], sample_memory)?,
        AnyAttack::Quic(attack) => {
            let origin = attacker_origin(options)?;
            let (ConnectAddress::Tcp(address), Some(tls)) = (&origin.address, &origin.tls) else {
                return Err(Failure::new("HTTP/3 needs an https:// URL"));
            };
            let target = target(options);
            let interval = Duration::from_millis(MEMORY_SAMPLE_MS);
            let duration = options.duration;
            let progress = attack_quic(attack, target, *address, tls, duration, interval, sample_memory)?;
            AttackEffect::from(&progress)
        }
    };
    let during = receiver.recv().map_err(|_| "the client beside the attack panicked".to_string())?;
    thread.join().map_err(|_| "the client beside the attack panicked".to_string())?;
    Ok(AttackReport {
        name: attack.name(),
        about: attack.about(),
        sent_bytes: effect.sent_bytes,
        connections: effect.connections,
        outcomes: effect.outcomes,
        before,
        during,
        is_watched: !pids.is_empty(),
        memory_bytes: peak.get().saturating_sub(memory_before),
        cpu_ns: procfs::read_usage(pids).since(&cpu_before).total_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_addresses_are_attacked_unless_forced() {
        for (address, is_own) in [
            ("127.0.0.1:80", true),
            ("[::1]:80", true),
            ("192.168.1.9:80", true),
            ("10.0.0.1:80", true),
            ("172.16.0.1:80", true),
            ("[fd00::1]:80", true),
            ("[fe80::1]:80", true),
            ("[::ffff:10.0.0.1]:80", true),
            ("[::ffff:8.8.8.8]:80", false),
            ("172.32.0.1:80", false),
            ("8.8.8.8:80", false),
            ("0.0.0.0:80", false),
            ("[2001:db8::1]:80", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), is_own, "{address}");
        }
        let mut options = AttackOptions {
            url: Url::parse("http://8.8.8.8/").unwrap(),
            reach: ConnectOptions::default(),
            duration: Duration::from_secs(1),
            server_pids: Vec::new(),
            is_forced: false,
        };
        let origin = client_plan(&options, Version::Http2).unwrap().origins[0].clone();
        assert!(check_target(&options, &origin).unwrap_err().to_string().contains("--force"));
        options.is_forced = true;
        assert_eq!(check_target(&options, &origin), Ok(()));
    }
}
