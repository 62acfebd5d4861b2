//! Credentials carried by requests: JSON Web Tokens, signed URLs, and origins of pages.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use data_encoding::BASE64URL_NOPAD;
use serde_json::{Value, json};

use crate::origin::{Origin, answer, ok};
use crate::rig::{Folder, Rig, eventually, komainu, read_answer, text};

/// A time after the end of every test, in seconds since 1970.
const LATER_S: u64 = 9_000_000_000;

struct Signer {
    pair: EcdsaKeyPair,
    id: &'static str,
}

impl Signer {
    fn new(id: &'static str) -> Signer {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap();
        Signer { pair, id }
    }

    fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let part = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": part(&point[1..33]), "y": part(&point[33..])})
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "kid": self.id}).to_string(), claims)
    }

    /// Returns a token with this text as its header.
    fn sign(&self, head: &str, claims: &Value) -> String {
        let part = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
        let signed = format!("{}.{}", part(head), part(&claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }
}

fn claims(name: &str) -> Value {
    json!({"iss": "https://issuer.test", "aud": "shop", "sub": name, "exp": LATER_S, "groups": ["a", "b"]})
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\nX-User: root\r\nX_User: root\r\n")
}

#[test]
fn jwt_keys_are_fetched_and_rotated() {
    let signers = Arc::new([Signer::new("one"), Signer::new("two")]);
    // The issuer fails at first, and later has another key.
    let is_there = Arc::new(AtomicBool::new(false));
    let has_both = Arc::new(AtomicBool::new(false));
    let there = is_there.clone();
    let both = has_both.clone();
    let of = signers.clone();
    let issuer = Origin::start(move |_| {
        let count = if both.load(Ordering::SeqCst) { 2 } else { 1 };
        let keys: Vec<Value> = of[..count].iter().map(Signer::jwk).collect();
        if there.load(Ordering::SeqCst) {
            ok(&json!({ "keys": keys }).to_string())
        } else {
            answer("500 Oh", "", "no")
        }
    });
    let origin = Origin::start(|ask| ok(&format!("{:?} {:?}", ask.field("X-User"), ask.field("X-Groups"))));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 2
            [[route]]
            path = "/admin"
            proxy = "{0}"
            auth = {{ jwt = {{ jwks = "{1}/keys", issuer = "https://issuer.test", audience = "shop", claims = {{ sub = "admin" }} }} }}
            [[route]]
            proxy = {{ to = "{0}", underscores = true }}
            auth = {{ jwt = {{ jwks = "{1}/keys", issuer = "https://issuer.test", audience = "shop", headers = {{ X-User = "sub", X-Groups = "groups" }}, cookie = "token", query = "token" }} }}
            "#,
            origin.url, issuer.url
        ),
    );
    let alice = signers[0].token(&claims("alice"));
    rig.ask("/", &bearer(&alice)).expect_status(503).expect_field("Cache-Control", "no-store");
    eventually("the log says that keys are not there", || rig.reported().contains("the keys cannot be had"));
    is_there.store(true, Ordering::SeqCst);
    eventually("the keys come", || rig.ask("/", &bearer(&alice)).status() == 200);
    for _ in 0..2 {
        rig.ask("/", &bearer(&alice)).expect(200, "[\"alice\"] [\"a,b\"]");
    }
    rig.ask("/", &format!("Cookie: token={alice}\r\n")).expect(200, "[\"alice\"] [\"a,b\"]");
    rig.get(&format!("/?token={alice}")).expect(200, "[\"alice\"] [\"a,b\"]");
    rig.get("/").expect_status(401).expect_field("WWW-Authenticate", "Bearer realm=\"restricted\"");
    let mut stranger = claims("alice");
    stranger["aud"] = "other".into();
    for wrong in [
        bearer(&signers[0].token(&stranger)),
        bearer(&alice[..alice.len() - 4]),
        bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0."),
        bearer(&"x".repeat(10_000)),
        format!("Cookie: token={alice}; token=x\r\n"),
        "Authorization: Basic YTpi\r\n".into(),
        "Authorization: Bearer\r\n".into(),
    ] {
        let refused = rig.ask("/", &wrong);
        assert!(refused.status() == 401, "{wrong}: {}", refused.head);
    }
    rig.ask("/", &format!("{}{}", bearer(&alice), bearer(&alice))).expect_status(400);
    rig.ask("/admin", &bearer(&alice)).expect_status(403);
    rig.ask("/admin", &bearer(&signers[0].token(&claims("admin")))).expect_status(200);
    // Tokens of unknown keys cause only occasional requests to the issuer.
    let asked = issuer.asks().len();
    let unknown = Signer::new("nobody");
    let mut stream = rig.connect();
    for number in 0..200 {
        let token = unknown.token(&claims(&number.to_string()));
        write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", bearer(&token)).unwrap();
        read_answer(&mut stream).expect_status(401);
    }
    assert!(issuer.asks().len() - asked <= 20, "{}", issuer.asks().len() - asked);
    // A new key is fetched on demand; the previous one stays valid.
    has_both.store(true, Ordering::SeqCst);
    let bob = signers[1].token(&claims("bob"));
    eventually("the new key is there", || rig.ask("/", &bearer(&bob)).status() == 200);
    rig.ask("/", &bearer(&alice)).expect(200, "[\"alice\"] [\"a,b\"]");
}

