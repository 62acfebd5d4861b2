//! JSON Web Tokens (RFC 7519): verification, and access to the claims.
//!
//! The signature is verified by `jsonwebtoken`. This module adds the selection of the algorithm, which must
//! be allowed and fit the key, the selection of keys of a JWKS (RFC 7517) by id, and the checks of claims at
//! a time given by the caller.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use failure::Failure;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use times::UnixSeconds;

use crate::auth_token::JwtAuth;

/// Maximum length of a token in bytes.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Maximum keys used of a set.
const KEYS_MAX: usize = 100;
/// Maximum keys tried for one token.
const KEYS_TRIED_MAX: usize = 4;
/// Minimum length of an HMAC secret in bytes (RFC 7518 section 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// Set of keys that tokens are signed with.
pub struct JwtKeys(Vec<JwtKey>);

struct JwtKey {
    id: Option<String>,
    /// The only algorithm of the key, if it declares one.
    algorithm: Option<String>,
    kind: KeyKind,
    key: DecodingKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    Ec,
    Ed,
    Secret,
}

/// A valid token.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedToken {
    claims: Map<String, Value>,
    /// Time until which the token is valid.
    pub until: UnixSeconds,
}

/// Reason for refusing a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtRefusal {
    /// The token is invalid.
    Invalid(&'static str),
    /// No key of the set fits the token; a newer set may contain the key.
    UnknownKey,
    /// The token is valid, but lacks a required claim.
    Insufficient,
}

/// Header parameters of a token.
struct TokenHead {
    algorithm: String,
    key_id: Option<String>,
}

impl JwtKeys {
    /// Parses a JWKS. Keys that are not for signatures or of unknown types are ignored. `allows_secrets`
    /// permits secrets (`oct`); it must not be set for a fetched set, because published keys are not secret.
    ///
    /// # Errors
    /// The text is not a JWKS. A set without usable keys is valid, but verifies no token.
    pub fn parse(bytes: &[u8], allows_secrets: bool) -> Result<JwtKeys, Failure> {
        let set: Value = serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("it has no list `keys`, as a JWKS has")?;
        let keys: Vec<JwtKey> =
            keys.iter().filter_map(|key| JwtKey::read(key, allows_secrets)).take(KEYS_MAX).collect();
        Ok(JwtKeys(keys))
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of keys that tokens with one of these algorithms may be signed with.
    #[must_use]
    pub fn count_for(&self, algorithms: &[&str]) -> usize {
        self.0.iter().filter(|key| algorithms.iter().any(|algorithm| key.allows(algorithm))).count()
    }

    /// Verifies a token by the rules of `rules` at a time in seconds since 1970. Takes about 20 to 200 µs.
    ///
    /// # Errors
    /// The reason for refusing the token.
    pub fn verify(
        &self,
        rules: &JwtAuth,
        token: &[u8],
        now: UnixSeconds,
    ) -> Result<VerifiedToken, JwtRefusal> {
        let head = TokenHead::read(token)?;
        if kind_of(&head.algorithm).is_none() || !rules.algorithms.contains(&head.algorithm.as_str()) {
            return Err(JwtRefusal::Invalid("its algorithm is not allowed"));
        }
        let algorithm: Algorithm =
            head.algorithm.parse().map_err(|_| JwtRefusal::Invalid("its algorithm is not known"))?;
        let fits = |key: &&JwtKey| {
            let is_named = head.key_id.is_none() || key.id.is_none() || key.id == head.key_id;
            is_named && key.allows(&head.algorithm)
        };
        let mut validation = Validation::new(algorithm);
        // Claims are checked below, by the caller's clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let mut tried = 0;
        for key in self.0.iter().filter(fits).take(KEYS_TRIED_MAX) {
            tried += 1;
            if let Ok(data) = jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation) {
                return rules.check(data.claims, now);
            }
        }
        match tried {
            0 => Err(JwtRefusal::UnknownKey),
            _ => Err(JwtRefusal::Invalid("its signature is not valid")),
        }
    }
}

impl fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl JwtKey {
    /// Whether tokens with this algorithm may be signed with the key.
    fn allows(&self, algorithm: &str) -> bool {
        kind_of(algorithm) == Some(self.kind) && self.algorithm.as_ref().is_none_or(|own| own == algorithm)
    }

    fn read(value: &Value, allows_secrets: bool) -> Option<JwtKey> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        if matches!(&jwk.common.public_key_use, Some(of) if *of != PublicKeyUse::Signature) {
            return None;
        }
        let operations = value.get("key_ops").and_then(Value::as_array);
        if operations.is_some_and(|all| !all.iter().any(|one| one == "verify")) {
            return None;
        }
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => KeyKind::Rsa,
            AlgorithmParameters::EllipticCurve(_) => KeyKind::Ec,
            AlgorithmParameters::OctetKeyPair(_) => KeyKind::Ed,
            AlgorithmParameters::OctetKey(secret) => {
                let secret = BASE64URL_NOPAD.decode(secret.value.as_bytes()).ok()?;
                if !allows_secrets || secret.len() < SECRET_BYTES_MIN {
                    return None;
                }
                KeyKind::Secret
            }
            _ => return None,
        };
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(JwtKey { id: text("kid"), algorithm: text("alg"), kind, key: DecodingKey::from_jwk(&jwk).ok()? })
    }
}

