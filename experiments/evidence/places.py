"""Where an engine runs: its GPU among those that this program may see, and ports that no other engine is given."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from ddbench.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20_000, 30_000  # below those that Linux hands out on its own (32768 and up)
RUN = 16  # ports from a claimed one on that are its engine's


def visible_gpu(index: int, visible: str | None = None) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` must be for the ``index``-th GPU of those that ``visible`` lets this program see.

    ``visible`` None: what the environment says. A machine without the variable shows all of its GPUs; one with an empty
    variable shows none, and the engine is shown none either.

    Raises:
        ConfigError: there are fewer.
    """
    names = os.environ.get(VISIBLE) if visible is None else visible
    if names is None:
        return str(index)
    entries = [name.strip() for name in names.split(",") if name.strip()]
    if not entries:
        return ""
    if index >= len(entries):
        raise ConfigError("gpus", index + 1, f"at most {len(entries)}: {VISIBLE} is {names}")
    return entries[index]


@contextlib.contextmanager
def claimed_ports(count: int) -> Iterator[list[int]]:
    """``count`` TCP ports, each the first of ``RUN`` in a row, for as long as the context lasts.

    Engines bind their ports half a minute after they are told of them, so asking whether a port is free is not enough.
    The claim is a UDP socket of the same number: it hinders no engine, every other program that claims meets it, and it
    goes with this process however that ends.

    Raises:
        ConfigError: there are not as many.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in range(FIRST_PORT, LAST_PORT, RUN):
            if len(ports) == count:
                break
            claim = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            if _binds(claim, port) and _unused(port):
                ports.append(port)
        if len(ports) < count:
            allowed = f"at most {len(ports)}: so many runs of {RUN} ports are free from {FIRST_PORT} to {LAST_PORT}"
            raise ConfigError("arms", count, allowed)
        yield ports


def _unused(first: int) -> bool:
    """Nobody listens on the first of a run, which engines bind without a second try."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as engines do: a closed connection may linger
        return _binds(probe, first)


def _binds(made: socket.socket, port: int) -> bool:
    try:
        made.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
