//! TLS to clients.

use super::super::directive::{Arguments as Args, Contexts as In, Part};
use super::super::process;
use super::super::translation::DirectiveRow;
use super::row::{each, noted, together, untranslated};

const HANDSHAKE: In = In::CONNECTION.or(In::STREAMS);

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
    noted("ssl_session_tickets", HANDSHAKE, Args::ONE, Part::Everywhere),
    each("ssl_session_ticket_key", HANDSHAKE, Args::ONE, Part::Everywhere, process::ssl_session_ticket_key),
    untranslated("ssl_prefer_server_ciphers", HANDSHAKE, Args::ONE),
    untranslated("ssl_ciphers", HANDSHAKE, Args::ONE),
    untranslated("ssl_ecdh_curve", HANDSHAKE, Args::ONE),
    untranslated("ssl_dhparam", HANDSHAKE, Args::ONE),
    untranslated("ssl_conf_command", HANDSHAKE, Args::TWO),
    untranslated("ssl_buffer_size", In::CONNECTION, Args::ONE),
    untranslated("ssl_early_data", In::CONNECTION, Args::ONE),
    untranslated("ssl_session_cache", HANDSHAKE, Args::ONE_OR_TWO),
    untranslated("ssl_session_timeout", HANDSHAKE, Args::ONE),
    untranslated("ssl_stapling", HANDSHAKE, Args::ONE),
    untranslated("ssl_stapling_verify", HANDSHAKE, Args::ONE),
    untranslated("ssl_stapling_file", HANDSHAKE, Args::ONE),
    untranslated("ssl_trusted_certificate", HANDSHAKE, Args::ONE),
    untranslated("ssl_password_file", HANDSHAKE, Args::ONE).harmless(),
    untranslated("ssl_ocsp", HANDSHAKE, Args::ONE),
    untranslated("ssl_ocsp_responder", HANDSHAKE, Args::ONE),
    untranslated("ssl_engine", In::MAIN, Args::ONE).harmless(),
];
