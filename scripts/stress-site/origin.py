#!/usr/bin/env python3
"""The upstream server of scripts/stress: origin.py PORT.

As stress.psgi. Below /cache/ the path is the id, and the response may be stored. A 304 there sets a cookie for the client that asked, which no
other client may receive.
"""
import asyncio
import random
import sys
from urllib.parse import parse_qsl, urlsplit


async def content_of(reader, fields):
    if fields.get('transfer-encoding') == 'chunked':
        content = b''
        while size := int(await reader.readline(), 16):
            content += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return content
    return await reader.readexactly(int(fields.get('content-length', 0)))


async def answer(reader, writer):
    while line := await reader.readline():
        method, target, _ = line.decode().split()
        fields = {}
        while (field := await reader.readline()) not in (b'\r\n', b''):
            name, value = field.decode().rstrip().split(': ', 1)
            fields[name.lower()] = value
        received = await content_of(reader, fields)
        url = urlsplit(target)
        query = dict(parse_qsl(url.query))
        extra, name = '', query.get('id', '')
        if url.path.startswith('/cache/'):
            name, lifetime = url.path.rsplit('/', 1)[1], random.choice([0, 1, 5])
            extra = f'Cache-Control: max-age={lifetime}, stale-while-revalidate=1\r\nETag: "{name}"\r\n'
            if fields.get('if-none-match') == f'"{name}"':
                writer.write(f'HTTP/1.1 304 Not Modified\r\n{extra}X-Id: {name}\r\nSet-Cookie: {fields.get("cookie")}\r\n\r\n'.encode())
                continue
        line, size, chunks = name.encode() + b'\n', int(query.get('size', 0)), int(query.get('chunks', 1))
        status, content = 200, (line * (size // len(line) + 1))[:size]
        if method == 'POST':
            status = 200 if received == line * (len(received) // len(line)) else 409
            content = str(len(received)).encode()
        head = f'HTTP/1.1 {status} Some\r\n{extra}X-Id: {name}\r\nContent-Type: text/plain\r\n'
        if method == 'HEAD':
            writer.write(f'{head}Content-Length: {len(content)}\r\n\r\n'.encode())
        elif chunks == 1:
            writer.write(f'{head}Content-Length: {len(content)}\r\n\r\n'.encode() + content)
        else:
            writer.write(f'{head}Transfer-Encoding: chunked\r\n\r\n'.encode())
            step = len(content) // chunks + 1
            for at in range(0, len(content), step):
                piece = content[at:at + step]
                writer.write(b'%x\r\n%s\r\n' % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0.001)
            writer.write(b'0\r\n\r\n')
        await writer.drain()


async def serve(reader, writer):
    try:
        await answer(reader, writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    writer.close()


async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', int(sys.argv[1]), backlog=1024)
    await server.serve_forever()

asyncio.run(main())
