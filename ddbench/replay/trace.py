"""What is recorded of a request: at every place where a round may begin, what the drafter offers and what comes next.

An *anchor* is a token of the output from which a round may start: the round's bonus token, after which the drafter's
block is drafted. Anchor i is output token i; the drafter has seen the prompt and the output before it. An output of n
tokens has the anchors 0 to n - 2: none starts at the last token, where decoding has ended.

One safetensors file a request::

    log_probs  float32 [anchors, depth, k]  the drafter's k best log-probabilities for the token d places on, d from 1
    ranks      int16   [anchors, depth]     place of the token that the target emits there among those k, or -1
    output     int32   [n]                  the output, first token (from prefill) included, cut as the request says
    tail       int32   [<= depth - 1]       what the target says after it, as far as a last round could look

and text metadata (:class:`Request` fields, ``schema``, ``setup``: a hash of what the recording was made with).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.errors import ConfigError

SCHEMA = 1  # of the files; a reader refuses any other

Floats32 = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Key:
    """Which request a trace is of. ``seed`` is the one it was sampled with; at temperature 0 it decides nothing."""

    prompt_id: str
    turn: int
    dataset: str
    category: str
    repeat: int
    seed: int
    temperature: float


@dataclass(frozen=True)
class Trace:
    """One recorded request; the arrays are those of the file.

    ``disagreements``: output tokens that a second pass of the target, over the whole text at once, would have chosen
    otherwise. It sums in another order than decoding does, so that they are near-ties, or a fault. None: there was no
    second pass.
    """

    key: Key
    prompt_tokens: int
    finish_reason: str
    disagreements: int | None
    log_probs: Floats32
    ranks: Ints
    output: Ints
    tail: Ints

    @property
    def anchors(self) -> int:
        return int(self.log_probs.shape[0])


@dataclass(frozen=True)
class TraceSet:
    """Traces laid end to end. Request r has the anchors ``starts[r]`` to ``ends[r] - 1`` and ends[r] - starts[r] + 1
    output tokens; ``log_probs`` are at most 0.
    """

    traces: tuple[Trace, ...]
    log_probs: Floats32  # [anchors, depth, k]
    ranks: Ints  # [anchors, depth]
    starts: Ints  # [requests]
    ends: Ints  # [requests]
    context: Ints  # [anchors]: committed tokens before the anchor, prompt included

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> TraceSet:
        """Raises ConfigError for no trace, or for traces of different depth or k."""
        found = tuple(traces)
        shapes = {trace.log_probs.shape[1:] for trace in found}
        if len(shapes) != 1:
            raise ConfigError("traces", sorted(shapes), "at least one trace, all of one depth and k")
        counts = np.array([trace.anchors for trace in found], dtype=np.int64)
        ends = counts.cumsum()
        lengths = [trace.prompt_tokens + np.arange(trace.anchors) for trace in found]
        return cls(
            traces=found,
            log_probs=np.minimum(np.concatenate([trace.log_probs for trace in found]), np.float32(0.0)),
            ranks=np.concatenate([trace.ranks for trace in found]).astype(np.int64),
            starts=ends - counts,
            ends=ends,
            context=np.concatenate(lengths).astype(np.int64),
        )

    @property
    def depth(self) -> int:
        """Tokens that the drafter proposes."""
        return int(self.log_probs.shape[1])

    @property
    def k(self) -> int:
        """Candidates recorded a depth: the largest budget that can be replayed."""
        return int(self.log_probs.shape[2])

    @property
    def anchors(self) -> int:
        return int(self.log_probs.shape[0])


def save_trace(path: Path, trace: Trace, setup: str) -> None:
    """Writes a trace whole or not at all. ``setup``: a hash of what it was recorded with."""
    from safetensors.numpy import save

    said = {
        **asdict(trace.key),
        "prompt_tokens": trace.prompt_tokens,
        "finish_reason": trace.finish_reason,
        "disagreements": trace.disagreements,
    }
    arrays = {
        "log_probs": trace.log_probs.astype(np.float32),
        "ranks": trace.ranks.astype(np.int16),
        "output": trace.output.astype(np.int32),
        "tail": trace.tail.astype(np.int32),
    }
    metadata = {"schema": str(SCHEMA), "setup": setup, "request": json.dumps(said)}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata=metadata))
    draft.replace(path)


def load_trace(path: Path) -> Trace:
    """Reads a trace. Raises ConfigError for a file that is none, or one of another schema."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as stream:
            metadata: dict[str, str] = stream.metadata() or {}
            schema = metadata["schema"]
            arrays = {name: stream.get_tensor(name) for name in ("log_probs", "ranks", "output", "tail")}
            said: dict[str, Any] = json.loads(metadata["request"])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ConfigError("trace", str(path), f"a recorded trace, whole ({type(error).__name__})") from None
    if schema != str(SCHEMA):
        raise ConfigError("trace", f"{path.name}, schema {schema}", f"schema {SCHEMA}")
    rest = {name: said.pop(name) for name in ("prompt_tokens", "finish_reason", "disagreements")}
    return Trace(key=Key(**said), **rest, **arrays)


def setup_of(path: Path) -> str | None:
    """What a stored trace was recorded with; None where there is no whole trace of this schema."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as stream:
            metadata: dict[str, str] = stream.metadata() or {}
    except (OSError, SafetensorError):
        return None
    return metadata.get("setup") if metadata.get("schema") == str(SCHEMA) else None


def ranks_of(candidates: Ints, tokens: Sequence[int]) -> Ints:
    """Places of the emitted tokens among the drafter's candidates: ``[anchors, depth]``, -1 for none.

    Args:
        candidates: token ids ``[anchors, depth, k]``; those of anchor i at depth d are for token i + d.
        tokens: output and tail; what lies past their end matches nothing.
    """
    anchors, depth, _ = candidates.shape
    known = np.full(anchors + depth, -1, dtype=np.int64)
    text = np.asarray(tokens[: anchors + depth], dtype=np.int64)
    known[: len(text)] = text
    place = np.arange(anchors)[:, None] + np.arange(1, depth + 1)
    matches = candidates == known[place][:, :, None]
    found: Ints = np.where(matches.any(2), matches.argmax(2), -1)
    return found
