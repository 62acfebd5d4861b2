"""What an ASGI application may do."""

import asyncio


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await lifespan(scope, receive, send)
    path = scope["path"]
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
    if path == "/echo":
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event["body"], event["more_body"]
        await send(start)
        return await send({"type": "http.response.body", "body": body})
    if path == "/gone":
        await receive()
        event = await receive()
        print("received", event["type"])
        return
    if path == "/sleep":
        await asyncio.sleep(0.5)
    if path == "/fail":
        raise ValueError("on purpose")
    if path == "/hints":
        await send({"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]})
    if path == "/stuck":
        await asyncio.sleep(3600)
    await send(start)
    if path == "/large":
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        return await send({"type": "http.response.body"})
    text = f"{path} {scope['query_string'].decode()} {scope['state']['began']}"
    await send({"type": "http.response.body", "body": text.encode()})


async def lifespan(scope, receive, send):
    await receive()
    scope["state"]["began"] = "began"
    await send({"type": "lifespan.startup.complete"})
    await receive()
    print("shut down")
    await send({"type": "lifespan.shutdown.complete"})


async def refuses(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database today"})
