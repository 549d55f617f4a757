"""Every derived number, defined once, from the integers and clocks that a run stores.

All metrics of a set of requests have one of two forms. A :class:`Ratio` is the quotient of two sums over requests, so
its point value, its bootstrap over prompts and its line in the report's table of definitions come from one place. The
rest (throughput of a whole cell, acceptance by depth, lossless share) are functions below.

Conventions: ``output_tokens`` counts the token that the prefill gave, so ``output_tokens - 1`` tokens came from decode
rounds; a round emits its accepted drafted tokens plus one bonus token of the target; a value that does not exist is
None, never 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Columns of ``requests.parquet``, one entry a request, as arrays of shape [requests]; clocks in seconds.

    ``histogram`` has shape [requests, deepest + 1]: entry a counts the rounds that accepted a drafted tokens before
    clipping.
    """

    output_tokens: Floats
    rounds: Floats
    drafted: Floats
    accepted: Floats
    accepted_raw: Floats
    histogram: Floats
    start_s: Floats
    ttft_s: Floats
    latency_s: Floats

    COLUMNS: ClassVar = (
        *("output_tokens", "rounds", "drafted", "accepted", "accepted_raw"),
        *("start_s", "ttft_s", "latency_s"),
    )

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Counts:
        """From a pandas frame, a dict of lists, or any mapping from the stored column names to sequences."""
        arrays = {name: np.asarray(columns[name], dtype=np.float64) for name in cls.COLUMNS}
        return cls(**arrays, histogram=padded_histograms(list(columns["accept_histogram"])))

    @classmethod
    def joined(cls, parts: Sequence[Counts]) -> Counts:
        """The requests of several sets, one set after another."""
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.COLUMNS}
        return cls(**arrays, histogram=padded_histograms([row for part in parts for row in part.histogram]))

    @property
    def emitted(self) -> Floats:
        """Tokens that decode rounds added to the output: all but the prefill's."""
        return self.output_tokens - 1

    @property
    def decode_s(self) -> Floats:
        """Seconds from the first token to the last."""
        return self.latency_s - self.ttft_s

    @property
    def steps(self) -> Floats:
        """Target forward passes after the prefill: rounds, or decoded tokens where there are no rounds."""
        return np.where(self.rounds == 0, self.emitted, self.rounds)

    def __len__(self) -> int:
        return len(self.output_tokens)


def padded_histograms(histograms: Sequence[Sequence[int] | NDArray[Any] | None]) -> Floats:
    """Ragged acceptance histograms as one array [requests, longest], zeros at the end."""
    rows = [np.asarray([] if h is None else h, dtype=np.float64) for h in histograms]
    table = np.zeros((len(rows), max((len(row) for row in rows), default=0)))
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


# ---------------------------------------------------------------------------------------------------------------------
# Ratios of sums over requests
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """``scale * sum(numerator) / sum(denominator)`` over requests; None where the denominator is 0."""

    name: str
    unit: str
    definition: str
    numerator: Callable[[Counts], Floats]
    denominator: Callable[[Counts], Floats]
    scale: float = 1.0
    timed: bool = False  # whether clocks enter

    def terms(self, counts: Counts) -> tuple[Floats, Floats]:
        """The two addends of each request, each [requests]; ``scale`` is not in them."""
        return self.numerator(counts), self.denominator(counts)

    def __call__(self, counts: Counts) -> float | None:
        top, bottom = (float(term.sum()) for term in self.terms(counts))
        return self.scale * top / bottom if bottom > 0 and np.isfinite(top) else None


def _each(value: Floats, where: Floats) -> Floats:
    """``value / where`` a request, 0 where that does not exist."""
    return np.divide(value, where, out=np.zeros_like(value), where=where > 0)


def _ones(counts: Counts) -> Floats:
    return np.ones(len(counts))


