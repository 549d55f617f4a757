"""Conversations with several turns: what is answered to the earlier turns is recorded once, and is then fixed.

The answers come from autoregressive decoding at temperature 0, before any cell is measured. A turn is then a request of
its own with one list of messages in every arm, at every batch size and temperature. Answers stand in
``contexts/<key>.json`` of the run folder, the key being all that decides them but rounding errors; a run that goes on
takes up those that are there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ddbench.errors import ConfigError
from ddbench.records import Arm, Cell, content_hash
from ddbench.storage import write_whole
from experiments.plan import Facts
from experiments.progress import say, warn
from experiments.settings import Settings
from experiments.workloads.choose import prompts_hash
from runners.base import CellJob, EngineFailure, Prompt, Runner

Answers = dict[tuple[str, int], str]  # by prompt and turn


@dataclass(frozen=True)
class ContextFile:
    """What a run's contexts are, and where they stand. ``needs`` decides the answers, and its hash is the key."""

    path: Path
    needs: dict[str, Any]
    prompts: tuple[Prompt, ...]

    def read(self) -> Answers:
        """The answers that are there, of a run that was interrupted perhaps not all; none of a damaged file."""
        if not self.path.exists():
            return {}
        try:
            return _read(self.path)[1]
        except (OSError, ValueError, KeyError, TypeError):
            warn(f"{self.path} is damaged: its answers are recorded again")
            return {}

    def given(self, other: str) -> Answers:
        """The answers that another run recorded.

        Raises:
            ConfigError: a file that does not hold them all, or holds those of something else.
        """
        try:
            needs, answers = _read(Path(other).expanduser())
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError("workload.contexts", other, "a file contexts/<key>.json of a run, or null") from None
        differing = [name for name in self.needs if needs.get(name) != self.needs[name]]
        if differing:
            raise ConfigError("workload.contexts", other, f"contexts of the same {', '.join(differing)}")
        if missing(self.prompts, answers):
            raise ConfigError("workload.contexts", other, "contexts that are whole")
        return answers

    def write(self, answers: Answers, recorded_by: object) -> None:
        rows = [{"prompt_id": name, "turn": turn, "text": text} for (name, turn), text in answers.items()]
        data = {"needs": self.needs, "recorded_by": recorded_by, "answers": rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Talk:
    """What a run asks: prompts with all their turns, and the answers to earlier turns that are known.

    ``file`` is None where every prompt has one turn.
    """

    prompts: tuple[Prompt, ...]
    answers: Answers
    file: ContextFile | None = None

    @property
    def several(self) -> bool:
        """Whether any prompt has a second turn."""
        return any(len(prompt.turns) > 1 for prompt in self.prompts)

    @property
    def whole(self) -> bool:
        """Whether all that is asked is known."""
        return not missing(self.prompts, self.answers)

    @property
    def requests(self) -> tuple[Prompt, ...]:
        """Every turn as a request."""
        return requests(self.prompts, self.answers)

    def told(self, facts: Facts) -> Facts:
        """The facts of a plan with what is asked."""
        return replace(facts, prompts_hash=prompts_hash(self.requests), prompts=len(self.requests))

    def recorded(self, runner: Runner, settings: Settings, arm: Arm) -> Talk:
        """With the answers that were missing, from the started engine (:func:`record`)."""
        assert self.file is not None
        return replace(self, answers=record(self.file, runner, settings, arm))

    def keep(self) -> None:
        """Writes answers that another run recorded into this one's folder."""
        if self.file is not None and self.whole and not self.file.path.exists():
            self.file.write(self.answers, "workload.contexts")


def first_turns(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The first turn of every prompt."""
    return tuple(replace(prompt, turns=prompt.turns[:1]) for prompt in prompts)


def context_file(run: Path, prompts: Sequence[Prompt], settings: Settings, arm: Arm) -> ContextFile:
    """Where the contexts of these prompts stand in the folder of a run; ``arm`` is any of its arms."""
    several = tuple(prompt for prompt in prompts if len(prompt.turns) > 1)
    needs = {
        "prompts": prompts_hash(several),
        "target": arm.target,
        "target_revision": arm.target_revision,
        "dtype": arm.flags["dtype"],
        "template": arm.flags["template"],
        "template_hash": arm.flags["template_hash"],
        "thinking": arm.flags["thinking"],
        "ignore_eos": arm.flags["ignore_eos"],
        "seed": settings.seed,
        "max_new_tokens": settings.load.max_new_tokens,
    }
    return ContextFile(run / "contexts" / f"{content_hash(needs)}.json", needs, several)


def requests(prompts: Sequence[Prompt], answers: Mapping[tuple[str, int], str]) -> tuple[Prompt, ...]:
    """Every turn of every prompt as a request; an answer that is not known is empty."""
    return tuple(
        replace(
            prompt,
            turns=prompt.turns[: turn + 1],
            answers=tuple(answers.get((prompt.id, before), "") for before in range(turn)),
        )
        for prompt in prompts
        for turn in range(len(prompt.turns))
    )


def missing(prompts: Sequence[Prompt], answers: Mapping[tuple[str, int], str]) -> bool:
    """Whether an answer to an earlier turn is still to be recorded."""
    return any((p.id, turn) not in answers for p in prompts for turn in range(len(p.turns) - 1))


def record(file: ContextFile, runner: Runner, settings: Settings, arm: Arm) -> Answers:
    """Has the started engine answer all turns but the last, turn by turn, each turn stored before the next.

    Raises:
        ConfigError: a conversation that leaves too little room.
        EngineFailure: the engine is gone, or a request failed.
    """
    answers = file.read()
    plain = _autoregressive(arm)
    for turn in range(max(len(prompt.turns) for prompt in file.prompts) - 1):
        asked = [
            request
            for request in requests([p for p in file.prompts if len(p.turns) > turn + 1], answers)
            if request.turn == turn and (request.id, turn) not in answers
        ]
        if asked:
            say(f"recording the answers to turn {turn + 1} of {len(asked)} conversations, autoregressive and greedy")
            answers |= _answers(runner, tuple(asked), _cell(settings, plain, asked), file.path)
            file.write(answers, asdict(plain))
    return answers


def _answers(runner: Runner, asked: tuple[Prompt, ...], cell: Cell, path: Path) -> Answers:
    runner.ask(asked)
    folder = path.parent / f".{path.stem}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = runner.run_cell(CellJob(cell, folder, cell.arm.flags["warmup_tokens"]), lambda done, total: None)
    if outcome.status == "failed":
        raise EngineFailure(f"the answers to earlier turns cannot be recorded: {outcome.reason} (see {folder})")
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    texts = runner.texts([row["output_token_ids"] for row in rows])
    shutil.rmtree(folder)
    return {(row["prompt_id"], row["turn"]): text for row, text in zip(rows, texts, strict=True)}


def _autoregressive(arm: Arm) -> Arm:
    """The arm without speculation that shares all else."""
    return replace(
        arm,
        strategy="autoregressive",
        width=None,
        depth=None,
        nodes=None,
        force_spine=False,
        min_log_prob=None,
        drafter=None,
        drafter_revision=None,
    )


def _cell(settings: Settings, arm: Arm, asked: Sequence[Prompt]) -> Cell:
    return Cell(
        arm=arm,
        workload=settings.workload.name,
        prompts_hash=prompts_hash(asked),
        prompts=len(asked),
        batch_size=max(settings.sweep.batch_size),
        max_new_tokens=settings.load.max_new_tokens,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=settings.seed,
        repeats=1,
        block=0,
    )


def _read(path: Path) -> tuple[dict[str, Any], Answers]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["needs"], {(row["prompt_id"], row["turn"]): row["text"] for row in data["answers"]}
