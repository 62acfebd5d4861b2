//! `/v1/connections`: the open client connections.

use std::collections::{BTreeMap, HashMap};

use net::{ConnectionProtocol, OpenConnection, OpenConnections};
use serde_json::{Value, json};

use crate::api::operation::{Api, ApiCall, ApiResult};
use crate::api::request::ApiResponse;

/// Maximum number of clients, and of individual connections, in an answer.
const LISTED_MAX: usize = 100;

/// Counts connections by listener, protocol and client, and lists the oldest ones.
pub(crate) fn list(api: &Api, _: &ApiCall<'_>) -> ApiResult {
    Ok(ApiResponse::ok(connections_document(api.info.listeners.connections())))
}

fn protocol_name(connection: &OpenConnection) -> &'static str {
    match connection.protocol {
        ConnectionProtocol::Http1 => "HTTP/1",
        ConnectionProtocol::Http2 => "HTTP/2",
        ConnectionProtocol::Http3 => "HTTP/3",
    }
}

fn listener_url(connection: &OpenConnection) -> String {
    connection.listener.as_ref().map_or_else(|| "closed".to_owned(), ToString::to_string)
}

fn connections_document(open: OpenConnections) -> Value {
    let OpenConnections { count, mut listed, unresponsive_cores: silent_cores } = open;
    let mut listeners: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    let mut clients: HashMap<String, usize> = HashMap::new();
    for one in &listed {
        *listeners.entry((listener_url(one), protocol_name(one))).or_default() += 1;
        *clients.entry(one.client.to_string()).or_default() += 1;
    }
    let mut clients: Vec<(String, usize)> = clients.into_iter().collect();
    clients.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let others: usize = clients.iter().skip(LISTED_MAX).map(|(_, count)| count).sum();
    clients.truncate(LISTED_MAX);
    listed.sort_by_key(|one| std::cmp::Reverse(one.age));
    let in_list = listed.len();
    listed.truncate(LISTED_MAX);
    let by_listener = |((listener, protocol), count)| json!({ "listener": listener, "protocol": protocol, "connections": count });
    let by_client = |(client, count)| json!({ "client": client, "connections": count });
    let one = |one: &OpenConnection| {
        json!({
            "client": one.client.to_string(),
            "listener": listener_url(one),
            "protocol": protocol_name(one),
            "age_s": one.age.as_secs_f64(),
        })
    };
    json!({
        "connections": count,
        "counted_in_full": in_list == count && silent_cores == 0,
        "listeners": listeners.into_iter().map(by_listener).collect::<Vec<_>>(),
        "clients": clients.into_iter().map(by_client).collect::<Vec<_>>(),
        "of_other_clients": others,
        "oldest": listed.iter().map(one).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use net::Peer;

    use super::*;

    #[test]
    fn connection_list_is_limited_and_marked_as_incomplete() {
        let one = |at: u16| OpenConnection {
            listener: None,
            client: Peer::Tcp((std::net::Ipv4Addr::from(u32::from(at / 2)), at).into()),
            age: times::Millis(u64::from(at)),
            requests: 1,
            protocol: if at % 2 == 1 { ConnectionProtocol::Http2 } else { ConnectionProtocol::Http1 },
        };
        let listed: Vec<_> = (0..1_000).map(one).collect();
        let document = connections_document(OpenConnections { count: 1_200, listed, unresponsive_cores: 0 });
        let len = |key: &str| document[key].as_array().unwrap().len();
        assert_eq!((len("clients"), len("oldest"), len("listeners")), (100, 100, 2));
        assert_eq!((&document["of_other_clients"], &document["connections"]), (&json!(800), &json!(1_200)));
        assert_eq!(document["counted_in_full"], false);
        assert_eq!(
            document["oldest"][0],
            json!({ "client": "0.0.1.243", "listener": "closed", "protocol": "HTTP/2", "age_s": 0.999 })
        );
        assert_eq!(
            document["listeners"][1],
            json!({ "listener": "closed", "protocol": "HTTP/2", "connections": 500 })
        );
    }
}
