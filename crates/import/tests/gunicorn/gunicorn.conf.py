"""Gunicorn of a shop."""
import multiprocessing
import os

bind = ["0.0.0.0:8000", "unix:/run/shop.sock"]
workers = multiprocessing.cpu_count() * 2 + 1
worker_class = "gthread"
threads = int(os.environ.get("THREADS", "4"))  # of each worker
timeout = 120
graceful_timeout = 30
keepalive = 5
max_requests = 1_000
max_requests_jitter = 50
preload_app = True
wsgi_app = "shop.wsgi:application"
chdir = "/srv/shop"
raw_env = [
    "DJANGO_SETTINGS_MODULE=shop.settings",
    "LANG=C.UTF-8",
]
accesslog = "-"
errorlog = "/var/log/shop/error.log"
loglevel = "warning"
access_log_format = '%(h)s "%(r)s"'
forwarded_allow_ips = "10.0.0.1, 10.0.0.2"
statsd_host = None
pidfile = "/run/shop.pid"
certfile = "/etc/shop.pem"
limit_request_line = 4094
forwarder = object()


def post_fork(server, worker):
    server.log.info("forked %s", worker.pid)
