//! Addresses: got, refused, given back.

use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use net::{Bind, Server};

use crate::rig::{App, Client, app, finish, options, socket_path, start, tcp, wait_until};

#[test]
fn every_kind_of_address_is_served_by_all_threads() {
    let path = socket_path();
    let binds = [tcp(), Bind::Tcp("[::1]:0".parse().unwrap()), Bind::Unix(path.clone())];
    let server = start(&options(2), &binds);
    for address in server.addresses() {
        let mut client = Client::connect(address).unwrap();
        for _ in 0..3 {
            assert_eq!(client.ask("/").unwrap().body, b"hello");
        }
    }
    assert!(matches!(server.addresses()[0], Bind::Tcp(address) if address.port() != 0));
    assert!(finish(server));
    assert!(!path.exists(), "the socket's file is removed");
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let server = start(&options(2), &[tcp()]);
    let taken = server.addresses()[0].clone();
    let error = Server::start(&options(2), std::slice::from_ref(&taken), |_| {
        panic!("not to be called") as std::io::Result<App>
    })
    .err()
    .expect("the port is taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
    assert_eq!(Client::connect(&taken).unwrap().ask("/").unwrap().body, b"hello");
    assert!(finish(server));
}

#[test]
fn a_leftover_socket_is_replaced_and_a_live_one_is_not() {
    let path = socket_path();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let bind = Bind::Unix(path.clone());
    let server = start(&options(2), std::slice::from_ref(&bind));
    let error = Server::start(&options(1), std::slice::from_ref(&bind), |_| -> std::io::Result<App> {
        panic!("not to be called")
    });
    assert_eq!(error.err().expect("somebody answers there").kind(), ErrorKind::AddrInUse);
    assert_eq!(Client::connect(&bind).unwrap().ask("/").unwrap().body, b"hello");
    assert!(finish(server));
}

#[test]
fn what_is_no_socket_is_not_removed() {
    let path = socket_path();
    std::fs::write(&path, "precious").unwrap();
    let started = Server::start(&options(1), &[Bind::Unix(path.clone())], |_| -> std::io::Result<App> {
        panic!("not to be called")
    });
    assert_eq!(started.err().expect("the path is taken").kind(), ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_server_that_ends_leaves_its_successors_socket_alone() {
    let path = socket_path();
    let bind = Bind::Unix(path.clone());
    let old = start(&options(1), std::slice::from_ref(&bind));
    std::fs::remove_file(&path).unwrap();
    let new = start(&options(1), std::slice::from_ref(&bind));
    assert!(finish(old));
    assert_eq!(Client::connect(&bind).unwrap().ask("/").unwrap().body, b"hello");
    assert!(finish(new));
    assert!(!path.exists());
}

#[test]
fn a_server_that_cannot_start_whole_gives_its_addresses_back() {
    let first = AtomicBool::new(true);
    let path = socket_path();
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Bind::Tcp(reserved.local_addr().unwrap());
    drop(reserved);
    let binds = [address, Bind::Unix(path.clone())];
    let started = Server::start(&options(2), &binds, move |_| match first.swap(false, Ordering::Relaxed) {
        true => app(),
        false => Err(std::io::Error::other("the second engine has none")),
    });
    assert_eq!(started.err().expect("one engine failed").to_string(), "the second engine has none");
    assert!(!path.exists());
    let mut again = None;
    wait_until("the port is given back", || {
        again = Server::start(&options(1), &binds, |_| app()).ok();
        again.is_some()
    });
    assert!(finish(again.expect("just started")));
}
