"""From units to tokens: the training stream, training prompts, and held-out prompts by category."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from experiments.train_tiny.config import CorpusConfig
from experiments.train_tiny.corpus import CATEGORIES, Source, Unit

MIN_PROMPT, MAX_PROMPT = 16, 96  # tokens


@dataclass(frozen=True)
class Prompt:
    """The beginning of a held-out unit, cut at the end of a line."""

    source: str
    category: str
    text: str
    token_ids: tuple[int, ...]


def token_stream(tokenizer: Tokenizer, units: Sequence[Unit], seed: int, end_id: int) -> NDArray[np.uint32]:
    """All units in shuffled order, each ended by the end-of-text token, as one row of ids."""
    order = list(units)
    random.Random(seed).shuffle(order)
    pieces: list[NDArray[np.uint32]] = []
    for start in range(0, len(order), 8192):
        encoded = tokenizer.encode_batch_fast(
            [unit.text for unit in order[start : start + 8192]], add_special_tokens=False
        )
        pieces.extend(np.array([*item.ids, end_id], dtype=np.uint32) for item in encoded)
    return np.concatenate(pieces)


def unit_starts(stream: NDArray[np.uint32], end_id: int, min_tokens: int) -> NDArray[np.int64]:
    """Offsets in the stream at which a unit of at least ``min_tokens`` tokens begins."""
    ends = np.flatnonzero(stream == end_id)
    starts = np.concatenate(([0], ends[:-1] + 1))
    long_enough: NDArray[np.int64] = starts[ends - starts >= min_tokens]
    return long_enough


def held_out_prompts(tokenizer: Tokenizer, units: Sequence[Unit], per_category: int, seed: int) -> list[Prompt]:
    """Up to ``per_category`` prompts of every category, spread over the held-out distributions."""
    rng = random.Random(seed)
    chosen: list[Prompt] = []
    for category in CATEGORIES:
        by_source: dict[str, list[Unit]] = {}
        for unit in units:
            if unit.category == category:
                by_source.setdefault(unit.source, []).append(unit)
        for pool in by_source.values():
            rng.shuffle(pool)
        chosen.extend(_spread(tokenizer, [by_source[name] for name in sorted(by_source)], per_category))
    return chosen


def write_prompts(
    tokenizer: Tokenizer,
    held: Sequence[Unit],
    sources: Mapping[str, Source],
    config: CorpusConfig,
    seed: int,
    output: Path,
) -> list[Prompt]:
    """Writes ``prompts.jsonl`` and ``warmup.jsonl``; returns the prompts of the quality bar: all but the warm-up's."""
    shipped = config.prompts_per_category + config.warmup_per_category
    per_category = max(shipped, config.warmup_per_category + config.evaluation_prompts // len(CATEGORIES) + 1)
    found = held_out_prompts(tokenizer, held, per_category, seed)
    evaluation: list[Prompt] = []
    rows: dict[str, list[str]] = {"prompts": [], "warmup": []}
    for category in CATEGORIES:
        group = [prompt for prompt in found if prompt.category == category]
        evaluation.extend(group[: config.prompts_per_category] + group[shipped:])
        for index, prompt in enumerate(group[:shipped]):
            kind = "prompts" if index < config.prompts_per_category else "warmup"
            origin = sources[prompt.source]
            record = {
                "id": f"{category}-{index:02d}",
                "dataset": "held_out",
                "category": category,
                "turns": [prompt.text],
                "meta": {"source": origin.name, "version": origin.version, "licence": origin.licence},
            }
            rows[kind].append(json.dumps(record))
    for kind, lines in rows.items():
        (output / f"{kind}.jsonl").write_text("\n".join(lines) + "\n")
    return evaluation


def _spread(tokenizer: Tokenizer, pools: list[list[Unit]], count: int) -> list[Prompt]:
    """Takes prompts from the pools in turn until ``count`` are found or the pools are empty."""
    found: list[Prompt] = []
    heads: set[str] = set()
    while len(found) < count and any(pools):
        for pool in pools:
            prompt = _cut(tokenizer, pool.pop()) if pool else None
            if prompt is None or prompt.text in heads or len(found) >= count:
                continue
            heads.add(prompt.text)
            found.append(prompt)
    return found


def _cut(tokenizer: Tokenizer, unit: Unit) -> Prompt | None:
    """The first lines of a unit, about 40 % of its tokens within the limits; None when it is too short."""
    lines = unit.text.splitlines(keepends=True)
    total = len(tokenizer.encode(unit.text, add_special_tokens=False).ids)
    wanted = min(max(int(0.4 * total), MIN_PROMPT), MAX_PROMPT)
    text = ""
    for line in lines:
        text += line
        if len(tokenizer.encode(text, add_special_tokens=False).ids) >= wanted:
            break
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not MIN_PROMPT <= len(ids) <= MAX_PROMPT + 32 or total - len(ids) < 16:
        return None
    return Prompt(unit.source, unit.category, text, tuple(ids))
