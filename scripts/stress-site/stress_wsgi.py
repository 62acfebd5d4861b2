"""As stress.psgi, by WSGI."""
import time
from urllib.parse import parse_qsl


def pieces(content, chunks):
    step = len(content) // chunks + 1
    for at in range(0, len(content), step):
        yield content[at:at + step]
        time.sleep(0.001)


def app(environ, start_response):
    query = dict(parse_qsl(environ['QUERY_STRING']))
    line = query['id'].encode() + b'\n'
    size, chunks = int(query.get('size', 0)), int(query.get('chunks', 1))
    fields = [('Content-Type', 'text/plain'), ('X-Id', query['id'])]
    if environ['REQUEST_METHOD'] == 'POST':
        content = environ['wsgi.input'].read()
        is_own = content == line * (len(content) // len(line))
        start_response('200 OK' if is_own else '409 Conflict', fields)
        return [str(len(content)).encode()]
    content = (line * (size // len(line) + 1))[:size]
    if chunks == 1:
        start_response('200 OK', [*fields, ('Content-Length', str(size))])
        return [content]
    start_response('200 OK', fields)
    return pieces(content, chunks)
