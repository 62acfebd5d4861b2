//! TLS to clients.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::process;
use super::super::translation::DirectiveRow;
use super::super::translation::Remark::NotNeeded;
use super::row::{each, not_needed, not_possible, noted, together};

const HANDSHAKE: In = In::CONNECTION.or(In::STREAMS);
const CIPHERS: &str =
    "not needed: only strong ciphers and key exchanges are there, the server's order counts; 0-RTT is off";
const SESSIONS: &str = "not needed: sessions are resumed by tickets and by IDs by default";
const STAPLING: &str = "not needed: OCSP responses are fetched where a certificate names a responder; names are resolved by the system";
const CANNOT_BE_SET: &str = "this cannot be set; keys must not have a passphrase";

pub(super) const DIRECTIVES: &[DirectiveRow] = &[
    together("ssl", HANDSHAKE, Args::ONE, Part::Places),
    together("ssl_certificate", HANDSHAKE, Args::ONE, Part::Tls).harmless().repeatable(),
    together("ssl_certificate_key", HANDSHAKE, Args::ONE, Part::Tls).harmless().repeatable(),
    together("ssl_verify_client", HANDSHAKE, Args::ONE, Part::Tls),
    together("ssl_client_certificate", HANDSHAKE, Args::ONE, Part::Tls),
    together("ssl_crl", HANDSHAKE, Args::ONE, Part::Tls),
    together("ssl_verify_depth", HANDSHAKE, Args::ONE, Part::Tls),
    together("ssl_reject_handshake", HANDSHAKE, Args::ONE, Part::Tls),
    each("ssl_protocols", HANDSHAKE, Args::SOME, Part::Everywhere, process::ssl_protocols),
    noted(
        "ssl_session_tickets",
        HANDSHAKE,
        Args::ONE,
        Part::Everywhere,
        NotNeeded(
            "not needed: the keys of tickets change every 12 hours; `tickets = false` in `[tls]` turns them off",
        ),
    ),
    each("ssl_session_ticket_key", HANDSHAKE, Args::ONE, Part::Everywhere, process::ssl_session_ticket_key),
    not_needed("ssl_prefer_server_ciphers", HANDSHAKE, Args::ONE, CIPHERS),
    not_needed("ssl_ciphers", HANDSHAKE, Args::ONE, CIPHERS),
    not_needed("ssl_ecdh_curve", HANDSHAKE, Args::ONE, CIPHERS),
    not_needed("ssl_dhparam", HANDSHAKE, Args::ONE, CIPHERS),
    not_needed("ssl_conf_command", HANDSHAKE, Args::TWO, CIPHERS),
    not_needed("ssl_buffer_size", In::CONNECTION, Args::ONE, CIPHERS),
    not_needed("ssl_early_data", In::CONNECTION, Args::ONE, CIPHERS),
    not_needed("ssl_session_cache", HANDSHAKE, Args::ONE_OR_TWO, SESSIONS),
    not_needed("ssl_session_timeout", HANDSHAKE, Args::ONE, SESSIONS),
    not_needed("ssl_stapling", HANDSHAKE, Args::ONE, STAPLING),
    not_needed("ssl_stapling_verify", HANDSHAKE, Args::ONE, STAPLING),
    not_needed("ssl_stapling_file", HANDSHAKE, Args::ONE, STAPLING),
    not_needed("ssl_trusted_certificate", HANDSHAKE, Args::ONE, STAPLING),
    not_possible("ssl_password_file", HANDSHAKE, Args::ONE, CANNOT_BE_SET).harmless(),
    not_possible("ssl_ocsp", HANDSHAKE, Args::ONE, CANNOT_BE_SET),
    not_possible("ssl_ocsp_responder", HANDSHAKE, Args::ONE, CANNOT_BE_SET),
    not_possible("ssl_engine", In::MAIN, Args::ONE, CANNOT_BE_SET).harmless(),
];
