"""What is configured of a host: group ``host`` of ``conf/``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddbench.errors import ConfigError

ENGINES = ("reference", "sglang", "vllm")
LISTS = ("gpus", "hosts")
SKUS = ("Workstation", "Server", "Max-Q")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ADDRESS = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]-]*")  # never begins with a dash, which ssh takes for an option
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*")


@dataclass(frozen=True)
class HostConfig:
    """One machine that engines run on, and how it is reached.

    ``kind`` ``local`` is this machine; ``ssh`` is ``user@address`` at ``port``. ``address`` may be a name of the user's
    ssh configuration, which then gives whatever is null here. ``key`` is a file with a private key, ``known_hosts`` one
    with the host's public key: a host whose key is not in it is refused. ``python`` is any Python >= 3.9 there, for our
    own small scripts; ``pythons`` are the interpreters of the engines' environments, by engine, used where
    ``engine.python`` is null. Paths there may begin with ``~/``. ``workdir`` takes what ddbench installs there; a
    relative path would lie wherever a login begins, and is refused.

    ``gpus`` are the GPUs that may be used, as ``nvidia-smi`` numbers them; None: all. The card as it should be:
    ``gpu_name`` a part of its name, ``sku``, ``power_limit_w`` watts, ``memory_clock_mhz`` its highest memory clock,
    ``memory_bytes_per_s`` the bandwidth of its memory (None: as its driver says), ``bf16_tflops`` dense 10^12
    floating-point operations a second in bfloat16. What the host reports otherwise is said, never mended.
    """

    name: str
    kind: Literal["local", "ssh"]
    address: str | None
    memory_bytes_per_s: int | None = None
    user: str | None = None
    port: int | None = None
    key: str | None = None
    known_hosts: str | None = None
    python: str = "python3"
    pythons: dict[str, Any] = field(default_factory=dict)
    workdir: str = "~/.ddbench"
    gpus: tuple[int, ...] | None = None
    gpu_name: str | None = None
    sku: Literal["Workstation", "Server", "Max-Q"] | None = None
    power_limit_w: float | None = None
    memory_clock_mhz: int | None = None
    bf16_tflops: float | None = None
    connect_timeout_s: float = 15.0
    share_gpus: bool = False  # whether an engine may start on a GPU that another engine of ddbench holds
    hosts: tuple[Any, ...] = ()  # of a list of hosts: what differs in each from the keys above
    member: str | None = None  # of a host that was chosen of a list: its own name there; never configured

    def __post_init__(self) -> None:
        _need("name", self.name, NAME.fullmatch(self.name), "letters, digits, '.', '_' and '-'")
        _need(
            "memory_bytes_per_s", self.memory_bytes_per_s, _positive(self.memory_bytes_per_s), "bytes a second, or null"
        )
        ssh = self.kind == "ssh"
        needed = not ssh or self.address is not None or self.hosts
        _need("address", self.address, needed, "a host name, an IP address, or a name of your ssh configuration")
        if self.address is not None:
            _need("address", self.address, ADDRESS.fullmatch(self.address), "a host name or IP address, no options")
        for name in ("address", "user", "port", "key", "known_hosts"):
            value = getattr(self, name)
            _need(name, value, ssh or value is None, "null on a local host")
        if self.user is not None:
            _need("user", self.user, USER.fullmatch(self.user), "a user name, or null for your ssh configuration's")
        for name in ("key", "known_hosts"):
            value = getattr(self, name)
            good = value is None or (_path(value) and '"' not in value)
            _need(name, value, good, "a file's path on this machine, without a '\"', or null")
        good_port = self.port is None or 1 <= self.port <= 65535
        _need("port", self.port, good_port, "a port from 1 to 65535, or null for your ssh configuration's")
        for name in ("python", "workdir"):
            _need(name, getattr(self, name), _path(getattr(self, name)), "a path on the host; it may begin with ~/")
        fixed = self.workdir.startswith(("/", "~/"))
        _need("workdir", self.workdir, fixed, "a path on the host that begins with / or ~/")
        for engine, python in self.pythons.items():
            _need(f"pythons.{engine}", python, engine in ENGINES, f"unknown key; known here: {', '.join(ENGINES)}")
            good = isinstance(python, str) and _path(python)
            _need(f"pythons.{engine}", python, python is None or good, "an interpreter on the host, or null")
        if self.gpus is not None:
            distinct = len(set(self.gpus)) == len(self.gpus) > 0 and min(self.gpus) >= 0
            _need("gpus", list(self.gpus), distinct, "a list of GPU numbers, each once, or null for all")
        for name, unit in (("power_limit_w", "watts"), ("memory_clock_mhz", "MHz"), ("bf16_tflops", "TFLOP/s")):
            _need(name, getattr(self, name), _positive(getattr(self, name)), f"{unit} > 0, or null")
        _need("connect_timeout_s", self.connect_timeout_s, self.connect_timeout_s > 0, "seconds > 0")

    def check_files(self) -> None:
        """Raises ConfigError where ``key`` or ``known_hosts`` names no file of this machine."""
        for name in ("key", "known_hosts"):
            file = getattr(self, name)
            _need(
                name, file, file is None or Path(file).expanduser().is_file(), "a file on this machine; there is none"
            )

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Bandwidth of a GPU's memory in 10^9 bytes a second, as configured."""
        return None if self.memory_bytes_per_s is None else self.memory_bytes_per_s / 1e9

    def engine_python(self, engine: str) -> str | None:
        """The interpreter of an engine's environment on this host, as configured; None: not said."""
        python: str | None = self.pythons.get(engine)
        return python

    @property
    def destination(self) -> str:
        """``user@address`` as ssh takes it."""
        return f"{self.user}@{self.address}" if self.user else str(self.address)


def check_lists(config: Mapping[str, Any], key: str = "host") -> None:
    """Elsewhere a single value stands for a list of one; ``gpus=4`` and ``hosts=abc`` are more likely mistakes.

    Raises:
        ConfigError: a value that is to be a list, in a group ``host`` as it was written, and is none.
    """
    for name in LISTS:
        value = config.get(name, ())
        if not isinstance(value, list | tuple) and not (name == "gpus" and value is None):
            allowed = "of GPU numbers, such as [0], or null for all" if name == "gpus" else "of hosts, such as [a,b]"
            raise ConfigError(f"{key}.{name}", value, f"a list {allowed}")


def environment_arguments(env: Mapping[str, str | None]) -> list[str]:
    """Arguments of ``env`` (POSIX) that lay ``env`` over an environment; a value of None takes a variable away."""
    gone = [part for name, value in env.items() if value is None for part in ("-u", name)]
    return [*gone, *(f"{name}={value}" for name, value in env.items() if value is not None)]


def _path(text: str) -> bool:
    return bool(text) and not text.startswith("-") and not any(each in text for each in "\0\n")


def _positive(value: float | None) -> bool:
    return value is None or value > 0


def _need(name: str, value: object, holds: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"host.{name}", value, allowed)


LOCAL = HostConfig("local", "local", None)  # this machine, as it is where nothing is configured