acceptance_length = Ratio(
    "acceptance_length",
    "tokens per round",
    "sum(output_tokens - 1) / sum(rounds): tokens emitted and kept per round, bonus included, prefill token excluded",
    lambda c: np.where(c.rounds > 0, c.emitted, 0.0),
    lambda c: c.rounds,
)
acceptance_length_unclipped = Ratio(
    "acceptance_length_unclipped",
    "tokens per round",
    "1 + sum(accepted_raw) / sum(rounds): the same before the last round is cut at a stop token or the token limit",
    lambda c: c.rounds + c.accepted_raw,
    lambda c: c.rounds,
)
acceptance_length_macro = Ratio(
    "acceptance_length_macro",
    "tokens per round",
    "mean over requests of (output_tokens - 1) / rounds: each request weighs the same, however long",
    lambda c: _each(c.emitted, c.rounds),
    lambda c: (c.rounds > 0).astype(np.float64),
)
accepted_per_round = Ratio(
    "accepted_per_round",
    "tokens per round",
    "sum(accepted) / sum(rounds): drafted tokens kept in the output per round, bonus excluded",
    lambda c: c.accepted,
    lambda c: c.rounds,
)
node_efficiency = Ratio(
    "node_efficiency",
    "share",
    "sum(accepted_raw) / sum(drafted): share of the drafted nodes that the target accepted",
    lambda c: c.accepted_raw,
    lambda c: c.drafted,
)
tokens_per_s_per_user = Ratio(
    "tokens_per_s_per_user",
    "tokens/s",
    "sum(output_tokens - 1) / sum(latency - ttft): decode speed that one request sees",
    lambda c: np.where(c.emitted > 0, c.emitted, 0.0),
    lambda c: np.where(c.emitted > 0, c.decode_s, 0.0),
    timed=True,
)
tpot_ms = Ratio(
    "tpot_ms",
    "ms",
    "sum(latency - ttft) / sum(output_tokens - 1): decode time per output token",
    tokens_per_s_per_user.denominator,
    tokens_per_s_per_user.numerator,
    1000.0,
    timed=True,
)
ttft_ms = Ratio(
    "ttft_ms",
    "ms",
    "mean over requests of the time from start to first token",
    lambda c: c.ttft_s,
    _ones,
    1000.0,
    timed=True,
)
step_ms = Ratio(
    "step_ms",
    "ms",
    "sum(latency - ttft) / sum(rounds): decode time per round; for autoregressive decoding, per token",
    tokens_per_s_per_user.denominator,
    lambda c: np.where(c.emitted > 0, c.steps, 0.0),
    1000.0,
    timed=True,
)

RATIOS: tuple[Ratio, ...] = (
    acceptance_length,
    acceptance_length_unclipped,
    acceptance_length_macro,
    accepted_per_round,
    node_efficiency,
    tokens_per_s_per_user,
    tpot_ms,
    ttft_ms,
    step_ms,
)

SHORT_S = 5.0  # a steady window of this length is long enough whatever it holds ...
SHORT_TURNOVERS = 10  # ... as is one in which so many requests ended for each in flight
P99_SAMPLES = 459  # least n of which the largest exceeds the 99th percentile with 99 % certainty: 0.99 ** n <= 0.01

