"""vLLM servers: how one is started for an arm, and what must be seen before it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles, ServerSpec
from runners.devices import gpus_of
from runners.server import Server, ServerCommand
from runners.serving import Serving
from runners.vllm import attached, plugin_log
from runners.vllm.command import SERVED_NAME, Machine, build
from runners.vllm.probe import Environment
from runners.vllm.versions import Capabilities


class VllmServing(Serving):
    """See :class:`runners.serving.Serving`. ``environment`` is None for a server that runs already."""

    def __init__(
        self, spec: ServerSpec, environment: Environment | None, able: Capabilities, model: ModelFiles, scratch: Path
    ) -> None:
        super().__init__(spec, model, scratch)
        self.model_name = SERVED_NAME
        self._environment, self._able = environment, able

    def command(self, arm: Arm) -> ServerCommand:
        assert self._environment is not None
        gpus = gpus_of(self.spec.device, arm.flags["tensor_parallel"], self.spec.host)
        visible = ",".join(map(str, gpus)) or None
        machine = Machine(self._environment.python, self.spec.device, self.spec.dtype, self.spec.threads, visible)
        launch = build(arm, self.model, machine, self.options.batch_sizes, self._able)
        return ServerCommand(
            launch.argv,
            launch.environment,
            port=self.options.port,
            start_timeout_s=self.options.start_timeout_s,
            gpus=gpus,
            name="the vLLM server",
            host=self.host,
        )

    def refusal(self, log: str) -> str | None:
        return plugin_log.refusal(log)

    def check_started(self, server: Server, arm: Arm) -> dict[str, Any]:
        if arm.strategy == "ddtree":
            plugin_log.check(server.log_part())
        return {}

    def describe_attached(self, url: str, arm: Arm) -> dict[str, Any]:
        return {"model": attached.model_at(url)}
