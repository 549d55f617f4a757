"""Tokens per second of the reference engine over the published DDTree implementation, at batch 1, on the same weights.

Both decode the same prompts greedily in this process, over the very same target (attention by sdpa); the published one
is imported from a checkout that you name, with its own drafter module and its own loop, nothing of it changed (but for
its clock where there is no CUDA). The two are interleaved by repetition, the first turning, so that a machine that
warms up or is shared slows both. `tokens/s` is (output tokens - 1) / (finish - first token), summed over the prompts of
a repetition: decoding without prefill, by the same clock and the same definition for both, the first drafter pass
included. A row's ratio is taken within a repetition; shown are its median, lowest and highest. The ratio of the whole
is that of the fastest tree of one over the fastest tree of the other, whatever the budgets.

    python benchmarks/rival_speed.py --checkout DIR                                    # the packaged pair, on the CPU
    python benchmarks/rival_speed.py --checkout DIR --device cuda --dtype bfloat16
    python benchmarks/rival_speed.py --checkout DIR --device cuda --dtype bfloat16 --untrained qwen3_8b
    python benchmarks/rival_speed.py --checkout DIR --device cuda --dtype bfloat16 --target Qwen/Qwen3-8B \
        --dflash z-lab/Qwen3-8B-DFlash-b16

`--untrained` has random weights of a published pair's size: almost nothing is accepted, so that it shows what a round
costs, not what it gains. The last line on standard output is one JSON object with every number. With `--evidence` the
file is written anew after every strategy, so that a run that is broken off leaves what it had; `left` names the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import ddbench
from benchmarks.decode_requests import make_requests
from benchmarks.rival_pairs import checkpoint_pair, untrained_pair
from ddbench.decoding import Generation, KeptGraphs, ModelPair, Request, Strategy, decode
from ddbench.errors import ConfigError
from ddbench.storage import write_whole
from runners.machine import machine_facts, version
from runners.published.code import Answer, PublishedCode
from runners.published.options import PublishedOptions

ASSETS = Path(ddbench.__file__).parent / "assets"
GOAL = 1.5
STAGES = {  # of a round: of the reference engine's records, and of the published code's sums
    "draft": ("draft_s", ("draft",)),
    "build": ("build_s", ("tree_build", "tree_compile")),
    "verify": ("verify_s", ("verify",)),
    "commit": ("commit_s", ("commit",)),
}


@dataclass
class Arm:
    """One strategy on both, with what each repetition gave; none where the time was over before it."""

    strategy: Strategy
    ours: list[list[Generation]] = field(default_factory=list)
    theirs: list[list[Answer]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " ".join(str(each) for each in (self.strategy.name, self.strategy.nodes) if each is not None)

    def row(self) -> dict[str, Any]:
        own = [speed(each) for each in self.ours]
        other = [speed([answer.generation for answer in each]) for each in self.theirs]
        ratios = [one / two for one, two in zip(own, other, strict=True)]
        pairs = list(zip(self.ours[0], [answer.generation for answer in self.theirs[0]], strict=True))
        mine, its = ([each for pair in pairs for each in pair[side].rounds] for side in (0, 1))
        return {
            "strategy": self.strategy.name,
            "nodes": self.strategy.nodes,
            "repetitions": len(ratios),
            "reference_tokens_per_s": statistics.median(own),
            "published_tokens_per_s": statistics.median(other),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "same_text_share": share(a.output_token_ids == b.output_token_ids for a, b in pairs),
            "same_rounds_share": share(accepted(a) == accepted(b) for a, b in pairs),
            "reference_accepted_per_round": mean([each.accepted_raw for each in mine]),
            "published_accepted_per_round": mean([each.accepted_raw for each in its]),
            "reference_round_ms": self._ours_ms(),
            "published_round_ms": self._theirs_ms(),
        }

    def _ours_ms(self) -> dict[str, float | None]:
        """Milliseconds of a round by stage, over all repetitions."""
        rounds = [each for repetition in self.ours for answer in repetition for each in answer.rounds]
        return {name: mean([1e3 * getattr(each, mine) for each in rounds]) for name, (mine, _) in STAGES.items()}

    def _theirs_ms(self) -> dict[str, float | None]:
        """The same by its own stage clock, which leaves out the first drafter pass of an answer; none of a loop
        without drafts."""
        answers = [answer for repetition in self.theirs for answer in repetition if answer.generation.rounds]
        rounds = sum(len(answer.generation.rounds) + answer.surplus_rounds for answer in answers)
        total = {
            name: sum(answer.stages_s.get(part, 0.0) for answer in answers for part in parts)
            for name, (_, parts) in STAGES.items()
        }
        return {name: 1e3 * seconds / rounds if rounds else None for name, seconds in total.items()}


def speed(answers: Sequence[Generation]) -> float:
    tokens = sum(len(each.output_token_ids) - 1 for each in answers)
    return tokens / sum(each.finish_s - each.first_token_s for each in answers)


def accepted(answer: Generation) -> list[int]:
    return [each.accepted_raw for each in answer.rounds]


def share(same: Iterable[bool]) -> float:
    found = list(same)
    return sum(found) / len(found)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def best_trees(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each side at the budget that is fastest for it: a user would run that one of either.

    ``ratio``: median tokens/s of the reference engine's fastest tree over those of the published code's fastest, which
    are ``reference_nodes`` and ``published_nodes``. ``ratio_lowest`` and ``ratio_highest``: of the rows, both sides at
    the same budget. All None where no tree was run.
    """
    trees = [row for row in rows if row["strategy"] == "ddtree"]
    if not trees:
        names = ("ratio", "reference_nodes", "published_nodes", "ratio_lowest", "ratio_highest")
        return dict.fromkeys(names)
    own, other = (max(trees, key=lambda row: row[f"{side}_tokens_per_s"]) for side in ("reference", "published"))
    return {
        "ratio": own["reference_tokens_per_s"] / other["published_tokens_per_s"],
        "reference_nodes": own["nodes"],
        "published_nodes": other["nodes"],
        "ratio_lowest": min(row["ratio"] for row in trees),
        "ratio_highest": max(row["ratio"] for row in trees),
    }


