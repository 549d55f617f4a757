"""One server at a time: that of the arm being measured, and its log by cell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm, content_hash
from runners import engine_log, environments
from runners.attached import AttachedServer
from runners.base import EngineFailure, ModelFiles, ServerSpec
from runners.hosts import LOCAL, host_of
from runners.probing import EngineEnvironment
from runners.server import Server, ServerCommand

AnyServer = Server | AttachedServer
HOPELESS = 2  # failed starts after which an arm's server is not started again


class Serving(ABC):
    """Starts the server of an arm when it is asked for, in the place of another arm's; ``scratch`` takes the logs.

    ``model_name`` is what the server calls its model; ``facts`` are how it was started.
    """

    def __init__(self, spec: ServerSpec, model: ModelFiles, scratch: Path) -> None:
        assert spec.server is not None
        self.spec, self.options, self.model = spec, spec.server, model
        self.host = host_of(spec.host or LOCAL)
        self.model_name = ""
        self.facts: dict[str, Any] = {}
        self.plugin: str | None = None  # hash of the one that the last server found, whether its arm needs it or not
        self.log: Path | None = None
        self._environment: EngineEnvironment | None = None  # None: a server that runs already
        self._scratch = scratch
        self._server: AnyServer | None = None
        self._arm: str | None = None  # as a hash
        self._mark = 0  # bytes of the log that earlier cells have
        self._starts = 0
        self._hopeless: dict[str, str] = {}  # arms whose server did not start, and why
        self._failed_starts: dict[str, int] = {}

    @abstractmethod
    def command(self, arm: Arm) -> ServerCommand:
        """How the server of an arm is started."""

    @abstractmethod
    def refusal(self, log: str) -> str | None:
        """Why the plug-in refused to run, by the log of a server that did not come up; None if it did not."""

    @abstractmethod
    def check_started(self, server: Server, arm: Arm) -> dict[str, Any]:
        """What was seen of what came up. Raises EngineFailure unless it is what the arm asks for."""

    @abstractmethod
    def describe_attached(self, url: str, arm: Arm) -> dict[str, Any]:
        """Facts of a server that runs already, its model's name under ``model``.

        Raises:
            ConfigError: it does not say what it is.
            EngineFailure: it is seen to be another arm's.
        """

    def server_for(self, arm: Arm) -> AnyServer:
        """The server of an arm: the running one, or a new one.

        Raises:
            EngineFailure: it does not start, or did not before; or it has died since the last cell.
        """
        name = content_hash(asdict(arm))
        if self._server is not None and self._arm == name:
            self._server.check()
            return self._server
        if self._failed_starts.get(name, 0) >= HOPELESS:
            raise EngineFailure(self._hopeless[name], "hopeless")
        self.end()
        try:
            server = self._attach(arm) if self.options.url is not None else self._start(arm)
        except EngineFailure as failure:
            if failure.kind in ("lost", "busy"):
                raise  # the host's fault, or the neighbour's, and no arm's
            self._hopeless[name] = self.tidy(str(failure))
            self._failed_starts[name] = HOPELESS if failure.kind == "hopeless" else self._failed_starts.get(name, 0) + 1
            raise
        self._arm = name
        return server

    def keep_log(self, folder: Path) -> None:
        """Appends what the server has written since the last cell to ``server.log`` of this one."""
        if self.log is None or not self.log.exists():
            return
        data = engine_log.read_part(self.log, self._mark)
        self._mark += len(data)
        with (folder / "server.log").open("ab") as stream:
            stream.write(data)

    def say(self, line: str) -> None:
        """A line of our own in the server's log."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(f"ddbench: {line}\n")

    def tidy(self, reason: str) -> str:
        """A reason that names the log where the cell keeps it."""
        return reason if self.log is None else reason.replace(str(self.log), "server.log")

    def end(self) -> None:
        """Ends the server. Its log stays until the next one starts."""
        server, self._server, self._arm = self._server, None, None
        if not isinstance(server, Server):
            return  # none, or one that is not ours to end
        problem = server.stop().problem
        if problem is not None:
            self.say(problem)

    def _check_plugin(self) -> None:
        """Which one is there: somebody may have put another there since the last start.

        Raises EngineFailure where trees are to be measured with another than ours.
        """
        environment = self._environment
        if environment is None:
            return
        engine, python = environment.ENGINE, environment.python
        try:
            facts = environments.ask(self.host, engine, python)
            if "ddtree" in self.options.strategies:
                environments.check_plugin(self.host, engine, self.spec.device, python, facts)
            self.plugin = environments.plugin_of(facts)
        except ConfigError as error:
            raise EngineFailure(str(error), "hopeless") from None

    def _attach(self, arm: Arm) -> AttachedServer:
        assert self.options.url is not None
        self._server = server = AttachedServer(self.options.url)
        server.check()
        self.facts = {"url": self.options.url, **self.describe_attached(self.options.url, arm)}
        self.model_name = str(self.facts["model"])
        return server

    def _start(self, arm: Arm) -> Server:
        self._check_plugin()
        command = self.command(arm)
        self._starts += 1
        self.log, self._mark = self._scratch / f"server-{self._starts}.log", 0
        try:
            self._server = server = Server.start(command, self.log)
        except EngineFailure:
            refused = self.refusal(self.log.read_text(errors="replace"))
            if refused is None:
                raise
            raise EngineFailure(refused, "hopeless") from None
        seen = self.check_started(server, arm)
        self.facts = {"argv": command.argv, "environment": command.environment, "ready_s": server.ready_s, **seen}
        return server
