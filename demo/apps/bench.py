#!/usr/bin/env python3
"""The bench of the demo page: bench.py KOMAINU FOLDER SERVER

Answers `POST /bench/MODE` on a Unix socket in FOLDER with the figures of `komainu bench` against that mode's route of the demo, on this
machine. Bounded: 8 connections, 2 seconds, one measurement at a time, and only for pages of the demo itself. Ends with the
server, which SERVER is the process id of, and removes the folder above FOLDER.
"""
import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
import time

KOMAINU, FOLDER, SERVER = sys.argv[1], sys.argv[2], int(sys.argv[3])
CONNECTIONS, DURATION_S, PATIENCE_S = 8, 2, 30
URL = f'http://127.0.0.1:{os.environ.get("DEMO_PORT", "8080")}/via/{{}}/hello'
FIGURES = ['cpu_us_per_request', 'requests_per_s', 'p50_us', 'p99_us', 'errors']
with open(f'{FOLDER}/public/modes.json') as file:
    MODES = json.load(file)
measuring = threading.Lock()


def measure(mode):
    result = f'{FOLDER}/result.json'
    command = [KOMAINU, 'bench', '-c', str(CONNECTIONS), '-d', f'{DURATION_S}s', '-q', '--json', result, URL.format(mode)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    if done.returncode != 0:
        return 502, {'error': done.stderr.decode(errors='replace').strip()[-300:] or 'the bench failed'}
    with open(result) as file:
        figures = json.load(file)['figures']
    return 200, {name: figures.get(name) for name in FIGURES}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    timeout = 10

    def do_POST(self):
        mode = self.path.removeprefix('/bench/')
        # A page of another origin can send no such field without being asked first, and nobody answers that.
        if self.headers.get('X-Demo') != 'bench':
            self.answer(403, {'error': 'only the page of the demo may measure'})
        elif mode not in MODES:
            self.answer(404, {'error': 'there is no such mode'})
        elif not measuring.acquire(blocking=False):
            self.answer(409, {'error': 'a measurement is running: wait until it has ended'})
        else:
            try:
                self.answer(*measure(mode))
            except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                self.answer(502, {'error': f'the bench failed: {error}'})
            finally:
                measuring.release()

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def address_string(self):
        return 'unix'


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def is_running():
    try:
        os.kill(SERVER, 0)
    except ProcessLookupError:
        return False
    return True


def main():
    server = Server(f'{FOLDER}/bench.sock', Handler)
    # The server connects as a user of its own.
    os.chmod(f'{FOLDER}/bench.sock', 0o666)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while is_running():
        time.sleep(1)
    shutil.rmtree(os.path.dirname(FOLDER), ignore_errors=True)


if __name__ == '__main__':
    main()
