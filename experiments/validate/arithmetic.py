"""From a round time seen on one GPU to what another must take: by bytes, by operations, and by what is neither.

A round is a pass through the target over ``batch * verify_width`` rows and, of a DFlash drafter, one over its block. A
pass takes at least ``max(bytes / bandwidth, operations / throughput)`` (the roofline); a measured round takes longer.
What the excess does on another GPU is not known, so there are two answers, and the truth is expected between them:

- it stays (launches, host, latencies): ``floor there + (measured - floor here)``;
- it scales (bandwidth or throughput never reached): ``measured * floor there / floor here``.

Bytes of a pass: weights without the table of input embeddings, of which a row a token is read, and the keys and values
of the context. Operations: two a weight and row.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.evidence.dummy_models import (
    HEAD,
    KV_HEADS,
    LAYERS,
    SHAPE,
    drafter_parameters,
    target_parameters,
)

BYTES = 2  # of a weight in bfloat16
BLOCK = 16
CONTEXT = 304  # tokens: a prompt of 256 and half of the answer of 96
TOLERANCE = 0.15  # beyond either answer
SERVER_MS = 1.0  # what a round may take longer when a server is asked over HTTP than inside the engine's process
EMBEDDING = int(SHAPE["vocab_size"]) * int(SHAPE["hidden_size"])


@dataclass(frozen=True)
class Card:
    """A GPU's memory bandwidth in bytes a second, and dense bfloat16 operations a second: lowest and highest."""

    bytes_per_s: tuple[float, float]
    flops_per_s: tuple[float, float]


@dataclass(frozen=True)
class Round:
    """``drafts``: whether a DFlash drafter of a block of 16 runs too."""

    batch: int
    verify_width: int
    drafts: bool


@dataclass(frozen=True)
class Work:
    """Bytes that a pass reads, and floating-point operations."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Interval:
    """Milliseconds."""

    low: float
    high: float


def passes(one: Round) -> list[Work]:
    """The passes of a round at Qwen3-8B dimensions."""
    weights = target_parameters() - EMBEDDING
    cache = one.batch * CONTEXT * 2 * LAYERS * KV_HEADS * HEAD * BYTES
    work = [Work(BYTES * weights + cache, 2.0 * weights * one.batch * one.verify_width)]
    if one.drafts:
        drafter = drafter_parameters() + EMBEDDING  # it ends in the target's output head, as large as the table
        work.append(Work(BYTES * drafter, 2.0 * drafter * one.batch * BLOCK))
    return work


def floor_ms(one: Round, bytes_per_s: float, flops_per_s: float) -> float:
    """No round takes less."""
    return 1e3 * sum(max(work.bytes / bytes_per_s, work.flops / flops_per_s) for work in passes(one))


def scaled(one: Round, seen: Interval, here: Card, there: Card) -> tuple[Interval, str]:
    """What a round takes on ``there``, and the arithmetic in words; ``seen`` is the range of repeats on ``here``."""
    floor_here = floor_ms(one, here.bytes_per_s[1], here.flops_per_s[1])
    fast = floor_ms(one, there.bytes_per_s[1], there.flops_per_s[1])
    slow = floor_ms(one, there.bytes_per_s[0], there.flops_per_s[0])
    lows = (fast + seen.low - floor_here, seen.low * fast / floor_here)
    highs = (slow + seen.high - floor_here, seen.high * slow / floor_here)
    found = Interval(max(fast, (1 - TOLERANCE) * min(lows)), (1 + TOLERANCE) * max(highs) + SERVER_MS)
    floors = f"over its floor of {floor_here:.2f}; floor here {_range(fast, slow)}"
    said = (
        f"{seen.low:g} to {seen.high:g} ms on the H200 {floors}; "
        f"{lows[0]:.1f} to {highs[0]:.1f} if the excess stays, {lows[1]:.1f} to {highs[1]:.1f} if it scales"
    )
    return found, said


def repeated(seen: Interval) -> Interval:
    """What the same GPU takes again."""
    return Interval((1 - TOLERANCE) * seen.low, (1 + TOLERANCE) * seen.high + SERVER_MS)


def _range(low: float, high: float) -> str:
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
