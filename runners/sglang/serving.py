"""SGLang servers: how one is started for an arm, and what must be seen before it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles, ServerSpec
from runners.devices import gpus_of
from runners.server import Server, ServerCommand
from runners.serving import Serving
from runners.sglang import attached, info, plugin_log
from runners.sglang.command import Machine, arguments, build, graph_sizes
from runners.sglang.memory import predicted_gib
from runners.sglang.probe import Environment


class SglangServing(Serving):
    """See :class:`runners.serving.Serving`. ``environment`` is None for a server that runs already."""

    def __init__(self, spec: ServerSpec, environment: Environment | None, model: ModelFiles, scratch: Path) -> None:
        super().__init__(spec, model, scratch)
        self._environment = environment

    def command(self, arm: Arm) -> ServerCommand:
        gpus = gpus_of(self.spec.device, arm.flags["tensor_parallel"], self.spec.host)
        launch = build(arm, self.model, self._machine(gpus), self.options.batch_sizes)
        return ServerCommand(
            launch.argv,
            launch.environment,
            port=self.options.port,
            start_timeout_s=self.options.start_timeout_s,
            gpus=gpus,
            name="the SGLang server",
            host=self.host,
        )

    def refusal(self, log: str) -> str | None:
        return plugin_log.refusal(log)

    def check_started(self, server: Server, arm: Arm) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if arm.strategy == "ddtree":
            said["plugin"] = plugin_log.check(server.log_part())
        found = info.fetch(server.base_url)
        info.check(arguments(arm, self.model, self._machine(()), self.options.batch_sizes), found)
        assert self._environment is not None
        sizes = tuple(graph_sizes(self.options.batch_sizes))
        said["memory_predicted_gib"] = predicted_gib(arm, self.model, self.spec.dtype, sizes, self._environment.version)
        return said

    def describe_attached(self, url: str, arm: Arm) -> dict[str, Any]:
        found = attached.info_at(url)
        attached.check_arm(arm, self.model, found)
        return {"model": found["model_path"], "server": info.summary(found)}

    def _machine(self, gpus: tuple[int | str, ...]) -> Machine:
        assert self._environment is not None
        visible = ",".join(map(str, gpus)) or None
        return Machine(self._environment.python, self.spec.dtype, self.spec.threads, visible)
