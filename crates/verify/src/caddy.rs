//! Caddy and Komainu side by side.
