//! Writer of small databases in MaxMind's format (specification 2.0), for tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it

use ipnet::IpNet;

/// Data of a network.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// `country.iso_code`, as in MaxMind's databases.
    Country(&'static str),
    /// Only `registered_country.iso_code`.
    Registered(&'static str),
    /// `country` as a string, as in IPinfo's databases.
    Plain(&'static str),
    /// Number of an autonomous system.
    System(u32),
}

/// Bits of an address.
const BITS: usize = 128;
/// Bytes of a record of a node.
const RECORD_BYTES: usize = 3;

#[derive(Clone, Copy)]
enum Branch {
    Empty,
    Node(usize),
    Data(usize),
}

/// Builds a database of these networks; if networks overlap, the more specific must come later.
pub fn database(networks: &[(&str, Record)]) -> Vec<u8> {
    let mut nodes = vec![[Branch::Empty; 2]];
    let mut data = Vec::new();
    for (network, record) in networks {
        let at = data.len();
        write_record(&mut data, *record);
        insert(&mut nodes, network.parse().unwrap(), at);
    }
    let mut file = Vec::new();
    for branch in nodes.iter().flatten() {
        let value = match branch {
            Branch::Empty => nodes.len(),
            Branch::Node(node) => *node,
            // Sixteen zero bytes separate the tree from the data.
            Branch::Data(at) => nodes.len() + 16 + at,
        };
        file.extend_from_slice(&u32::try_from(value).unwrap().to_be_bytes()[1..]);
    }
    file.extend_from_slice(&[0; 16]);
    file.extend_from_slice(&data);
    file.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    write_metadata(&mut file, nodes.len());
    file
}

fn insert(nodes: &mut Vec<[Branch; 2]>, network: IpNet, data: usize) {
    // IPv4 networks are below ::/96.
    let (address, length) = match network {
        IpNet::V4(network) => (u128::from(network.addr().to_bits()), 96 + usize::from(network.prefix_len())),
        IpNet::V6(network) => (network.addr().to_bits(), usize::from(network.prefix_len())),
    };
    let mut node = 0;
    for depth in 0..length {
        let bit = usize::from(address >> (BITS - 1 - depth) & 1 == 1);
        if depth + 1 == length {
            nodes[node][bit] = Branch::Data(data);
            return;
        }
        node = match nodes[node][bit] {
            Branch::Node(next) => next,
            // The data of a larger network applies to both of its halves.
            other => {
                nodes.push([other; 2]);
                let next = nodes.len() - 1;
                nodes[node][bit] = Branch::Node(next);
                next
            }
        };
    }
}

fn write_record(out: &mut Vec<u8>, record: Record) {
    match record {
        Record::Country(code) => write_nested(out, "country", code),
        Record::Registered(code) => write_nested(out, "registered_country", code),
        Record::Plain(code) => {
            out.push(7 << 5 | 1);
            write_text(out, "country");
            write_text(out, code);
        }
        Record::System(number) => {
            out.push(7 << 5 | 1);
            write_text(out, "autonomous_system_number");
            write_uint32(out, number);
        }
    }
}

fn write_nested(out: &mut Vec<u8>, name: &str, code: &str) {
    out.push(7 << 5 | 1);
    write_text(out, name);
    out.push(7 << 5 | 1);
    write_text(out, "iso_code");
    write_text(out, code);
}

fn write_metadata(out: &mut Vec<u8>, nodes: usize) {
    out.push(7 << 5 | 9);
    for (name, value) in [("binary_format_major_version", 2), ("binary_format_minor_version", 0)] {
        write_text(out, name);
        write_uint16(out, value);
    }
    write_text(out, "build_epoch");
    // uint64 is an extended type.
    out.extend_from_slice(&[8, 9 - 7]);
    out.extend_from_slice(&1_700_000_000_u64.to_be_bytes());
    write_text(out, "database_type");
    write_text(out, "Test");
    write_text(out, "description");
    out.push(7 << 5);
    for (name, value) in [("ip_version", 6), ("record_size", RECORD_BYTES as u16 * 8)] {
        write_text(out, name);
        write_uint16(out, value);
    }
    write_text(out, "languages");
    out.extend_from_slice(&[0, 11 - 7]);
    write_text(out, "node_count");
    write_uint32(out, u32::try_from(nodes).unwrap());
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 29, "longer texts are written in another way");
    out.push(2 << 5 | text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn write_uint16(out: &mut Vec<u8>, value: u16) {
    out.push(5 << 5 | 2);
    out.extend_from_slice(&value.to_be_bytes());
}

fn write_uint32(out: &mut Vec<u8>, value: u32) {
    out.push(6 << 5 | 4);
    out.extend_from_slice(&value.to_be_bytes());
}
