//! Event loops that end their workers, and lifespans that end early.

use crate::hosted::{Client, folder, logged, only, ready, start};
use crate::rig::eventually;

const ASGI: &str = "\
import asyncio, sys
async def app(scope, receive, send):
    if scope['type'] == 'lifespan':
        await receive()
        await send({'type': 'lifespan.startup.complete'})
        await asyncio.sleep(.1)
        MANNER
    elif scope['path'] == '/exit':
        sys.exit('the words of the end')
    elif scope['path'] == '/begun':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        sys.exit('the words after a head')
    else:
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'ok'})
";

#[test]
fn an_event_loop_that_exits_in_a_request_makes_it_502() {
    for path in ["/exit", "/begun"] {
        let app = only("asgi = \"a.py:app\"\nworkers = 1");
        let rig =
            start(folder("a.py", &ASGI.replace("MANNER", "await receive()")), &format!("threads = 1\n{app}"));
        ready(&rig, 1);
        assert_eq!(Client::new(rig.address).get(path).0, 502, "{path}");
        logged(&rig, "the words ");
        eventually("another worker answers", || Client::new(rig.address).get("/") == (200, "ok".into()));
    }
}

#[test]
fn a_lifespan_that_ends_while_its_worker_serves_is_logged() {
    for (manner, expected) in [
        ("raise ValueError('on purpose')", "lifespan: the application failed while serving"),
        ("return", "lifespan: the application returned while serving"),
    ] {
        let app = only("asgi = \"a.py:app\"\nworkers = 1");
        let rig = start(folder("a.py", &ASGI.replace("MANNER", manner)), &format!("threads = 1\n{app}"));
        ready(&rig, 1);
        logged(&rig, expected);
        assert_eq!(Client::new(rig.address).get("/"), (200, "ok".into()));
    }
}
