//! OCSP responses from honest and malicious responders: which are stapled, and when they are renewed.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::responder::{Answer, Responder};
use certificates::{OcspStapler, StapleEnvironment, StapleOwner, StapledCertificate};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Temporary folder of a test, removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("komainu-ocsp-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Recorded events: changes of the stapled response, and the log.
#[derive(Default)]
struct Seen {
    stapled: Mutex<Vec<Option<Vec<u8>>>>,
    log: Mutex<Vec<String>>,
}

struct Rig {
    stapler: OcspStapler,
    seen: Arc<Seen>,
    moved_s: Arc<AtomicU64>,
    folder: PathBuf,
    port: u16,
}

impl Rig {
    fn start(folder: &std::path::Path, responder: &Responder) -> Rig {
        let seen = Arc::new(Seen::default());
        let moved_s = Arc::new(AtomicU64::new(0));
        let theirs = moved_s.clone();
        let warned = seen.clone();
        let noted = seen.clone();
        let environment = StapleEnvironment {
            now: Arc::new(move || SystemTime::now() + Duration::from_secs(theirs.load(Ordering::Relaxed))),
            request_max: Duration::from_millis(2_000),
            retry_first: Duration::from_millis(20),
            retry_max: Duration::from_millis(100),
            check_interval: Duration::from_millis(20),
            warn: Arc::new(move |text| warned.log.lock().unwrap().push(format!("warn {text}"))),
            info: Arc::new(move |text| noted.log.lock().unwrap().push(format!("info {text}"))),
        };
        let stapler = OcspStapler::start(environment).unwrap();
        Rig { stapler, seen, moved_s, folder: folder.to_owned(), port: responder.port() }
    }

    fn watch(&self, name: &str, certificates: usize) {
        let pem = fs::read(self.folder.join(format!("{name}.pem"))).unwrap();
        let chain = CertificateDer::pem_slice_iter(&pem).take(certificates);
        let seen = self.seen.clone();
        let certificate = StapledCertificate {
            name: name.to_owned(),
            chain: chain.map(|one| one.unwrap().to_vec()).collect(),
            responder: format!("http://127.0.0.1:{}/ocsp", self.port),
            is_required: name.starts_with("must"),
            staple: Box::new(move |response| seen.stapled.lock().unwrap().push(response)),
        };
        self.stapler.watch(StapleOwner::Files, vec![certificate]);
    }

    fn stapled(&self) -> Vec<Option<Vec<u8>>> {
        self.seen.stapled.lock().unwrap().clone()
    }

    fn log(&self) -> String {
        self.seen.log.lock().unwrap().join("\n")
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < until, "{what}: {:?}\n{}", self.stapled().len(), self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn stapled_response_is_renewed_and_dropped_at_expiry() {
    let scratch = Scratch::new("renewed");
    let responder = Responder::start(&scratch.0);
    responder.certificate("a.test", 0x1001, "");
    let rig = Rig::start(&scratch.0, &responder);
    rig.watch("a.test", 2);
    rig.until("a response", || rig.stapled().len() == 1);
    assert!(rig.stapled()[0].is_some());
    assert!(rig.log().contains("a response is presented"), "{}", rig.log());
    // After a reload the response is stapled at once, without a request.
    let requests = responder.requests.load(Ordering::SeqCst);
    rig.watch("a.test", 2);
    rig.until("the same response", || rig.stapled().len() == 2);
    assert_eq!(rig.stapled()[0], rig.stapled()[1]);
    assert_eq!(responder.requests.load(Ordering::SeqCst), requests);
    // Renewal is due after half of the four days. While the responder sends invalid responses, the old one is
    // kept.
    *responder.answer.lock().unwrap() = Answer::Foreign;
    rig.moved_s.store(2 * 86_400 + 3_600, Ordering::Relaxed);
    rig.until("an error", || rig.log().contains("neither the issuer nor one of its delegates has signed"));
    assert_eq!(rig.stapled().len(), 2);
    // Requests are repeated, but logged only once.
    let requests = responder.requests.load(Ordering::SeqCst);
    rig.until("more requests", || responder.requests.load(Ordering::SeqCst) > requests + 2);
    assert_eq!(rig.log().matches("has signed").count(), 1, "{}", rig.log());
    // An expired response is no longer stapled.
    rig.moved_s.store(4 * 86_400 + 60, Ordering::Relaxed);
    rig.until("no response", || rig.stapled().last() == Some(&None));
    assert!(rig.log().contains("the last response has expired"), "{}", rig.log());
    assert_eq!(rig.stapled().len(), 3);
    // By the shifted clock a current response has expired; by the real clock it is valid.
    *responder.answer.lock().unwrap() = Answer::Honest;
    rig.until("an expired one", || rig.log().contains("has expired (nextUpdate)"));
    rig.moved_s.store(0, Ordering::Relaxed);
    rig.until("a response", || rig.stapled().len() == 4);
    assert!(rig.stapled()[3].is_some());
}

#[test]
fn invalid_ocsp_responses_are_reported_and_not_stapled() {
    let scratch = Scratch::new("wrong");
    let responder = Responder::start(&scratch.0);
    responder.certificate("must.test", 0x1002, "tlsfeature=status_request\\n");
    let rig = Rig::start(&scratch.0, &responder);
    *responder.answer.lock().unwrap() = Answer::Nonsense;
    rig.watch("must.test", 2);
    for (answer, cause) in [
        (Answer::Nonsense, "no OCSP response"),
        (Answer::Another, "about another certificate"),
        (Answer::Foreign, "has signed"),
        (Answer::Status(503), "status 503"),
        (Answer::Moved, "status 302"),
        (Answer::EndlessBody, "length limit exceeded"),
        (Answer::EndlessHead, "message head is too large"),
        (Answer::Silent, "no response within 2 s"),
    ] {
        *responder.answer.lock().unwrap() = answer;
        rig.until(cause, || rig.log().contains(cause));
    }
    responder.revoke_all();
    *responder.answer.lock().unwrap() = Answer::Honest;
    rig.until("revoked", || rig.log().contains("revoked"));
    assert!(rig.log().contains("must-staple"), "{}", rig.log());
    assert_eq!(rig.stapled(), [], "{}", rig.log());
    // Without the issuer's certificate no request is sent, and the remedy is logged.
    rig.watch("must.test", 1);
    rig.until("the remedy", || rig.log().contains("append it to the file"));
}
