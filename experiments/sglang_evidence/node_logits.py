"""Per-node logits of random trees, from one verify pass, against autoregressive prefills of their paths."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.evidence.identity import TIES
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.inside import DUMP
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.tiny_checks import pair_of
from runners.base import EngineFailure

NODES = 31
BACKENDS = ("triton", "flashinfer")
PLAIN = Arm("autoregressive")


def tree_arm(backend: str, dump: Path, dtype: str) -> Arm:
    hooks = ("random_tree", "float32") if dtype == "float32" else ("random_tree",)
    name = f"ddtree_{backend}"
    return Arm(
        name, "ddtree", NODES, width=4, backend=backend, overlap=False, hooks=hooks, env={DUMP: str(dump.resolve())}
    )


def measure(job: Job) -> dict[str, Any]:
    """Widest and mean differences of log-probabilities by backend, and whether the best token is the same."""
    began = time.perf_counter()
    job.logs.mkdir(parents=True, exist_ok=True)
    dumps = {backend: job.logs / f"tree_{backend}.pt" for backend in job.arms or BACKENDS}
    plain = replace(PLAIN, hooks=("float32",)) if job.dtype == "float32" else PLAIN
    arms = [plain, *(tree_arm(backend, dump, job.dtype) for backend, dump in dumps.items())]
    result: dict[str, Any] = {"dtype": job.dtype, "nodes": NODES, "threshold_logits": TIES[job.dtype], "backends": {}}
    result["asked"] = list(dumps)
    with Fleet(job.python, pair_of(job.assets, job.dtype), arms, [1, 4], job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        for backend, dump in dumps.items():
            engine = fleet.engines.get(f"ddtree_{backend}")
            judge = fleet.engines.get(PLAIN.name)
            if engine is None or judge is None:
                continue
            try:
                params = {"temperature": 0.0, "max_new_tokens": 16, "ignore_eos": True}
                left = job.limit_s - (time.perf_counter() - began)
                engine.ask(prompts=job.prompts[:4], params=params, in_flight=1, timeout_s=left)
                result["backends"][backend] = compare(judge, dump, TIES[job.dtype])
            except EngineFailure as failure:
                fleet.lose(engine, failure)
                continue
            say(f"{backend}: {result['backends'][backend]}")
            job.save(result)
    return result


def compare(judge: Any, dump: Path, threshold: float) -> dict[str, Any]:
    """Differences over all nodes of all recorded trees, None where logits are no numbers. Raises EngineFailure."""
    import torch

    trees = torch.load(dump, weights_only=True)
    wide: list[float] = []
    sums: list[float] = []
    same = nodes = 0
    for index, tree in enumerate(trees):
        paths = [path_of(tree["tokens"], tree["parents"], tree["depths"], node) for node in entries(tree)]
        prefixes = [[*tree["prefix"][:-1], *path] for path in paths]
        answer = dump.with_suffix(f".{index}.npy").resolve()
        judge.ask(verb="logprobs", prefixes=prefixes, path=str(answer))
        expected = torch.from_numpy(_load(answer))
        found = tree["logits"][entries(tree)].log_softmax(dim=-1)
        words = min(found.shape[1], expected.shape[1])
        apart = (found[:, :words] - expected[:, :words]).abs()
        likely = expected[:, :words] > -10.0  # a token of no weight may be off by more than one that matters
        wide += [float(each[mask].max()) for each, mask in zip(apart, likely, strict=True)]
        sums += [float(each[mask].mean()) for each, mask in zip(apart, likely, strict=True)]
        same += int((found.argmax(-1) == expected.argmax(-1)).sum())
        nodes += len(paths)
    widest = max(wide) if all(map(math.isfinite, wide)) else None
    return {
        "trees": len(trees),
        "nodes": nodes,
        "in_graph": all(tree["graph"] for tree in trees),
        "widest_difference": widest,
        "mean_difference": None if widest is None else sum(sums) / len(sums),
        "same_best_token": same / nodes,
        "within_threshold": widest is not None and widest <= threshold,
        "deepest": max(max(tree["depths"]) for tree in trees),
    }


def entries(tree: dict[str, Any]) -> list[int]:
    """The root and all nodes that are none of the padding."""
    return [0, *(node for node, parent in enumerate(tree["parents"]) if parent >= 0)]


def path_of(tokens: list[int], parents: list[int], depths: list[int], node: int) -> list[int]:
    """Tokens from the root, itself first, down to a node."""
    path = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return path[::-1]


def _load(path: Path) -> Any:
    import numpy as np

    return np.load(path)
