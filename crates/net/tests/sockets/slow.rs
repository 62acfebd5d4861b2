//! Clients that read slowly but steadily.

use net::{BindAddress, Options, Timeouts};
use times::Millis;

use crate::rig::{BIG_BYTES, FILE_BYTES, finish, options, start, tcp};
use crate::slow_client::read_slowly_then_all;

const WRITE_TIMEOUT: Millis = Millis(3_000);

fn body_bytes(path: &str) -> usize {
    let timeouts = Timeouts { write: WRITE_TIMEOUT, ..Timeouts::default() };
    let server = start(&Options { timeouts, ..options(1) }, &[tcp()]);
    let BindAddress::Tcp(address) = server.addresses()[0] else { panic!("a port") };
    let body_bytes = read_slowly_then_all(address, path, WRITE_TIMEOUT);
    assert!(finish(server));
    body_bytes
}

#[test]
fn slow_reader_receives_whole_response() {
    assert_eq!(body_bytes("/big"), BIG_BYTES);
}

#[test]
fn slow_reader_receives_whole_file() {
    assert_eq!(body_bytes("/file?4"), 4 * FILE_BYTES);
}
