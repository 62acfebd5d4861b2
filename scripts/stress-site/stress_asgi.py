"""As stress.psgi, by ASGI; and WebSockets that return each message with the id of their request."""
import asyncio
import contextvars
from urllib.parse import parse_qsl

current = contextvars.ContextVar('id', default=None)


async def app(scope, receive, send):
    if scope['type'] == 'lifespan':
        await receive()
        await send({'type': 'lifespan.startup.complete'})
        await receive()
        return await send({'type': 'lifespan.shutdown.complete'})
    query = dict(parse_qsl(scope['query_string'].decode()))
    if current.get() is not None:
        raise RuntimeError('the context of another request')
    current.set(query['id'])
    line = query['id'].encode() + b'\n'
    if scope['type'] == 'websocket':
        return await echo(receive, send, query['id'])
    size, chunks = int(query.get('size', 0)), int(query.get('chunks', 1))
    status, content = 200, (line * (size // len(line) + 1))[:size]
    if scope['method'] == 'POST':
        received, more = b'', True
        while more:
            event = await receive()
            if event['type'] == 'http.disconnect':
                return
            received += event.get('body', b'')
            more = event.get('more_body', False)
        status = 200 if received == line * (len(received) // len(line)) else 409
        content, chunks = str(len(received)).encode(), 1
    fields = [(b'content-type', b'text/plain'), (b'x-id', query['id'].encode())]
    await send({'type': 'http.response.start', 'status': status, 'headers': fields})
    step = len(content) // chunks + 1
    for at in range(0, len(content), step):
        await send({'type': 'http.response.body', 'body': content[at:at + step], 'more_body': True})
        if chunks > 1:
            await asyncio.sleep(0.001)
    await send({'type': 'http.response.body', 'body': b''})


async def echo(receive, send, name):
    await receive()
    await send({'type': 'websocket.accept'})
    while True:
        event = await receive()
        if event['type'] == 'websocket.disconnect':
            return
        await send({'type': 'websocket.send', 'text': f'{name} {event["text"]}'})
