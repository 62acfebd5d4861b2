"""What an ASGI application may do with a WebSocket."""

import asyncio


async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    path = scope["path"]
    assert (await receive())["type"] == "websocket.connect"
    if path == "/refuse":
        return await send({"type": "websocket.close"})
    if path == "/teapot":
        headers = [(b"content-type", b"text/plain"), (b"x-pot", b"tea")]
        await send({"type": "websocket.http.response.start", "status": 418, "headers": headers})
        return await send({"type": "websocket.http.response.body", "body": b"short and stout"})
    if path == "/silent":
        return
    protocol = "chat" if "chat" in scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": protocol, "headers": [(b"x-app", b"yes"), (b"sec-websocket-extensions", b"x-of-its-own")]})
    if path == "/fail":
        raise ValueError("on purpose")
    if path == "/close":
        await send({"type": "websocket.close", "code": 4001, "reason": "enough"})
    if path == "/long-reason":
        await send({"type": "websocket.close", "code": 4002, "reason": "ü" * 100})
    if path == "/return":
        return
    if path == "/scope":
        await send({"type": "websocket.send", "text": f"{scope['scheme']} {scope['subprotocols']}"})
    if path == "/version":
        names = sorted(name.decode() for name, _ in scope["headers"])
        await send({"type": "websocket.send", "text": f"{scope['http_version']} {scope['subprotocols']} {' '.join(names)}"})
    if path == "/many":
        for at in range(200):
            await send({"type": "websocket.send", "bytes": bytes([at]) * 100_000})
        print("/many sent", flush=True)
    while path == "/ticker":
        try:
            await send({"type": "websocket.send", "text": "tick"})
        except OSError as error:
            print(f"the ticker ends: {type(error).__name__}", flush=True)
            return
        await asyncio.sleep(0.05)
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            print(f"{path} received {event['code']} {event['reason']!r}", flush=True)
            return
        if path == "/asleep":
            await asyncio.sleep(1.5)
        await send({key: event[key] for key in event if key != "type"} | {"type": "websocket.send"})
