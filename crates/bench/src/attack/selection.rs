//! Selection of attacks by name.

use failure::Failure;
use http::Version;

use super::attacks::{ATTACKS, Attack};
use super::quic_attacks::{QUIC_ATTACKS, QuicAttack};

/// An attack over TCP or over QUIC.
#[derive(Clone, Copy)]
pub enum AnyAttack {
    /// On HTTP/2 or HTTP/1.
    Tcp(&'static Attack),
    /// On HTTP/3 or QUIC.
    Quic(&'static QuicAttack),
}

impl AnyAttack {
    /// Returns all attacks: those over TCP, then those over QUIC.
    pub fn all() -> impl Iterator<Item = AnyAttack> {
        ATTACKS.iter().map(AnyAttack::Tcp).chain(QUIC_ATTACKS.iter().map(AnyAttack::Quic))
    }

    /// Returns the name, as `--only` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AnyAttack::Tcp(attack) => attack.name,
            AnyAttack::Quic(attack) => attack.name,
        }
    }

    /// Returns the description.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            AnyAttack::Tcp(attack) => attack.about,
            AnyAttack::Quic(attack) => attack.about,
        }
    }

    /// Returns the version of HTTP of the attack and of the ordinary client beside it.
    #[must_use]
    pub fn version(self) -> Version {
        match self {
            AnyAttack::Tcp(attack) if attack.is_http2 => Version::Http2,
            AnyAttack::Tcp(_) => Version::Http11,
            AnyAttack::Quic(_) => Version::Http3,
        }
    }

    /// Finds an attack by its name.
    ///
    /// # Errors
    /// The message lists the known names.
    pub fn find(name: &str) -> Result<AnyAttack, Failure> {
        AnyAttack::all().find(|attack| attack.name() == name).ok_or_else(|| {
            let names: Vec<&str> = AnyAttack::all().map(AnyAttack::name).collect();
            Failure::new(format!("{name:?} is not an attack; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_of_all_versions_are_found_by_name() {
        for attack in AnyAttack::all() {
            assert_eq!(AnyAttack::find(attack.name()).unwrap().about(), attack.about());
        }
        assert_eq!(AnyAttack::find("slow-loris").unwrap().version(), Version::Http11);
        assert_eq!(AnyAttack::find("rapid-reset").unwrap().version(), Version::Http2);
        assert_eq!(AnyAttack::find("h3-rapid-reset").unwrap().version(), Version::Http3);
        let Err(error) = AnyAttack::find("none") else { panic!("there is no such attack") };
        assert!(error.to_string().contains("rapid-reset, ") && error.to_string().contains("quic-ping-flood"));
    }
}