OTHER_DEFINITIONS: dict[str, str] = {
    "tokens_per_s": "sum(output_tokens) / (last finish - first start) of a cell: aggregate throughput with its ramps; "
    "blocks of repetition are pooled as sum of tokens over sum of spans",
    "tokens_per_s_steady": "the same between the first and the last moment at which the number of requests in flight "
    "is at its peak; a request's decode tokens are spread evenly from its first token to its last",
    "steady_window_s": f"seconds of that window, summed over blocks; steady_short marks a block's of less than "
    f"{SHORT_S:g} s in which fewer than {SHORT_TURNOVERS} requests ended per request in flight (steady_turnovers: the "
    "fewest of a block)",
    "p50_latency_ms": "percentile over requests of the time from start to last token (p90, p95; _ttft_ms: to the first "
    f"token), interpolated; p99 from {P99_SAMPLES} requests on",
    "bandwidth_ceiling_tokens_per_s": "acceptance_length (autoregressive: 1) x memory bandwidth of the GPU / bytes of "
    "the target's weights: tokens_per_s_per_user if a round took no longer than reading the target once; "
    "bandwidth_share: tokens_per_s_per_user over it",
    "speedup_vs_autoregressive": "tokens_per_s_per_user over that of the autoregressive arm, on the prompts that both "
    "finished, at the same batch size, temperature, engine, model, workload and flags",
    "speedup_vs_dflash": "the same against the deepest linear DFlash chain",
    "throughput_ratio_vs_autoregressive": "tokens_per_s over that of the autoregressive arm (_vs_dflash: the chain's)",
    "lossless_share": "requests whose token ids equal those of the autoregressive arm at the same batch size / "
    "requests compared (those that both answered); at temperature 0 only. Of the autoregressive arm itself: its "
    "further answers against its first, null where it answered once",
    "acceptance_ratio_vs_dflash": "acceptance_length over the chain's, on the prompts that both finished "
    "(acceptance_difference_vs_dflash: minus the chain's); step_ratio_vs_dflash: step_ms over the chain's. "
    "speedup_vs_dflash = acceptance_ratio / step_ratio",
    "verify_width": "tokens of one sequence in the target's verify pass: nodes + 1, of a chain depth + 1",
}


# ---------------------------------------------------------------------------------------------------------------------
# Shapes, throughput, acceptance by depth
# ---------------------------------------------------------------------------------------------------------------------


def verify_width(strategy: str, depth: int | None, nodes: int | None) -> int | None:
    """Tokens of one sequence in the target's verify pass: 1 for autoregressive, depth + 1 for a chain, nodes + 1."""
    if strategy == "autoregressive":
        return 1
    drafted = depth if strategy == "dflash" else nodes
    return None if drafted is None else drafted + 1


def span_s(counts: Counts) -> float | None:
    """Seconds from the first start to the last finish of the requests of one cell; None where that is not positive."""
    if len(counts) == 0:
        return None
    span = float((counts.start_s + counts.latency_s).max() - counts.start_s.min())
    return span if span > 0 else None


def tokens_per_s(cells: Sequence[Counts]) -> float | None:
    """Aggregate throughput: output tokens of all cells over the sum of their spans (see :func:`span_s`)."""
    spans = [span_s(cell) for cell in cells]
    measured = [(cell, span) for cell, span in zip(cells, spans, strict=True) if span is not None]
    if not measured:
        return None
    return sum(float(cell.output_tokens.sum()) for cell, _ in measured) / sum(span for _, span in measured)


def steady_window(counts: Counts) -> tuple[float, float] | None:
    """First and last moment (seconds) with the most requests in flight that the cell reached; None if it has no length.

    A closed loop refills at once, so between the two the number falls only for the moment of a hand-over.
    """
    found = _steady(counts)
    return None if found is None else found[:2]


def _steady(counts: Counts) -> tuple[float, float, int] | None:
    """The steady window, and the number of requests in flight at its peak."""
    if len(counts) == 0:
        return None
    start, finish = counts.start_s, counts.start_s + counts.latency_s
    moments = np.concatenate([start, finish])
    changes = np.concatenate([np.ones(len(start)), -np.ones(len(finish))])
    order = np.lexsort((-changes, moments))  # at a tie a start counts before a finish: a hand-over is not a gap ...
    in_flight = np.cumsum(changes[order])
    lasting = np.diff(moments[order], append=moments.max()) > 0  # ... and an overlap of no length is no peak
    if not lasting.any():
        return None
    peak = int(in_flight[lasting].max())
    at_peak = np.flatnonzero(lasting & (in_flight == peak))
    first, last = moments[order][at_peak[0]], moments[order][at_peak[-1] + 1]
    return float(first), float(last), peak