#[test]
fn empty_jwks_rejects_tokens_and_invalid_jwks_is_ignored() {
    let signer = Arc::new(Signer::new("one"));
    let all = json!({ "keys": [signer.jwk()] }).to_string();
    let said = Arc::new(Mutex::new(ok(&all)));
    let of = said.clone();
    let issuer = Origin::start(move |_| of.lock().unwrap().clone());
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            respond = "in"
            auth = {{ jwt = {{ jwks = "{}/keys", issuer = "https://issuer.test", audience = "shop" }} }}
            "#,
            issuer.url
        ),
    );
    // A token of an unknown key triggers a refresh of the keys.
    let unknown = bearer(&Signer::new("other").token(&claims("alice")));
    let token = bearer(&signer.token(&claims("alice")));
    let status = || {
        rig.ask("/", &unknown);
        rig.ask("/", &token).status()
    };
    let set = |answer: String| *said.lock().unwrap() = answer;
    eventually("the keys come", || status() == 200);
    set(ok("{}"));
    eventually("nonsense is not taken for keys", || {
        assert_eq!(status(), 200);
        rig.reported().contains("those from before stay for a day")
    });
    let unusable = json!({ "keys": [{ "kty": "oct", "k": "AAAA" }, { "kty": "new" }] }).to_string();
    // A key of another type than that of the algorithms.
    let mut other = signer.jwk();
    other["alg"] = json!("ES512");
    let other = json!({ "keys": [other] }).to_string();
    for (none, why) in [
        ("{\"keys\": []}", "there is no key for signatures in the set"),
        (&unusable, "there is no key for signatures in the set"),
        (&other, "no key of the set fits `algorithms`"),
    ] {
        set(ok(none));
        eventually("the key is withdrawn", || status() == 401);
        rig.expect_report(why);
        set(ok(&all));
        eventually("the key is back", || status() == 200);
    }
}

#[test]
fn withdrawn_keys_do_not_count_for_the_first_request_after_a_pause() {
    let signer = Arc::new(Signer::new("one"));
    let said = Arc::new(Mutex::new(ok(&json!({ "keys": [signer.jwk()] }).to_string())));
    let of = said.clone();
    let issuer = Origin::start(move |_| of.lock().unwrap().clone());
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            respond = "in"
            auth = {{ jwt = {{ jwks = "{}/keys", issuer = "https://issuer.test", audience = "shop", refresh = "10s" }}, timeout = "1s" }}
            "#,
            issuer.url
        ),
    );
    let token = bearer(&signer.token(&claims("alice")));
    eventually("the keys come", || rig.ask("/", &token).status() == 200);
    *said.lock().unwrap() = ok("{\"keys\": []}");
    std::thread::sleep(Duration::from_secs(14));
    assert_eq!(rig.ask("/", &token).status(), 401);
}

/// Answers of an issuer that lies.
#[derive(Clone)]
enum KeyAnswer {
    Whole(String),
    /// Content without end.
    Endless,
    /// Nothing, on a connection that stays open.
    Silence,
}

