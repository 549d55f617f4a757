"""Machines that engines run on: this one, and those behind ssh. Nothing here knows what an engine is."""

from __future__ import annotations

import atexit
import os

from runners.hosts.base import Completed, Host, HostFailure, Process
from runners.hosts.config import LOCAL, HostConfig
from runners.hosts.local import LocalHost

__all__ = ["LOCAL", "Completed", "Host", "HostConfig", "HostFailure", "LocalHost", "Process", "host_of", "open_host"]

_HOSTS: dict[tuple[int, str], Host] = {}  # by process and configuration


def open_host(config: HostConfig) -> Host:
    """A host of its own for a configuration; nothing is connected yet. Its user closes it."""
    if config.kind == "local":
        return LocalHost(config)
    from runners.hosts.ssh import SshHost

    return SshHost(config)


def host_of(config: HostConfig) -> Host:
    """The one host that all of this process shares for a configuration; closed when the process ends."""
    key = os.getpid(), repr(config)
    if key not in _HOSTS:
        _HOSTS[key] = open_host(config)
        atexit.register(_HOSTS[key].close)
    return _HOSTS[key]