def tokens_per_s_steady(cells: Sequence[Counts]) -> float | None:
    """Throughput inside the steady windows of the cells: sum of tokens over sum of window lengths, or None."""
    tokens, seconds = 0.0, 0.0
    for cell in cells:
        window = steady_window(cell)
        if window is None:
            continue
        low, high = window
        first = cell.start_s + cell.ttft_s
        decode = np.where(cell.decode_s > 0, cell.decode_s, 1.0)
        inside = np.clip((np.minimum(first + cell.decode_s, high) - np.maximum(first, low)) / decode, 0.0, 1.0)
        at_first = (first >= low) & (first < high)
        tokens += float((np.where(cell.decode_s > 0, inside, at_first) * cell.emitted).sum() + at_first.sum())
        seconds += high - low
    return tokens / seconds if seconds > 0 else None


def steady_turnovers(counts: Counts) -> float | None:
    """Requests that ended inside the steady window for each in flight there: how often the batch was renewed."""
    found = _steady(counts)
    if found is None:
        return None
    low, high, peak = found
    finish = counts.start_s + counts.latency_s
    return float(((finish > low) & (finish <= high)).sum() / peak)


def steady_short(counts: Counts) -> bool | None:
    """Whether the steady window of a block is too short to trust its throughput; None where there is none.

    Too short is less than :data:`SHORT_S` seconds with fewer than :data:`SHORT_TURNOVERS` turnovers. A long window
    averages over clocks and pauses of the machine; one of many turnovers over requests, its two ramps being few.
    """
    window, turnovers = steady_window(counts), steady_turnovers(counts)
    if window is None or turnovers is None:
        return None
    return window[1] - window[0] < SHORT_S and turnovers < SHORT_TURNOVERS


def percentile(values: Floats, percent: int) -> float | None:
    """Linearly interpolated percentile of [requests]; None without values, and of 99 below :data:`P99_SAMPLES`."""
    if len(values) == 0 or (percent >= 99 and len(values) < P99_SAMPLES) or not np.isfinite(values).all():
        return None
    return float(np.percentile(values, percent))


def bandwidth_ceiling(acceptance: float | None, weight_bytes: int | None, bytes_per_s: int | None) -> float | None:
    """Tokens/s per user if a round took no longer than reading the target's weights once; None where one is unknown.

    ``acceptance`` is the tokens a round emits: 1 without speculation.
    """
    if acceptance is None or not weight_bytes or not bytes_per_s:
        return None
    return acceptance * bytes_per_s / weight_bytes


def rounds_reaching(histogram: Floats) -> Floats:
    """Rounds that accepted at least d drafted tokens, at index d: [..., depth + 1] from a histogram of that shape."""
    return np.flip(np.cumsum(np.flip(histogram, axis=-1), axis=-1), axis=-1)


def acceptance_by_depth(counts: Counts) -> tuple[list[float], list[float | None]]:
    """(unconditional, conditional) acceptance rates at depths 1, 2, ...

    Unconditional at d: share of all rounds that accepted at least d drafted tokens. Conditional at d: share of the
    rounds that accepted at least d - 1; None where no round did. Both before clipping.
    """
    reached = rounds_reaching(counts.histogram.sum(axis=0))
    if len(reached) == 0 or reached[0] == 0:
        return [], []
    unconditional = [float(r / reached[0]) for r in reached[1:]]
    conditional = [float(b / a) if a > 0 else None for a, b in pairwise(reached)]
    return unconditional, conditional


def lossless_share(ids: Mapping[Any, Sequence[int]], reference: Mapping[Any, Sequence[int]]) -> float | None:
    """Share of the requests compared whose token ids equal the reference's; None where none can be compared.

    Compared are the requests (by key) that both have; one that the reference lacks says nothing.
    """
    compared = ids.keys() & reference.keys()
    return sum(list(ids[key]) == list(reference[key]) for key in compared) / len(compared) if compared else None
