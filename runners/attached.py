"""A server that somebody else runs: asked, never started, ended or changed."""

from __future__ import annotations

import urllib.request

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
            get(self.base_url, "/health")
        except OSError as error:
            raise EngineFailure(f"the server at {self.base_url} does not answer ({error})") from None


def get(url: str, path: str) -> str:
    """The body of a GET. Raises OSError where nothing answers, or not with 200."""
    with urllib.request.urlopen(url + path, timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text
