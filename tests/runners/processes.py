"""Small servers in real processes, for tests of the life cycle."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from runners.server import ServerCommand

SERVER = """
import http.server, os, signal, subprocess, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass

{before}
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
{after}
server.serve_forever()
"""


def write_server(folder: Path, before: str = "", after: str = "") -> Path:
    """An HTTP server with code of the test's own before and after it listens; its first argument is the port."""
    script = folder / "server_script.py"
    script.write_text(SERVER.format(before=before, after=after), encoding="utf-8")
    return script


def command(script: Path, **settings: object) -> ServerCommand:
    argv = [sys.executable, str(script), "{port}"]
    return ServerCommand(argv, **{"start_timeout_s": 20.0, "grace_s": 1.0, **settings})  # type: ignore[arg-type]


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
