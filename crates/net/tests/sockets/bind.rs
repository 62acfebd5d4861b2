//! Addresses: bound, refused and released.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net::{BindAddress, Listener, Server};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::rig::{App, Client, app, finish, options, socket_path, start, tcp, wait_until};

#[test]
fn tcp_ipv6_and_unix_addresses_are_served() {
    let path = socket_path();
    let binds = [tcp(), BindAddress::Tcp("[::1]:0".parse().unwrap()), BindAddress::Unix(path.clone())];
    let server = start(&options(2), &binds);
    for address in &server.addresses() {
        let mut client = Client::connect(address).unwrap();
        for _ in 0..3 {
            assert_eq!(client.ask("/").unwrap().body, b"hello");
        }
    }
    assert!(matches!(server.addresses()[0], BindAddress::Tcp(address) if address.port() != 0));
    assert!(finish(server));
    assert!(!path.exists(), "the socket's file is removed");
}

#[test]
fn bind_error_names_the_port_in_use() {
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
fn connections_accepted_by_the_kernel_during_a_start_are_kept() {
    // The port is free, and nobody else gets it: a socket that is bound but does not listen keeps it.
    let placeholder = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&placeholder, true).unwrap();
    rustix::net::bind(&placeholder, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&placeholder).unwrap()).unwrap();
    for round in 0..200 {
        let connect = move || {
            loop {
                if let Ok(socket) = TcpStream::connect(address) {
                    return socket;
                }
            }
        };
        let clients: Vec<_> = (0..4).map(|_| std::thread::spawn(connect)).collect();
        std::thread::sleep(Duration::from_micros(200));
        let listener = Listener::bind(BindAddress::Tcp(address).into(), 2).unwrap();
        for client in clients {
            let mut client = client.join().unwrap();
            client.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
            let read = client.read(&mut [0; 1]).unwrap_err().kind();
            assert!(matches!(read, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{round}: {read:?}");
        }
        drop(listener);
    }
}

#[test]
fn stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let path = socket_path();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let bind = BindAddress::Unix(path.clone());
    let server = start(&options(2), std::slice::from_ref(&bind));
    let error = Server::start(&options(1), std::slice::from_ref(&bind), |_| -> std::io::Result<App> {
        panic!("not to be called")
    });
    assert_eq!(error.err().expect("somebody answers there").kind(), ErrorKind::AddrInUse);
    assert_eq!(Client::connect(&bind).unwrap().ask("/").unwrap().body, b"hello");
    assert!(finish(server));
}

#[test]
fn regular_file_at_a_socket_path_is_not_removed() {
    let path = socket_path();
    std::fs::write(&path, "precious").unwrap();
    let started =
        Server::start(&options(1), &[BindAddress::Unix(path.clone())], |_| -> std::io::Result<App> {
            panic!("not to be called")
        });
    assert_eq!(started.err().expect("the path is taken").kind(), ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn stopping_server_keeps_the_socket_of_its_successor() {
    let path = socket_path();
    let bind = BindAddress::Unix(path.clone());
    let old = start(&options(1), std::slice::from_ref(&bind));
    std::fs::remove_file(&path).unwrap();
    let new = start(&options(1), std::slice::from_ref(&bind));
    assert!(finish(old));
    assert_eq!(Client::connect(&bind).unwrap().ask("/").unwrap().body, b"hello");
    assert!(finish(new));
    assert!(!path.exists());
}

#[test]
fn failed_start_releases_all_addresses() {
    let first = AtomicBool::new(true);
    let path = socket_path();
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = BindAddress::Tcp(reserved.local_addr().unwrap());
    drop(reserved);
    let binds = [address, BindAddress::Unix(path.clone())];
    let started = Server::start(&options(2), &binds, move |_| {
        if first.swap(false, Ordering::Relaxed) {
            app()
        } else {
            Err(std::io::Error::other("the second engine has none"))
        }
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

/// Replaces the server's listeners.
fn replace(server: &net::Server, binds: &[&BindAddress], threads: usize) -> std::io::Result<()> {
    let listens = binds.iter().map(|bind| net::ListenOptions::from((*bind).clone())).collect();
    let bind = |_, listen, open: &[BindAddress]| net::Listener::bind_alongside(listen, threads, open);
    server.listeners().prepare(listens, false, bind).map(|new| server.listeners().replace(new))
}

#[test]
fn listeners_are_replaced_while_others_stay() {
    let path = socket_path();
    let server = start(&options(3), &[tcp(), BindAddress::Unix(path.clone())]);
    let [first, unix] = &server.addresses()[..] else { panic!("two listeners") };
    let mut before = Client::connect(unix).unwrap();
    before.ask("/").unwrap();
    // The first listener is also recognized by the requested address.
    replace(&server, &[&tcp(), &BindAddress::Tcp("[::1]:0".parse().unwrap())], 3).unwrap();
    let [same, second] = &server.addresses()[..] else { panic!("two listeners") };
    assert_eq!(same, first);
    for address in [first, second] {
        for _ in 0..6 {
            Client::connect(address).unwrap().ask("/").unwrap();
        }
    }
    wait_until("the socket that was taken away is closed", || Client::connect(unix).is_err());
    assert!(!path.exists());
    // Connections that it accepted stay open.
    assert!(!before.ask("/").unwrap().closes());
    // An address in use changes nothing.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = BindAddress::Tcp(taken.local_addr().unwrap());
    let blocker = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let blocked = BindAddress::Tcp(blocker.local_addr().unwrap());
    assert!(replace(&server, &[&taken, &blocked], 3).is_err());
    assert_eq!(server.addresses(), [first.clone(), second.clone()]);
    Client::connect(first).unwrap().ask("/").unwrap();
    drop(before);
    assert!(finish(server));
}

#[test]
fn wildcard_listener_replaces_a_single_address_on_its_port() {
    let server = start(&options(2), &[tcp()]);
    let BindAddress::Tcp(one) = server.addresses()[0] else { panic!("a TCP address") };
    replace(&server, &[&BindAddress::Any(one.port())], 2).unwrap();
    let mut clients = Vec::new();
    for address in [one, std::net::SocketAddr::from(([127, 0, 0, 2], one.port()))] {
        let mut client = Client::connect(&BindAddress::Tcp(address)).unwrap();
        client.ask("/").unwrap();
        clients.push(client);
    }
    drop(clients);
    assert!(finish(server));
}

#[test]
fn adopted_sockets_serve_any_number_of_threads() {
    for (sockets, threads) in [(1, 3), (3, 1), (2, 3)] {
        let bound = net::Listener::bind(tcp().into(), sockets).unwrap();
        let address = bound.address().clone();
        let copies = bound.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        drop(bound);
        let adopted = net::Listener::adopt(tcp().into(), copies, true).unwrap();
        let server = net::Server::serve(&options(threads), vec![adopted], |_| app()).unwrap();
        // Whichever socket the kernel chooses, a thread accepts from it.
        for _ in 0..20 {
            Client::connect(&address).unwrap().ask("/").unwrap();
        }
        assert!(finish(server), "{sockets} sockets, {threads} threads");
    }
}
