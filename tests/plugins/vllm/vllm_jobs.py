"""What the tests ask of a vLLM engine, and what it answers: a job is one engine, its cases run in it one by one.

The tests themselves never import vLLM: jobs and results travel as JSON to and from `vllm_host`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parents[3] / "ddbench" / "assets"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Requests that run together: a prompt and sampling parameters (vLLM's names) for each.

    ``in_flight`` holds back requests so that no more run at a time. ``abort`` maps a request's index to the tokens
    after which it is aborted. ``plant`` names a fault of `vllm_mutations` that is active while the case runs.
    """

    name: str
    prompts: tuple[Tokens, ...]
    params: tuple[dict[str, Any], ...]
    in_flight: int = 4
    abort: dict[str, int] = field(default_factory=dict)
    plant: str | None = None


@dataclass(frozen=True)
class Job:
    """One engine. ``method``: autoregressive, chain (stock DFlash) or tree; ``tree``: the additional_config group."""

    method: str
    cases: tuple[Case, ...]
    nodes: int = 16
    tree: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """One sequence: its tokens and why it ended."""

    token_ids: Tokens
    text: str
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class Line:
    """One verified row of the trace: local indices of the path taken, 0 first."""

    request: int
    nodes: int
    path: Tokens


@dataclass(frozen=True)
class Outcome:
    """What a case gave: ``outputs`` by request, then by sequence; None for a request that was aborted.

    ``refused`` holds the reason for each request that the engine would not take. ``counters`` are differences of the
    engine's own. ``skipped`` counts rounds in which a running request was left out, ``most`` the requests that ran at
    once at most.
    """

    outputs: tuple[tuple[Output, ...] | None, ...]
    cached_tokens: tuple[int | None, ...]
    refused: dict[str, str]
    counters: dict[str, float]
    accepted_per_position: Tokens
    trace: tuple[Line, ...]
    skipped: int
    most: int
    lookahead: int

    @property
    def token_ids(self) -> list[Tokens | None]:
        """Tokens of each request's first sequence."""
        return [None if sequences is None else sequences[0].token_ids for sequences in self.outputs]

    def paths(self, request: int) -> list[Tokens]:
        """The paths that one request took, round by round."""
        return [line.path for line in self.trace if line.request == request]


class EngineHost:
    """The process of `vllm_host`, and the results it has given so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: dict[str, dict[str, Outcome]] = {}
        self._started = 0
        self._process: subprocess.Popen[str] | None = None

    def run(self, job: Job) -> dict[str, Outcome]:
        """Outcomes by case name. Raises RuntimeError with the end of the engine's log when it died."""
        text = json.dumps(asdict(job), sort_keys=True)
        if text not in self._done:
            self._done[text] = self._run(text)
        return self._done[text]

    def _run(self, text: str) -> dict[str, Outcome]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("vllm_host.py")), str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder = self._folder / f"job{self._started}"
        self._started += 1
        folder.mkdir()
        (folder / "job.json").write_text(text)
        self._process.stdin.write(folder.name + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        if status != "0":
            log = (folder / "log").read_text(errors="replace") if (folder / "log").exists() else ""
            raise RuntimeError(f"engine ended with {status or 'its host'}: ...{log[-4000:]}")
        return {name: _outcome(found) for name, found in json.loads((folder / "result.json").read_text()).items()}

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)


def _outcome(found: dict[str, Any]) -> Outcome:
    lines = tuple(Line(line["request"], line["nodes"], tuple(line["path"])) for line in found.pop("trace"))
    outputs = tuple(
        None if sequences is None else tuple(Output(tuple(one.pop("token_ids")), **one) for one in sequences)
        for sequences in found.pop("outputs")
    )
    positions = tuple(found.pop("accepted_per_position"))
    return Outcome(outputs=outputs, trace=lines, accepted_per_position=positions, **found)


@cache
def prompt_tokens() -> tuple[Tokens, ...]:
    """The held-out prompts of the tiny models, as token ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ASSETS / "target" / "tokenizer.json"))
    lines = (ASSETS / "prompts.jsonl").read_text().splitlines()
    return tuple(tuple(tokenizer.encode(json.loads(line)["turns"][0]).ids) for line in lines)


def greedy(max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": max_tokens, **more}
