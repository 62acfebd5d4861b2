use std::time::Duration;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use super::*;

fn encode(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

struct Signer {
    pair: EcdsaKeyPair,
    id: &'static str,
}

impl Signer {
    fn new(id: &'static str) -> Signer {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        Signer {
            pair: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap(),
            id,
        }
    }

    fn public(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }

    fn jwk(&self) -> Value {
        let point = self.public();
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
               "x": encode(&point[1..33]), "y": encode(&point[33..])})
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        self.sign_text(&head.to_string(), claims)
    }

    fn sign_text(&self, head: &str, claims: &Value) -> String {
        let text = format!("{}.{}", encode(head.as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", encode(signature.as_ref()))
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "kid": self.id}), claims)
    }
}

fn secret_token(secret: &[u8], head: &Value, claims: &Value) -> String {
    let text = format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes());
    format!("{text}.{}", encode(tag.as_ref()))
}

fn rules() -> JwtAuth {
    JwtAuth {
        issuers: vec!["https://issuer.test".into()],
        audiences: vec!["shop".into()],
        algorithms: vec!["RS256", "ES256"],
        leeway: Duration::from_secs(10),
        ..JwtAuth::default()
    }
}

fn good() -> Value {
    json!({"iss": "https://issuer.test", "aud": ["shop", "x"], "sub": "alice", "exp": 1000, "roles": ["a", "b"], "groups": ["x,admin", "y"],
           "realm_access": {"roles": ["c"]}, "scope": "read write", "verified": true})
}

fn keys(of: &[&Signer]) -> JwtKeys {
    let set = json!({"keys": of.iter().map(|signer| signer.jwk()).collect::<Vec<_>>()});
    JwtKeys::parse(set.to_string().as_bytes(), false).unwrap()
}

#[test]
fn valid_token_exposes_its_claims() {
    let one = Signer::new("one");
    let two = Signer::new("two");
    let keys = keys(&[&one, &two]);
    let token = keys.verify(&rules(), two.token(&good()).as_bytes(), UnixSeconds(500)).unwrap();
    assert_eq!(token.until, UnixSeconds(1010));
    for (name, text) in [
        ("sub", Some("alice")),
        ("roles", Some("a,b")),
        // An item with a comma would be read as two.
        ("groups", None),
        ("realm_access.roles", Some("c")),
        ("verified", Some("true")),
        ("realm_access", None),
        ("none", None),
        ("sub.x", None),
    ] {
        assert_eq!(token.text(name).as_deref(), text, "{name}");
    }
    // Without an id, every key of the right type is tried.
    let nameless = two.sign(&json!({"alg": "ES256"}), &good());
    assert!(keys.verify(&rules(), nameless.as_bytes(), UnixSeconds(500)).is_ok());
    let stranger = Signer::new("three");
    assert_eq!(
        keys.verify(&rules(), stranger.token(&good()).as_bytes(), UnixSeconds(500)),
        Err(JwtRefusal::UnknownKey)
    );
    let imposter = Signer::new("one");
    let refused = keys.verify(&rules(), imposter.token(&good()).as_bytes(), UnixSeconds(500));
    assert_eq!(refused, Err(JwtRefusal::Invalid("its signature is not valid")));
}

#[test]
fn registered_and_required_claims_are_verified() {
    let signer = Signer::new("one");
    let keys = keys(&[&signer]);
    let verify = |change: Value, rules: &JwtAuth, now_s| {
        let mut claims = good();
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
                value => claims[name] = value.clone(),
            }
        }
        keys.verify(rules, signer.token(&claims).as_bytes(), UnixSeconds(now_s)).map(|_| ())
    };
    let rules = rules();
    assert_eq!(verify(json!({}), &rules, 1009), Ok(()));
    assert_eq!(verify(json!({"exp": 1000.5, "nbf": 510}), &rules, 500), Ok(()));
    for (change, now_s) in [
        (json!({}), 1010),
        (json!({"exp": null}), 500),
        (json!({"exp": "1000"}), 500),
        (json!({"exp": -1}), 500),
        (json!({"nbf": 511}), 500),
        (json!({"nbf": "soon"}), 500),
        (json!({"iss": null}), 500),
        (json!({"iss": "https://issuer.test/"}), 500),
        (json!({"iss": ["https://issuer.test"]}), 500),
        (json!({"aud": null}), 500),
        (json!({"aud": "shops"}), 500),
        (json!({"aud": {"shop": true}}), 500),
    ] {
        assert!(
            matches!(verify(change.clone(), &rules, now_s), Err(JwtRefusal::Invalid(_))),
            "{change} at {now_s}"
        );
    }
    for (name, value, passes) in [
        ("roles", "b", true),
        ("roles", "c", false),
        ("scope", "write", true),
        ("scope", "rea", false),
        ("verified", "true", true),
        ("realm_access.roles", "c", true),
        ("none", "", false),
    ] {
        let rules = JwtAuth { claims: vec![(name.into(), vec!["z".into(), value.into()])], ..rules.clone() };
        let expected = if passes { Ok(()) } else { Err(JwtRefusal::Insufficient) };
        assert_eq!(verify(json!({}), &rules, 500), expected, "{name} {value}");
    }
}

