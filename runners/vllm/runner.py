"""vLLM as a server: its environment, its metrics, its prefix cache."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddbench.records import Arm
from runners.base import EngineFailure, ModelFiles
from runners.client import Completion
from runners.counts import SpecCounters, Tally
from runners.measuring import ServerRunner
from runners.server import Server
from runners.serving import AnyServer
from runners.vllm import attached
from runners.vllm.command import drafted_tokens
from runners.vllm.counts import tally
from runners.vllm.metrics import scrape
from runners.vllm.probe import Environment, check_plugin, probe
from runners.vllm.serving import VllmServing
from runners.vllm.versions import Capabilities, capabilities, cpu_fault, untried


class VllmRunner(ServerRunner):
    """See :class:`runners.measuring.ServerRunner`. Rounds are counted by vLLM's own metrics."""

    name = "vllm"
    compiling = r"JIT compil|[Cc]ompiling|torch\.compile|[Aa]utotun"

    _environment: Environment | None
    _able: Capabilities

    def look(self) -> dict[str, Any]:
        options, device = self.options, self.spec.device
        if options.url is not None:
            version = attached.version_at(options.url)
            self._able, self._environment = capabilities(version), None
            facts: dict[str, Any] = {"engine_url": options.url}
        else:
            environment = self._environment = probe(options.python, device, gpus=device != "cpu", host=self.host)
            if "ddtree" in options.strategies:
                check_plugin(environment, device, self.host)
            version, self._able = environment.version, environment.capabilities
            index = int(device.partition(":")[2] or 0)
            self._gpu = environment.gpus[index] if environment.gpus else None
            facts = {"engine_environment": environment.facts, "engine_gpu": self._gpu}
        warnings = [untried(version), cpu_fault(device, options.strategies)]
        warning = "; ".join(each for each in warnings if each) or None
        return facts | {"engine_counting": self._able.counting, "engine_warning": warning}

    def serving(self, model: ModelFiles, scratch: Path) -> VllmServing:
        return VllmServing(self.spec, self._environment, self._able, model, scratch)

    def drafted(self, arm: Arm, model: ModelFiles) -> int:
        return drafted_tokens(arm, model)

    def counters(self, server: AnyServer) -> SpecCounters:
        return scrape(server.base_url)

    def count(self, completions: Sequence[Completion], drafted: int, totals: SpecCounters | None) -> Tally:
        assert totals is not None
        return tally(completions, drafted, totals)

    def empty_cache(self, server: Server, arm: Arm) -> None:
        if not arm.flags["prefix_cache"]:
            return
        request = urllib.request.Request(f"{server.base_url}/reset_prefix_cache", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30):
                return
        except OSError as error:
            raise EngineFailure(f"the prefix cache cannot be emptied ({error})") from None
