"""One server at a time: that of the arm being measured, and its log by cell."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddbench.records import Arm, content_hash
from runners import engine_log
from runners.base import EngineFailure, ModelFiles, ServerSpec
from runners.server import Server, ServerCommand
from runners.vllm import attached, plugin_log
from runners.vllm.attached import AttachedServer
from runners.vllm.command import SERVED_NAME, Machine, build
from runners.vllm.devices import gpus_of
from runners.vllm.probe import Environment
from runners.vllm.versions import Capabilities

AnyServer = Server | AttachedServer


class Serving:
    """Starts the server of an arm when it is asked for, in the place of another arm's; ``scratch`` takes the logs.

    ``model_name`` is what the server calls its model; ``facts`` are how it was started.
    """

    def __init__(
        self, spec: ServerSpec, environment: Environment | None, able: Capabilities, model: ModelFiles, scratch: Path
    ) -> None:
        assert spec.server is not None
        self.spec, self.options, self.model = spec, spec.server, model
        self.model_name = SERVED_NAME
        self.facts: dict[str, Any] = {}
        self.log: Path | None = None
        self._environment, self._able, self._scratch = environment, able, scratch
        self._server: AnyServer | None = None
        self._arm: str | None = None  # as a hash
        self._mark = 0  # bytes of the log that earlier cells have
        self._starts = 0
        self._hopeless: dict[str, str] = {}  # arms whose server does not start, and why

    def server_for(self, arm: Arm) -> AnyServer:
        """The server of an arm: the running one, or a new one.

        Raises:
            EngineFailure: it does not start, or did not before; or it has died since the last cell.
        """
        name = content_hash(asdict(arm))
        if self._server is not None and self._arm == name:
            self._server.check()
            return self._server
        if name in self._hopeless:
            raise EngineFailure(self._hopeless[name])
        self.end()
        try:
            server = self._attach() if self.options.url is not None else self._start(arm)
        except EngineFailure as failure:
            self._hopeless[name] = self.tidy(str(failure))
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

    def _attach(self) -> AttachedServer:
        assert self.options.url is not None
        self._server = server = AttachedServer(self.options.url)
        server.check()
        self.model_name = attached.model_at(self.options.url)
        self.facts = {"url": self.options.url, "model": self.model_name}
        return server

    def _start(self, arm: Arm) -> Server:
        assert self._environment is not None
        gpus = gpus_of(self.spec.device, arm.flags["tensor_parallel"])
        visible = ",".join(map(str, gpus)) or None
        machine = Machine(self._environment.python, self.spec.device, self.spec.dtype, self.spec.threads, visible)
        launch = build(arm, self.model, machine, self.options.batch_sizes, self._able)
        command = ServerCommand(
            launch.argv,
            launch.environment,
            port=self.options.port,
            start_timeout_s=self.options.start_timeout_s,
            gpus=gpus,
            name="the vLLM server",
        )
        self._starts += 1
        self.log, self._mark = self._scratch / f"server-{self._starts}.log", 0
        try:
            self._server = server = Server.start(command, self.log)
        except EngineFailure:
            refused = plugin_log.refusal(self.log.read_text(errors="replace"))
            if refused is None:
                raise
            raise EngineFailure(refused) from None
        if arm.strategy == "ddtree":
            plugin_log.check(server.log_part())
        self.facts = {"argv": launch.argv, "environment": launch.environment, "ready_s": server.ready_s}
        return server
