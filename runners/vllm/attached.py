"""A server that somebody else runs: asked, never started, ended or changed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from ddbench.errors import ConfigError
from runners.base import EngineFailure

TIMEOUT_S = 10.0


class AttachedServer:
    """Has of :class:`runners.server.Server` what measuring needs. It has no log and no process of ours."""

    pid: int | None = None

    def __init__(self, url: str) -> None:
        self.base_url = url.rstrip("/")

    def alive(self) -> bool:
        """Assumed until a connection is refused."""
        return True

    def check(self) -> None:
        """Raises EngineFailure unless the server answers."""
        try:
            _get(self.base_url, "/health")
        except OSError as error:
            raise EngineFailure(f"the server at {self.base_url} does not answer ({error})") from None


def version_at(url: str) -> str:
    """The version of the vLLM that answers at ``url``. Raises ConfigError if none does."""
    try:
        return str(json.loads(_get(url.rstrip("/"), "/version"))["version"]).partition("+")[0]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("engine.url", url, f"the address of a running vLLM server ({error})") from None


def model_at(url: str) -> str:
    """The name under which the server at ``url`` serves its model. Raises ConfigError if it does not say."""
    try:
        listed: list[dict[str, Any]] = json.loads(_get(url.rstrip("/"), "/v1/models"))["data"]
        return str(listed[0]["id"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError("engine.url", url, f"the address of a running vLLM server ({error})") from None


def _get(url: str, path: str) -> str:
    with urllib.request.urlopen(url + path, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text
