"""The reference engine's process on a host behind ssh: ``python -m runners.worker_door PORT``, told a key in
``DDBENCH_WORKER_KEY``.

It listens on the host's loopback for the one client that has the key, which sends a :class:`runners.base.ServerSpec`
and then what :mod:`runners.worker` takes. Its own messages are JSON: a client trusts no pickle of a host.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection, Listener
from typing import Any

from runners.base import CellOutcome
from runners.worker import serve

KEY = "DDBENCH_WORKER_KEY"
LOOPBACK = "127.0.0.1"


class JsonConnection:
    """The worker's end of the line."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: tuple[Any, ...]) -> None:
        self._connection.send_bytes(encoded(message))

    def recv(self) -> Any:
        """What the client says, who started this process and may run anything here."""
        return self._connection.recv()


def encoded(message: tuple[Any, ...]) -> bytes:
    """A message of :mod:`runners.worker` as JSON."""
    parts = [asdict(part) if isinstance(part, CellOutcome) else part for part in message]
    return json.dumps(parts, default=str).encode()


def decoded(data: bytes) -> tuple[Any, ...]:
    """The message that :func:`encoded` was given."""
    kind, *parts = json.loads(data)
    return (kind, CellOutcome(**parts[0])) if kind == "done" else (kind, *parts)


def main(port: int) -> None:
    key = os.environ.pop(KEY).encode()
    with Listener((LOOPBACK, port), authkey=key) as listener:
        sys.stderr.write(f"the reference engine waits on port {port}\n")
        connection = listener.accept()
    serve(JsonConnection(connection), connection.recv(), None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