def say_best(best: dict[str, Any]) -> None:
    if best["ratio"] is not None:
        print(
            f"\nbest tree over best tree: {best['ratio']:.2f} (reference {best['reference_nodes']} nodes, published "
            f"{best['published_nodes']}); at equal nodes {best['ratio_lowest']:.2f} to {best['ratio_highest']:.2f}"
        )


def main() -> int:
    began, options = time.perf_counter(), parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    try:
        with TemporaryDirectory(prefix="ddbench-") as scratch:
            if options.untrained:
                pair, drafter = untrained_pair(options.untrained, Path(scratch), options.device, options.dtype)
            else:
                pair, drafter = checkpoint_pair(options.target, options.dflash, options.device, options.dtype)
            code = PublishedCode(told(options), pair, drafter)
        requests = make_requests(pair, options)
        progress(began, f"models and code of both ready, {len(requests)} requests")
        arms = arms_of(options)
        for arm in measure(pair, code, requests, arms, options, began):
            rows.append(arm.row())
            data = record(code, pair, options, rows, [each.name for each in arms if not each.theirs])
            if options.evidence is not None:
                write_evidence(options.evidence, data)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(rows)
    say_best(data)
    if data["left"]:
        print(f"not measured within --limit-s {options.limit_s:g}: {', '.join(data['left'])}")
    print(json.dumps(data))
    return 0


def progress(began: float, text: str) -> None:
    print(f"{time.perf_counter() - began:6.1f} s: {text}", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, help="folder of the published implementation (docs/rivals.md)")
    parser.add_argument("--target", default=str(ASSETS / "target"), help="folder or Hugging Face id")
    parser.add_argument("--dflash", default=str(ASSETS / "dflash"), help="folder or Hugging Face id")
    parser.add_argument("--untrained", help="random weights of this size instead: qwen3_4b, qwen3_8b or small")
    parser.add_argument("--prompts", default=str(ASSETS / "prompts.jsonl"), help="JSON lines with id and turns")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=128, help="prompts are cut to their last tokens")
    parser.add_argument("--nodes", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; default: its own choice")
    parser.add_argument(
        "--graphs", action="store_true", help="the reference engine replays its passes from CUDA graphs"
    )
    parser.add_argument("--no-extension", action="store_true", help="without its compiled cache compaction")
    parser.add_argument("--evidence", type=Path, help="file to write for docs/evidence, after every strategy")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=math.inf,
        help="seconds after which no further repetition begins; one of the first strategy is measured in any case",
    )
    return parser.parse_args()


def told(options: argparse.Namespace) -> PublishedOptions:
    """As its authors run it, as far as this environment has what that takes."""
    cuda = options.device != "cpu"
    flash = cuda and options.dtype == "bfloat16" and find_spec("flash_attn") is not None
    compiled = cuda and not options.no_extension
    return PublishedOptions(options.checkout, "flash_attention_2" if flash else "sdpa", compiled)


def arms_of(options: argparse.Namespace) -> list[Arm]:
    trees = [Strategy("ddtree", nodes=nodes) for nodes in options.nodes]
    return [Arm(strategy) for strategy in (Strategy("autoregressive"), Strategy("dflash"), *trees)]


