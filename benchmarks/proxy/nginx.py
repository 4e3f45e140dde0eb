"""Debian's nginx as the yardstick: one worker, no buffering, kept upstream connections."""

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 100000000;
    tcp_nodelay on;
    upstream engine {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
        }}
    }}
}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, upstream: int, connections: int = 4096) -> tuple[subprocess.Popen[str], int]:
    """The master process and the port, once it accepts connections."""
    folder.mkdir()
    port = free_port()
    path = folder / "nginx.conf"
    path.write_text(CONFIGURATION.format(folder=folder, upstream=upstream, port=port, connections=connections))
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(path)], text=True
    )
    wait_for(port)
    return process, port


def wait_for(port: int) -> None:
    """Returns when the port accepts connections."""
    for _ in range(3000):
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise SystemExit(f"nothing listens on port {port}")


def worker(master: int) -> int:
    """The worker's process id, once there is one: the master listens before it forks."""
    for _ in range(3000):
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        if len(children) == 1:
            return int(children[0])
        time.sleep(0.01)
    raise SystemExit(f"nginx has {len(children)} children, not 1")