/// Bytes of an endless key set that the server and both sockets' buffers may take.
const ENDLESS_BYTES_MAX: usize = 32 << 20;

/// An issuer that answers as is set, and reports what it could send of each endless answer.
fn lying_issuer() -> (String, Arc<Mutex<KeyAnswer>>, Receiver<usize>) {
    let listener = crate::rig::listener();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(Mutex::new(KeyAnswer::Silence));
    let of = answer.clone();
    let (sent, received) = channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len > 0) {
                head.push(byte[0]);
            }
            match of.lock().unwrap().clone() {
                // The server may have given up.
                KeyAnswer::Whole(text) => _ = stream.write_all(text.as_bytes()),
                KeyAnswer::Silence => silent.push(stream),
                KeyAnswer::Endless => {
                    let mut bytes = 0;
                    let mut piece =
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"keys\":[".to_vec();
                    while bytes < ENDLESS_BYTES_MAX && stream.write_all(&piece).is_ok() {
                        bytes += piece.len();
                        piece = b"{\"kty\":\"EC\"},".repeat(4_096);
                    }
                    sent.send(bytes).unwrap();
                }
            }
        }
    });
    (url, answer, received)
}

#[test]
fn lying_key_sets_are_bounded_and_followed_nowhere() {
    let signers = ["one", "two"].map(Signer::new);
    // As many keys as are read, and another one.
    let keys: Vec<Value> = (0..99).map(|at| json!({"kid": format!("k{at}")})).collect();
    let keys = keys.into_iter().map(|mut key| {
        let mut whole = signers[0].jwk();
        whole["kid"] = key["kid"].take();
        whole
    });
    let keys: Vec<Value> = std::iter::once(signers[0].jwk()).chain(keys).chain([signers[1].jwk()]).collect();
    let genuine = json!({ "keys": [signers[0].jwk()] }).to_string();
    let other = Origin::start(move |_| ok(&genuine));
    let (url, answer, sent) = lying_issuer();
    let set = |to: KeyAnswer| *answer.lock().unwrap() = to;
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            threads = 1
            log.level = "info"
            [[route]]
            path = "/open"
            respond = "open"
            [[route]]
            respond = "in"
            auth = {{ jwt = {{ jwks = "{url}/keys", issuer = "https://issuer.test", audience = "shop" }}, timeout = "1s" }}
            "#
        ),
    );
    let [first, last] = signers.each_ref().map(|signer| bearer(&signer.token(&claims("alice"))));
    // Nothing arrives: requests that wait are refused, and others are served meanwhile.
    rig.ask("/", &first).expect_status(503);
    rig.get("/open").expect(200, "open");
    set(KeyAnswer::Endless);
    eventually("an endless answer is given up", || {
        rig.ask("/", &first).expect_status(503);
        sent.try_recv().is_ok_and(|bytes| {
            assert!(bytes < ENDLESS_BYTES_MAX, "{bytes}");
            true
        })
    });
    let location = format!(
        "HTTP/1.1 302 Found\r\nLocation: {}/keys\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        other.url
    );
    set(KeyAnswer::Whole(location));
    eventually("the status is named", || {
        rig.ask("/", &first).expect_status(503);
        rig.reported().contains("302")
    });
    assert_eq!(other.asks().len(), 0, "the redirection is not followed");
    set(KeyAnswer::Whole(ok(&json!({ "keys": keys }).to_string())));
    eventually("the keys come", || rig.ask("/", &first).status() == 200);
    rig.expect_report("there are 100 keys");
    rig.ask("/", &last).expect_status(401);
}

