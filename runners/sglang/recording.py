"""A SGLang server that records what its drafter offers: how one is started, set and asked. Nothing of it is timed.

It is a server of our plug-in with ``DDTREE_RECORD`` in its environment (`ddbench.plugins.sglang.recorder`), which
writes the rounds of each request to a file that is named by the request (`ddbench.plugins.sglang.dumps`).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.dumps import SUFFIX, Rows, rounds_of
from ddbench.plugins.sglang.options import RECORD, RECORD_NODES
from ddbench.records import Arm
from runners.base import EngineFailure, ModelFiles, ServerSpec
from runners.client import Completion
from runners.completions import TokenRequest
from runners.load import ClosedLoop, run_load
from runners.prompts import Tokenized
from runners.server import ServerCommand
from runners.serving import AnyServer
from runners.sglang.runner import SglangRunner
from runners.sglang.serving import SglangServing

STATE_S = 60.0  # for a running server to take a setting


@dataclass(frozen=True)
class Told:
    """What came of a request: its stream, and its rounds as the server wrote them."""

    completion: Completion
    rounds: Rows


class RecordingServing(SglangServing):
    """Servers that record into ``folder``, ``candidates`` of a position."""

    recording = True
    folder: Path
    candidates: int

    def command(self, arm: Arm) -> ServerCommand:
        plain = super().command(arm)
        own = {RECORD: str(self.folder), RECORD_NODES: str(self.candidates)}
        return replace(plain, environment={**plain.environment, **own})


class RecordingRunner(SglangRunner):
    """One such server, of ``arm``: ``start`` looks and reads the prompts, ``open`` starts it."""

    def __init__(self, spec: ServerSpec, arm: Arm, candidates: int) -> None:
        super().__init__(spec)
        self.arm, self.candidates = arm, candidates
        self._server: AnyServer | None = None
        self._names = count()
        if self.options.url is not None:
            raise ConfigError("engine.url", self.options.url, "null: a server must be started to record")
        if not self.host.is_local:
            raise ConfigError("host", self.host.config.name, "local: a recording is read from the engine's own disk")

    @property
    def prompts(self) -> list[Tokenized]:
        return self._asked.prompts

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._asked.stop_ids

    @property
    def gpu(self) -> str | None:
        return self._gpu

    def serving(self, model: ModelFiles, scratch: Path) -> SglangServing:
        made = RecordingServing(self.spec, self._environment, model, scratch)
        made.folder, made.candidates = scratch / "rounds", self.candidates
        return made

    def open(self) -> None:
        """Starts the server if it does not run. Raises EngineFailure."""
        if self._serving is None:
            self.start()
        assert self._serving is not None
        self._server = self._serving.server_for(self.arm)

    def set(self, **values: int) -> None:
        """Limits of the trees (``nodes``, ``width``, ``depth``, ``force_spine``; 0 lifts one) and what is recorded
        (``record``), for the rounds that follow. Raises EngineFailure."""
        assert self._server is not None
        settings = {f"ddtree_{name}": value for name, value in values.items()}
        request = urllib.request.Request(
            f"{self._server.base_url}/set_internal_state",
            data=json.dumps({"server_args": settings}).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=STATE_S) as answer:
                taken = json.loads(answer.read())
        except (OSError, ValueError) as error:
            raise EngineFailure(f"the server takes no settings ({error})") from None
        if not isinstance(taken, list) or not taken or any(each is not True for each in taken):  # one a rank
            raise EngineFailure(f"the server refused {settings}: {taken}")

    def told(self, requests: Sequence[TokenRequest], in_flight: int) -> list[Told]:
        """Asks in a closed loop; answers in the order of the requests. Raises EngineFailure where any failed."""
        assert self._server is not None
        assert isinstance(self._serving, RecordingServing)
        folder, named = self._serving.folder, [replace(each, name=f"d{next(self._names)}") for each in requests]
        result = run_load(
            self._server.base_url,
            self._serving.model_name,
            named,
            ClosedLoop(in_flight),
            timeout_s=self.spec.timeout_s,
            limit_s=None,
            stall_s=self.spec.stall_s,
            alive=self._server.alive,
            on_finish=None,
            wire=self.wire,
        )
        failed = [each.error for each in result.completions if each.error]
        if failed:
            self._server.check()
            raise EngineFailure(f"{len(failed)} of {len(named)} requests failed: {failed[0]}")
        answers = [Told(each, rounds_of(folder, each.request.name)) for each in result.completions]
        for each in named:
            (folder / f"{each.name}{SUFFIX}").unlink(missing_ok=True)
        return answers
