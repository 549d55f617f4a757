"""SGLang as a server: its environment, its counts, its caches."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from runners.base import EngineFailure, ModelFiles
from runners.client import Completion
from runners.completions import Wire
from runners.counts import SpecCounters, Tally
from runners.measuring import ServerRunner
from runners.server import Server
from runners.serving import AnyServer, Serving
from runners.sglang import attached, info, wire
from runners.sglang.checkout import check_runs, look
from runners.sglang.command import draft_of
from runners.sglang.counts import SOURCE, tally
from runners.sglang.probe import Environment, check_plugin, probe
from runners.sglang.serving import SglangServing
from runners.sglang.speculation import drafted_tokens, limits, may_be_smaller
from runners.sglang.versions import no_tree, untried

FLUSH_S = 30.0


class SglangRunner(ServerRunner):
    """See :class:`runners.measuring.ServerRunner`. Rounds are counted by the responses."""

    name = "sglang"
    compiling = r"\bJIT\b|[Cc]ompiling|[Aa]utotun|\bnvcc\b|\bninja\b|Capture cuda graph"
    wire: Wire = wire

    _environment: Environment | None

    def look(self) -> dict[str, Any]:
        options, device = self.options, self.spec.device
        if options.url is not None:
            self._environment, version = None, attached.version_at(options.url)
            facts: dict[str, Any] = {"engine_url": options.url}
        else:
            environment = self._environment = probe(options.python, device, gpus=device != "cpu", host=self.host)
            version = environment.version
            if "ddtree" in options.strategies and options.checkout is None:
                self._check_tree(environment)
            index = int(device.partition(":")[2] or 0)
            self._gpu = environment.gpus[index] if environment.gpus else None
            facts = {"engine_environment": environment.facts, "engine_gpu": self._gpu, "engine_counting": SOURCE}
            if options.checkout is not None:
                return facts | self._look_at_branch(environment, options.checkout)
        return facts | {"engine_counting": SOURCE, "engine_warning": untried(version)}

    def _look_at_branch(self, environment: Environment, checkout: str) -> dict[str, Any]:
        found, branch = look(checkout), self.options.branch
        check_runs(found, environment.python, self.host)
        told = None if branch is None else {"name": branch.name, "read": branch.read}
        return {
            "engine_checkout": {**found.facts, "branch": told},
            "engine_warning": f"sources of {found} run in the place of SGLang's own; ddbench was never tried with them",
        }

    def _check_tree(self, environment: Environment) -> None:
        problem = no_tree(environment.version)
        if problem is not None:
            raise ConfigError("engine.python", environment.python, problem)
        check_plugin(environment, self.spec.device, self.host)

    def serving(self, model: ModelFiles, scratch: Path) -> SglangServing:
        return SglangServing(self.spec, self._environment, model, scratch)

    def drafted(self, arm: Arm, model: ModelFiles) -> int:
        return drafted_tokens(arm.strategy, arm.depth, arm.nodes, model.block_size)

    def tells_drafted(self, arm: Arm, model: ModelFiles) -> bool:
        """SGLang says rounds times the verify width less one, whatever a tree had."""
        draft = draft_of(arm, model)
        if arm.strategy == "ddtree" and self.options.checkout is not None:
            return False  # what a branch proposes is its own count, of nodes or of a block
        return arm.policy is None and (draft is None or not may_be_smaller(draft))

    def doubts(self, serving: Serving, server: AnyServer, arm: Arm) -> list[str]:
        """The drafter lost its graphs in this arm alone, or somebody changed the limits of a running server's trees."""
        off = serving.facts.get("draft_graph_off")
        found = [f"CUDA graphs were asked for, and the drafter has none: {off}"] if off else []
        draft = draft_of(arm, serving.model)
        if draft is not None and arm.strategy == "ddtree" and self.options.checkout is None:
            found += info.tree_differences(limits(draft), info.fetch(server.base_url), policy=arm.policy)
        return found

    def counters(self, server: AnyServer) -> SpecCounters | None:
        return None  # it keeps a ratio alone, and that counts the prefill's token

    def count(self, completions: Sequence[Completion], drafted: int, totals: SpecCounters | None) -> Tally:
        return tally(completions, drafted, others=self.options.checkout is not None)

    def describe(self, server: AnyServer) -> dict[str, Any]:
        return {"server": info.summary(info.fetch(server.base_url))}

    def empty_cache(self, server: Server, arm: Arm) -> None:
        """Also without a prefix cache: it frees what the warm-up left. Nothing may run meanwhile."""
        request = urllib.request.Request(f"{server.base_url}/flush_cache?timeout={FLUSH_S:g}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=2 * FLUSH_S):
                return
        except OSError as error:
            raise EngineFailure(f"the caches cannot be flushed ({error})") from None