def measure(
    pair: ModelPair,
    code: PublishedCode,
    requests: Sequence[Request],
    arms: Sequence[Arm],
    options: argparse.Namespace,
    began: float,
) -> Iterator[Arm]:
    """Both, strategy by strategy, interleaved after one unmeasured answer of each; an arm as it has been measured.

    Raises:
        ConfigError: an answer of the published code that does not fit its rounds.
    """
    kept = KeptGraphs(max(len(each.token_ids) + each.max_new_tokens for each in requests))
    graphs = kept if options.graphs else False
    limit_s: float = options.limit_s

    def ours(arm: Arm, asked: Sequence[Request]) -> Callable[[], Any]:
        return lambda: decode(pair, arm.strategy, asked, 1, graphs=graphs)

    def theirs(arm: Arm, asked: Sequence[Request]) -> Callable[[], Any]:
        start = time.perf_counter()
        return lambda: [code.answer(arm.strategy, request, time.perf_counter, start) for request in asked]

    def over() -> bool:
        return time.perf_counter() - began > limit_s

    for number, arm in enumerate(arms):
        if number and over():
            return
        for run in (ours(arm, requests[:1]), theirs(arm, requests[:1])):
            run()
        progress(began, f"{arm.name}: warm")
        for repetition in range(options.repetitions):
            if repetition and over():
                break
            both: list[tuple[list[Any], Callable[[], Any]]]
            both = [(arm.ours, ours(arm, requests)), (arm.theirs, theirs(arm, requests))]
            for answers, run in both if repetition % 2 == 0 else both[::-1]:
                answers.append(run())
        progress(began, f"{arm.name}: {len(arm.theirs)} repetitions")
        wrong = [answer.generation.error for answer in arm.theirs[0] if answer.generation.error]
        if wrong:
            raise ConfigError("--checkout", str(code.checkout.folder), f"answers that fit their rounds ({wrong[0]})")
        yield arm


def record(
    code: PublishedCode,
    pair: ModelPair,
    options: argparse.Namespace,
    rows: Sequence[dict[str, Any]],
    left: Sequence[str],
) -> dict[str, Any]:
    """All that is known so far; ``left`` are the strategies that have no row (yet)."""
    told = {"benchmark": "rival_speed", **facts(code, pair, options), "goal": GOAL}
    return {**told, "rows": list(rows), "left": list(left), **best_trees(rows)}


def facts(code: PublishedCode, pair: ModelPair, options: argparse.Namespace) -> dict[str, Any]:
    checkout, cuda = code.checkout, pair.device.type == "cuda"
    return {
        "published": {"commit": checkout.commit, "changed": checkout.changed, "licence": checkout.licence},
        "published_drafter_attention": told(options).drafter_attention,
        "published_extension": told(options).compiled_compaction,
        "reference_graphs": options.graphs,
        "processor": platform.processor() or platform.machine(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(pair.device) if cuda else None,
        "dtype": options.dtype,
        "versions": {name: version(name) for name in ("ddbench", "torch", "transformers", "flash_attn")},
        "target": f"untrained {options.untrained}" if options.untrained else Path(options.target).name,
        "requests": options.requests,
        "new_tokens": options.new_tokens,
        "prompt_tokens": options.prompt_tokens,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    print("| strategy | reference tokens/s | published tokens/s | ratio (low - high) | accepted a round | same text |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        name = row["strategy"] + (f" {row['nodes']}" if row["nodes"] else "")
        both = [row[f"{side}_accepted_per_round"] for side in ("reference", "published")]
        taken = "" if None in both else f"{both[0]:.2f} / {both[1]:.2f}"
        ratio = f"{row['ratio']:.2f} ({row['ratio_low']:.2f} - {row['ratio_high']:.2f})"
        speeds = f"{row['reference_tokens_per_s']:.1f} | {row['published_tokens_per_s']:.1f}"
        print(f"| {name} | {speeds} | {ratio} | {taken} | {row['same_text_share']:.2f} |")
    print("\nmilliseconds of a round, reference / published, each by its own stage clock:")
    for row in rows:
        ours, theirs = row["reference_round_ms"], row["published_round_ms"]
        if all(ours[name] is not None and theirs[name] is not None for name in STAGES):
            parts = ", ".join(f"{name} {ours[name]:.2f} / {theirs[name]:.2f}" for name in STAGES)
            print(f"  {row['strategy']} {row['nodes'] or ''}: {parts}")


def write_evidence(path: Path, data: dict[str, Any]) -> None:
    machine = machine_facts()
    evidence = {
        "command": shlex.join(["python", "benchmarks/rival_speed.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": data["gpu"],
        "driver": machine["driver"],
        "versions": data["versions"],
        "measured": {key: value for key, value in data.items() if key not in ("gpu", "versions")},
        "notes": (
            "Batch 1, greedy, both over the same target in one process. tokens_per_s leaves prefill out. ratio is the "
            "reference engine's tokens/s over the published implementation's, each at the budget that is fastest for "
            "it (reference_nodes, published_nodes); each row has its own, at equal nodes and within repetitions. Of "
            "untrained weights almost nothing is accepted, so that a ratio there is that of a round's time."
        ),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