/// Tokens name keys of their own, signatures that are valid for every text in some libraries, and other algorithms.
#[test]
fn forged_tokens_are_refused_and_their_keys_not_fetched() {
    let signer = Arc::new(Signer::new("one"));
    let set = json!({ "keys": [signer.jwk()] }).to_string();
    let answered = set.clone();
    let issuer = Origin::start(move |_| ok(&answered));
    let forger = Signer::new("one");
    let own = json!({ "keys": [forger.jwk()] }).to_string();
    let elsewhere = Origin::start(move |_| ok(&own));
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            respond = "in"
            auth = {{ jwt = {{ jwks = "{}/keys", issuer = "https://issuer.test", audience = "shop" }} }}
            "#,
            issuer.url
        ),
    );
    let claims = claims("alice");
    let valid = signer.token(&claims);
    eventually("the keys come", || rig.ask("/", &bearer(&valid)).status() == 200);
    let parts: Vec<&str> = valid.split('.').collect();
    let with_signature =
        |bytes: &[u8]| format!("{}.{}.{}", parts[0], parts[1], BASE64URL_NOPAD.encode(bytes));
    let forged = |more: Value| {
        let mut head = json!({"alg": "ES256", "kid": "one"});
        head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        forger.sign(&head.to_string(), &claims)
    };
    let by_secret = |secret: &[u8]| {
        let part = |text: String| BASE64URL_NOPAD.encode(text.as_bytes());
        let head = json!({"alg": "HS256", "kid": "one"}).to_string();
        let text = format!("{}.{}", part(head), part(claims.to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes());
        format!("{text}.{}", BASE64URL_NOPAD.encode(tag.as_ref()))
    };
    let keys = format!("{}/keys", elsewhere.url);
    // Half of an ES256 signature is a number below the order of the curve.
    let order = b"\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xbc\xe6\xfa\xad\xa7\x17\x9e\x84\xf3\xb9\xca\xc2\xfc\x63\x25\x51";
    for (what, token) in [
        ("the key in the token", forged(json!({ "jwk": forger.jwk() }))),
        ("no other id", forger.sign(&json!({"alg": "ES256", "jwk": forger.jwk()}).to_string(), &claims)),
        ("keys at a URL", forged(json!({ "jku": keys }))),
        ("a certificate at a URL", forged(json!({ "x5u": keys }))),
        ("an id that is a URL", forged(json!({ "kid": keys }))),
        ("an id that is a file", forged(json!({ "kid": "../../../../dev/null" }))),
        ("a signature of zeros", with_signature(&[0; 64])),
        ("a signature of the order", with_signature(&[*order, *order].concat())),
        ("an empty signature", with_signature(&[])),
        ("two algorithms", signer.sign(r#"{"alg":"ES256","kid":"one","alg":"none"}"#, &claims)),
        ("an empty secret", by_secret(b"")),
        ("the key set as a secret", by_secret(set.as_bytes())),
        ("the public key as a secret", by_secret(signer.pair.public_key().as_ref())),
    ] {
        let refused = rig.ask("/", &bearer(&token));
        assert_eq!(refused.status(), 401, "{what}: {}", refused.head);
    }
    assert_eq!(elsewhere.asks().len(), 0, "keys of tokens are not fetched");
    rig.ask("/", &bearer(&valid)).expect(200, "in");
}

/// A signature is valid for one path, and not for others that a server might treat as equal.
#[test]
fn signed_url_is_valid_only_for_its_path() {
    let origin = Origin::start(|ask| ok(ask.line()));
    let folder = Folder::new();
    folder.write("urls.secret", "0123456789abcdef0123456789abcdef\n");
    let config = format!(
        r#"
        [[route]]
        proxy = "{}"
        auth = {{ signed = {{ secret_file = "urls.secret" }} }}
        "#,
        origin.url
    );
    let rig = Rig::config(folder, &config);
    let sign = |path: &str| {
        let secret = rig.folder.at("urls.secret");
        let done = komainu()
            .args(["sign-url", "--for", "1h", "--secret-file"])
            .arg(secret)
            .arg(path)
            .output()
            .unwrap();
        text(&done.stdout).trim().to_owned()
    };
    let signed = sign("/p/x");
    let query = signed.split_once('?').unwrap().1;
    rig.get(&signed).expect_status(200);
    for same in ["/p/%78", "/p/./x", "/q/../p/x"] {
        rig.get(&format!("{same}?{query}")).expect_status(200);
    }
    for other in ["/p//x", "//p/x", "/p/x/", "/p/x//", "/p//./x", "/p/%2fx", "/P/x"] {
        rig.get(&format!("{other}?{query}")).expect_status(403);
    }
    let signed = sign("/p//x");
    rig.get(&signed).expect_status(200);
    assert!(origin.last().line().starts_with("GET /p//x?"), "{}", origin.last().line());
    let query = signed.split_once('?').unwrap().1;
    rig.get(&format!("/p/x?{query}")).expect_status(403);
}

#[test]
fn identity_fields_of_clients_are_removed_on_all_routes() {
    let signer = Arc::new(Signer::new("one"));
    let keys = signer.clone();
    let issuer = Origin::start(move |_| ok(&json!({ "keys": [keys.jwk()] }).to_string()));
    let origin =
        Origin::start(|ask| ok(&format!("{:?} {:?}", ask.field("X-User"), ask.field("Remote-User"))));
    // Each route names a different field, and one names none.
    let rig = Rig::config(
        Folder::new(),
        &format!(
            r#"
            [[route]]
            path = "/token"
            proxy = "{0}"
            auth = {{ jwt = {{ jwks = "{1}/keys", issuer = "https://issuer.test", audience = "shop", headers = {{ X-User = "sub" }} }} }}

            [[route]]
            path = "/asked"
            proxy = "{0}"
            auth = {{ ask = "{1}/verify", response_headers = ["Remote-User"] }}

            [[route]]
            proxy = "{0}"
            "#,
            origin.url, issuer.url
        ),
    );
    let token = format!("Authorization: Bearer {}\r\n", signer.token(&claims("alice")));
    let evil = "X-User: evil\r\nRemote-User: evil\r\nREMOTE_USER: evil\r\n";
    eventually("the keys come", || rig.ask("/token", &token).status() == 200);
    rig.ask("/token", &format!("{token}{evil}")).expect(200, "[\"alice\"] []");
    rig.ask("/asked", evil).expect(200, "[] []");
    rig.ask("/open", evil).expect(200, "[] []");
    // The authorization server does not receive the fields either.
    let is_clean =
        issuer.asks().iter().filter(|ask| ask.head.contains("/verify")).all(|ask| !ask.head.contains("evil"));
    assert!(is_clean);
}

#[test]
fn signed_url_is_accepted_until_it_expires() {
    let folder = Folder::new();
    folder
        .write("secret", "the-new-secret-of-urls\nthe-old-secret-of-urls\n")
        .write("old", "the-old-secret-of-urls\n");
    folder.write("www/a b.txt", "content");
    let rig = Rig::config(
        folder,
        r#"
        [[route]]
        path = "/mine/*"
        respond = "mine"
        auth = { signed = { secret_file = "secret", client = true } }
        [[route]]
        files = "www"
        auth = { signed = { secret_file = "secret" } }
        "#,
    );
    let sign = |arguments: &[&str]| {
        let file = rig.folder.at(arguments[0]);
        let mut command = komainu();
        command.arg("sign-url").arg("--secret-file").arg(file).args(&arguments[1..]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    };
    for file in ["secret", "old"] {
        let url = sign(&[file, "/a%20b.txt?x=y"]);
        rig.get(&url).expect(200, "content");
        rig.get(&url.replace("a%20b", "%61%20b")).expect(200, "content");
        rig.get(&url.replace("x=y", "x=z")).expect(200, "content");
        rig.get(&url.replace("a%20b", "c")).expect_status(403).expect_field("Cache-Control", "no-store");
    }
    assert!(
        sign(&["secret", "--for", "2h", "https://example.com/a%20b.txt"])
            .starts_with("https://example.com/a%20b.txt?expires=")
    );
    rig.get("/a%20b.txt").expect_status(403);
    rig.get(&sign(&["secret", "--until", "1000", "/a%20b.txt"])).expect_status(410);
    rig.get(&sign(&["secret", "--client", "127.0.0.1", "/mine/x"])).expect(200, "mine");
    rig.get(&sign(&["secret", "--client", "127.0.0.2", "/mine/x"])).expect_status(403);
    rig.get(&sign(&["secret", "/mine/x"])).expect_status(403);
    // The shell command of the documentation.
    let script = "until=9000000000; printf '%s\\n%s' '/a b.txt' $until | openssl dgst -sha256 -hmac the-new-secret-of-urls -binary | \
                  base64 | tr '+/' '-_' | tr -d '='";
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    let signature = text(&output.stdout);
    rig.get(&format!("/a%20b.txt?expires=9000000000&signature={}", signature.trim())).expect(200, "content");
}

#[test]
fn cors_allows_only_configured_origins() {
    let origin = Origin::start(|ask| {
        if ask.line().contains("fails") {
            answer("500 Oh", "", "no")
        } else {
            answer(
                "200 OK",
                "Access-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: false\r\nVary: Accept\r\nCache-Control: max-age=600\r\n",
                ask.line(),
            )
        }
    });
    let folder = Folder::new();
    folder.write("www/f.txt", "file").write("users", "");
    let rig = Rig::config(
        folder,
        &format!(
            r#"
            [[site]]
            cors = {{ origins = ["https://app.test", "https://*.apps.test"], credentials = true, expose = ["X-Total"] }}

            [[site.route]]
            path = "/f.txt"
            files = "www"

            [[site.route]]
            path = "/all"
            cors = true
            respond = "all"

            [[site.route]]
            path = "/none"
            cors = false
            proxy = "{0}"

            [[site.route]]
            path = "/closed"
            method = "PUT"
            auth = {{ basic = "users" }}
            respond = "closed"

            [[site.route]]
            path = "/cached"
            cache = {{}}
            proxy = "{0}"

            [[site.route]]
            proxy = "{0}"
            "#,
            origin.url
        ),
    );
    let from = |path: &str, origin: &str| rig.ask(path, &format!("Origin: {origin}\r\n"));
    let values = |answer: &crate::rig::Answer, name: &str| {
        let lines = answer.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
            .collect::<Vec<_>>()
    };
    const ALLOWED: &str = "Access-Control-Allow-Origin";
    for path in ["/f.txt", "/", "/fails", "/cached", "/cached", "/f.txt"] {
        for name in ["https://app.test", "https://a.b.apps.test"] {
            let answer = from(path, name);
            assert_eq!(values(&answer, ALLOWED), [name], "{path}: {}", answer.head);
            assert_eq!(values(&answer, "Access-Control-Allow-Credentials"), ["true"]);
            answer.expect_field("Access-Control-Expose-Headers", "X-Total");
        }
        for answer in [from(path, "https://evil.test"), from(path, "null"), rig.get(path)] {
            assert!(values(&answer, ALLOWED).is_empty(), "{path}: {}", answer.head);
            assert!(values(&answer, "Vary").iter().any(|value| value == "Origin"), "{path}: {}", answer.head);
        }
    }
    assert_eq!(origin.asks().iter().filter(|ask| ask.line().contains("/cached")).count(), 1);
    let all = from("/all", "https://evil.test");
    all.expect(200, "all").expect_field(ALLOWED, "*").expect_no_field("Vary");
    assert_eq!(values(&from("/none", "https://app.test"), ALLOWED), ["*"], "the origin's own");
    let preflight = |path: &str, origin: &str, method: &str| {
        rig.send(&format!(
            "OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: {method}\r\nAccess-Control-Request-Headers: content-type,x-a\r\n\r\n"
        ))
    };
    // The route for the method of the preflight request answers, without authentication.
    let answer = preflight("/closed", "https://app.test", "PUT");
    answer
        .expect(204, "")
        .expect_field(ALLOWED, "https://app.test")
        .expect_field("Access-Control-Max-Age", "600");
    answer.expect_field("Access-Control-Allow-Headers", "content-type, x-a");
    assert_eq!(values(&answer, ALLOWED).len(), 1);
    preflight("/closed", "https://evil.test", "PUT").expect_status(403).expect_no_field(ALLOWED);
    preflight("/closed", "https://app.test", "TRACE").expect_status(403).expect_no_field(ALLOWED);
    rig.send("PUT /closed HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nOrigin: https://app.test\r\nContent-Length: 0\r\n\r\n")
        .expect_status(401)
        .expect_field(ALLOWED, "https://app.test");
    preflight("/none", "https://app.test", "GET").expect(200, "OPTIONS /none HTTP/1.1");
}
