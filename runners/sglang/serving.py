"""SGLang servers: how one is started for an arm, and what must be seen before it is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles, ServerSpec
from runners.devices import gpus_of
from runners.gpu_memory import Gpu
from runners.server import Server, ServerCommand
from runners.serving import Serving
from runners.sglang import adaptive, attached, info, memory, plugin_log
from runners.sglang.branches import misfits
from runners.sglang.checkout import look, python_path
from runners.sglang.command import Machine, arguments, build, draft_of, graph_sizes, tree_of
from runners.sglang.flags import SHARE
from runners.sglang.probe import Environment
from runners.sglang.speculation import limits


class SglangServing(Serving):
    """See :class:`runners.serving.Serving`. ``environment`` is None for a server that runs already."""

    recording = False  # whether its servers are to record (`runners.sglang.recording`)

    def __init__(self, spec: ServerSpec, environment: Environment | None, model: ModelFiles, scratch: Path) -> None:
        super().__init__(spec, model, scratch)
        self._environment = environment
        self._memory: dict[str, Any] = {}  # what was computed of it before the last start

    def command(self, arm: Arm) -> ServerCommand:
        gpus = gpus_of(self.spec.device, arm.flags["tensor_parallel"], self.spec.host)
        share = self._share(arm, gpus)
        launch = build(arm, self.model, self._machine(gpus, share), self.options.batch_sizes)
        chosen = adaptive.environment(arm, self.spec.cost, self._scratch, self.host)
        return ServerCommand(
            launch.argv,
            {**launch.environment, **chosen},
            port=self.options.port,
            start_timeout_s=self.options.start_timeout_s,
            gpus=gpus,
            name="the SGLang server",
            host=self.host,
        )

    def refusal(self, log: str) -> str | None:
        return plugin_log.refusal(log) if self.options.checkout is None else None

    def check_started(self, server: Server, arm: Arm) -> dict[str, Any]:
        log, draft = server.log_part(), draft_of(arm, self.model)
        ours = arm.strategy == "ddtree" and self.options.checkout is None
        said: dict[str, Any] = {"plugin": plugin_log.check(log)} if ours else {}
        found = info.fetch(server.base_url)
        info.check(arguments(arm, self.model, self._machine(()), self.options.batch_sizes), found)
        if draft is not None and ours:
            info.check_trees(limits(draft), found, self.recording, arm.policy)
        if self.options.checkout is not None:
            plugin_log.check_absent(log)
        if draft is not None and arm.strategy == "ddtree" and self.options.branch is not None:
            info.refuse(misfits(self.options.branch.settings(tree_of(draft)), found))
        if draft is not None and arm.flags["cuda_graphs"]:
            said["draft_graph_off"] = plugin_log.draft_graph_off(log)
        return said | self._memory

    def describe_attached(self, url: str, arm: Arm) -> dict[str, Any]:
        found = attached.info_at(url)
        attached.check_arm(arm, self.model, found)
        return {"model": found["model_path"], "server": info.summary(found)}

    def _check_plugin(self) -> None:
        """A checkout's servers are started without it."""
        if self.options.checkout is None:
            super()._check_plugin()

    def _share(self, arm: Arm, gpus: tuple[Gpu, ...]) -> float:
        """``--mem-fraction-static`` where the flags leave it open: by what the arm will need, where that is known.

        Raises EngineFailure where the arm is known not to fit.
        """
        assert self._environment is not None
        sizes = tuple(graph_sizes(self.options.batch_sizes))
        version = self._environment.version if self.options.checkout is None else "from a checkout"
        found = memory.predict(arm, self.model, self.spec.dtype, sizes, version)
        if isinstance(found, str):
            self._memory = {"memory_predicted_gib": None, "memory_unknown": found, "memory_free_gib": None}
            return SHARE
        free = memory.free_bytes(self.host, gpus)
        free_gib = None if free is None else round(free / memory.GIB, 4)
        self._memory = {"memory_predicted_gib": found.gib(), "memory_unknown": None, "memory_free_gib": free_gib}
        if free is None or arm.flags["mem_fraction_static"] is not None:
            return SHARE
        return found.fitted(free).fraction

    def _machine(self, gpus: tuple[Gpu, ...], share: float = SHARE) -> Machine:
        assert self._environment is not None
        return Machine(
            self._environment.python,
            self.spec.dtype,
            self.spec.threads,
            ",".join(map(str, gpus)) or None,
            inherited=tuple(os.environ),
            share=share,
            path=None if self.options.checkout is None else python_path(look(self.options.checkout)),
            branch=self.options.branch,
        )