#[test]
fn tokens_with_unexpected_algorithm_or_form_are_rejected() {
    let signer = Signer::new("one");
    let keys = keys(&[&signer]);
    let mut rules = rules();
    rules.algorithms.extend(["HS256", "none"]);
    let valid = signer.token(&good());
    let parts: Vec<&str> = valid.split('.').collect();
    let unsigned = |alg: &str| encode(json!({"alg": alg, "kid": "one"}).to_string().as_bytes());
    let public = signer.public();
    for token in [
        format!("{}.{}.", unsigned("none"), parts[1]),
        format!("{}.{}.{}", unsigned("none"), parts[1], parts[2]),
        format!("{}.{}.{}", unsigned("None"), parts[1], parts[2]),
        format!("{}.{}.{}", unsigned("RS256"), parts[1], parts[2]),
        // The public key used as an HMAC secret.
        secret_token(&public, &json!({"alg": "HS256", "kid": "one"}), &good()),
        secret_token(&public[1..], &json!({"alg": "HS256"}), &good()),
        secret_token(signer.jwk().to_string().as_bytes(), &json!({"alg": "HS256"}), &good()),
        secret_token(b"", &json!({"alg": "HS256"}), &good()),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{valid}."),
        format!("{valid}="),
        format!(" {valid}"),
        signer.sign(&json!({"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": false}), &good()),
        signer.sign(&json!({"alg": ["ES256"], "kid": "one"}), &good()),
        signer.sign(&json!({"alg": "ES384", "kid": "one"}), &good()),
        String::new(),
        "..".into(),
        "a.b.c".into(),
        "x".repeat(TOKEN_BYTES_MAX + 1),
    ] {
        let refused = keys.verify(&rules, token.as_bytes(), UnixSeconds(500));
        assert!(refused.is_err(), "{token}");
    }
    assert!(keys.verify(&rules, valid.as_bytes(), UnixSeconds(500)).is_ok());
    rules.algorithms = vec!["RS256"];
    assert!(keys.verify(&rules, valid.as_bytes(), UnixSeconds(500)).is_err());
    // A key for another use is ignored.
    let mut jwk = signer.jwk();
    jwk["use"] = "enc".into();
    assert_eq!(JwtKeys::parse(json!({"keys": [jwk]}).to_string().as_bytes(), false).unwrap().count(), 0);
}

#[test]
fn secret_keys_must_come_from_files_and_be_long() {
    let secret = [7; 32];
    let set = |secret: &[u8]| json!({"keys": [{"kty": "oct", "k": encode(secret)}]}).to_string();
    let count = |set: &str, allows_secrets| JwtKeys::parse(set.as_bytes(), allows_secrets).unwrap().count();
    assert_eq!((count(&set(&secret), false), count(&set(&secret[..31]), true)), (0, 0));
    let keys = JwtKeys::parse(set(&secret).as_bytes(), true).unwrap();
    let token = secret_token(&secret, &json!({"alg": "HS256"}), &good());
    assert!(keys.verify(&rules(), token.as_bytes(), UnixSeconds(500)).is_err());
    let rules = JwtAuth { algorithms: vec!["HS256"], ..rules() };
    assert!(keys.verify(&rules, token.as_bytes(), UnixSeconds(500)).is_ok());
    for wrong in ["", "{}", "[]", "{\"keys\": {}}"] {
        assert!(JwtKeys::parse(wrong.as_bytes(), true).is_err(), "{wrong}");
    }
    // Valid sets without usable keys verify no token.
    for none in ["{\"keys\": []}", "{\"keys\": [1, {}, {\"kty\": \"RSA\"}]}"] {
        assert_eq!(count(none, true), 0, "{none}");
    }
}

/// Parsers that keep the first or the last of two members disagree about what was signed, so neither counts (RFC 7515
/// section 4).
#[test]
fn tokens_with_duplicate_header_parameters_are_rejected() {
    let signer = Signer::new("one");
    let keys = keys(&[&signer]);
    let rules = rules();
    let verify = |head: &str| {
        keys.verify(&rules, signer.sign_text(head, &good()).as_bytes(), UnixSeconds(500)).map(drop)
    };
    assert_eq!(verify(r#"{"alg":"ES256","kid":"one","typ":"JWT","own":{"a":1}}"#), Ok(()));
    for head in [
        r#"{"alg":"none","alg":"ES256","kid":"one"}"#,
        r#"{"alg":"ES256","alg":"none","kid":"one"}"#,
        r#"{"alg":"ES256","alg":"ES256","kid":"one"}"#,
        r#"{"alg":"ES256","kid":"two","kid":"one"}"#,
        r#"{"alg":"ES256","kid":"one","kid":"two"}"#,
        r#"{"alg":"ES256","kid":"one","k\u0069d":"one"}"#,
        r#"{"alg":"ES256","kid":"one","typ":"JWT","typ":"at+jwt"}"#,
        r#"{"alg":"ES256","kid":"one","own":1,"own":2}"#,
        r#"{"alg":"ES256","kid":"one","crit":["b64"],"crit":[]}"#,
    ] {
        assert!(matches!(verify(head), Err(JwtRefusal::Invalid(_))), "{head}");
    }
}
