"""Ports of the loopback interface."""

from __future__ import annotations

import errno
import socket

from ddbench.errors import ConfigError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def claim_port(port: int | None, key: str = "engine.port") -> int:
    """``port`` if a server can listen on it, or a free one for None.

    Raises:
        ConfigError: named ``key``, when the port is taken, not allowed to this user, or no port at all.
    """
    if port is None:
        return free_port()
    if not 1 <= port <= 65535:
        raise ConfigError(key, port, "a port from 1 to 65535, or null for any free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection may linger
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            why = "it is taken" if error.errno == errno.EADDRINUSE else str(error.strerror).lower()
            raise ConfigError(key, port, f"a free port, or null for any free one; {why}") from None
    return port