/// Returns the type of key that an algorithm requires; a key of another type is never used for it.
fn kind_of(algorithm: &str) -> Option<KeyKind> {
    match algorithm {
        "RS256" | "RS384" | "RS512" | "PS256" | "PS384" | "PS512" => Some(KeyKind::Rsa),
        "ES256" | "ES384" => Some(KeyKind::Ec),
        "EdDSA" => Some(KeyKind::Ed),
        "HS256" | "HS384" | "HS512" => Some(KeyKind::Secret),
        _ => None,
    }
}

/// JSON object whose member names are unique: with two of the same name, it is an error. Parsers differ in which of
/// them counts, so a token that has such a header could mean something else to another server (RFC 7515 section 4).
struct UniqueMembers(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueMembers, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Map<String, Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose members have different names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut found = Map::new();
                while let Some((name, value)) = members.next_entry::<String, Value>()? {
                    if found.insert(name, value).is_some() {
                        return Err(A::Error::custom("two members have the same name"));
                    }
                }
                Ok(found)
            }
        }

        from.deserialize_map(MembersVisitor).map(UniqueMembers)
    }
}

impl TokenHead {
    fn read(token: &[u8]) -> Result<TokenHead, JwtRefusal> {
        const INVALID: JwtRefusal = JwtRefusal::Invalid("it is not a signed token");
        if token.len() > TOKEN_BYTES_MAX || token.iter().filter(|&&byte| byte == b'.').count() != 2 {
            return Err(INVALID);
        }
        let head = token.split(|&byte| byte == b'.').next().unwrap_or_default();
        let head = BASE64URL_NOPAD.decode(head).map_err(|_| INVALID)?;
        let UniqueMembers(head) = serde_json::from_slice(&head).map_err(|_| INVALID)?;
        // A token with critical extensions must be rejected, because none is supported (RFC 7515 section
        // 4.1.11).
        if head.contains_key("crit") {
            return Err(JwtRefusal::Invalid("it has extensions that are not known"));
        }
        let text = |name: &str| head.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(TokenHead { algorithm: text("alg").ok_or(INVALID)?, key_id: text("kid") })
    }
}

impl JwtAuth {
    fn check(&self, claims: Map<String, Value>, now: UnixSeconds) -> Result<VerifiedToken, JwtRefusal> {
        let invalid = |why| Err(JwtRefusal::Invalid(why));
        let Some(expires) = claims.get("exp").and_then(claimed_time) else {
            return invalid("it never expires");
        };
        let until = expires + self.leeway;
        if until <= now {
            return invalid("it has expired");
        }
        if let Some(from) = claims.get("nbf") {
            match claimed_time(from) {
                Some(from) if from <= now + self.leeway => {}
                _ => return invalid("it is not valid yet"),
            }
        }
        let is_one = |value: Option<&Value>, known: &[String]| {
            let text = |value: &Value| value.as_str().is_some_and(|text| known.iter().any(|one| one == text));
            value.is_some_and(|value| match value {
                Value::Array(all) => all.iter().any(text),
                one => text(one),
            })
        };
        let issuer = claims.get("iss").filter(|issuer| issuer.is_string());
        if !self.issuers.is_empty() && !is_one(issuer, &self.issuers) {
            return invalid("it is of another issuer");
        }
        if !self.audiences.is_empty() && !is_one(claims.get("aud"), &self.audiences) {
            return invalid("it is for another audience");
        }
        let token = VerifiedToken { claims, until };
        let has = |(name, values): &(String, Vec<String>)| token.has(name, values);
        if !self.claims.iter().all(has) {
            return Err(JwtRefusal::Insufficient);
        }
        Ok(token)
    }
}

impl VerifiedToken {
    /// Returns a claim. Dots lead into objects (`realm_access.roles`), unless a claim has the whole name.
    fn claim(&self, name: &str) -> Option<&Value> {
        self.claims.get(name).or_else(|| {
            let mut parts = name.split('.');
            let first = self.claims.get(parts.next()?)?;
            parts.try_fold(first, |value, part| value.get(part))
        })
    }

    /// Returns a claim as text; the items of a list are joined by commas. `None` if it is absent, an object,
    /// or a list with an item that contains a comma, because that would be read as two items.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        match self.claim(name)? {
            Value::Array(all) => {
                let item = |value: &Value| scalar_text(value).filter(|text| !text.contains(','));
                all.iter().map(item).collect::<Option<Vec<_>>>().map(|all| all.join(","))
            }
            one => scalar_text(one),
        }
    }

    /// Whether a claim, or an item of it if it is a list, is one of these values. `scope` is a list of words
    /// (RFC 8693 section 4.2).
    fn has(&self, name: &str, values: &[String]) -> bool {
        let is_value = |text: &str| values.iter().any(|value| value == text);
        match self.claim(name) {
            None => false,
            Some(Value::Array(all)) => all.iter().filter_map(scalar_text).any(|text| is_value(&text)),
            Some(Value::String(scopes)) if matches!(name, "scope" | "scp") => scopes.split(' ').any(is_value),
            Some(one) => scalar_text(one).is_some_and(|text| is_value(&text)),
        }
    }

    /// Returns the approximate bytes of memory held.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.claims.iter().map(|(name, value)| 64 + name.len() + value.to_string().len()).sum()
    }
}

/// Returns a scalar claim as text.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Parses a time in a claim: seconds since 1970, possibly with a fraction.
fn claimed_time(value: &Value) -> Option<UnixSeconds> {
    let float = || value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    value.as_u64().or_else(|| float().map(|seconds| seconds as u64)).map(UnixSeconds)
}

#[cfg(test)]
mod tests;
