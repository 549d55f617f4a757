"""Golden examples worked out by hand, and identities that must hold for any counts.

The two requests of the golden example, decoded speculatively with 4 nodes a round:

    first:  9 output tokens, 3 rounds that accept 2, 1 and 4 drafted tokens. Before clipping they emit 3 + 2 + 5 = 10,
            but only 8 fit, so the last round keeps 3 drafted tokens and loses its bonus: kept 2 + 1 + 3 = 6.
    second: 4 output tokens, 2 rounds that accept 0 and 1: 1 + 2 = 3 tokens, nothing clipped.

    decode seconds: 0.5 - 0.1 = 0.4 and 0.3 - 0.1 = 0.2; tokens from decoding: 8 + 3 = 11 in 5 rounds.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench import metrics
from ddbench.metrics import Counts

SPECULATIVE = {
    "output_tokens": [9, 4],
    "rounds": [3, 2],
    "drafted": [12, 8],
    "accepted": [6, 1],
    "accepted_raw": [7, 1],
    "accept_histogram": [[0, 1, 1, 0, 1], [1, 1]],
    "start_s": [0.0, 0.5],
    "ttft_s": [0.1, 0.1],
    "latency_s": [0.5, 0.3],
}
# The same tokens without speculation: 8 in 0.8 s and 3 in 0.3 s.
AUTOREGRESSIVE = {
    **SPECULATIVE,
    "rounds": [0, 0],
    "drafted": [0, 0],
    "accepted": [0, 0],
    "accepted_raw": [0, 0],
    "accept_histogram": [[], None],
    "latency_s": [0.9, 0.4],
}


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (metrics.acceptance_length, 11 / 5),
        (metrics.acceptance_length_unclipped, 1 + 8 / 5),
        (metrics.acceptance_length_macro, (8 / 3 + 3 / 2) / 2),
        (metrics.accepted_per_round, 7 / 5),
        (metrics.node_efficiency, 8 / 20),
        (metrics.tokens_per_s_per_user, 11 / 0.6),
        (metrics.tpot_ms, 600 / 11),
        (metrics.ttft_ms, 100.0),
        (metrics.step_ms, 120.0),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_golden_speculative(ratio: metrics.Ratio, expected: float) -> None:
    assert ratio(Counts.from_columns(SPECULATIVE)) == pytest.approx(expected, rel=1e-12)


def test_golden_autoregressive() -> None:
    counts = Counts.from_columns(AUTOREGRESSIVE)
    assert metrics.tokens_per_s_per_user(counts) == pytest.approx(10.0)
    assert metrics.step_ms(counts) == pytest.approx(100.0)  # a step is a token
    for ratio in (metrics.acceptance_length, metrics.accepted_per_round, metrics.node_efficiency):
        assert ratio(counts) is None  # there are no rounds: null, not 0


def test_golden_throughput() -> None:
    counts = Counts.from_columns(SPECULATIVE)
    assert metrics.span_s(counts) == pytest.approx(0.8)  # 0.0 to 0.5 + 0.3
    assert metrics.tokens_per_s([counts]) == pytest.approx(13 / 0.8)
    assert metrics.tokens_per_s([counts, Counts.from_columns(AUTOREGRESSIVE)]) == pytest.approx(26 / (0.8 + 0.9))


def test_golden_acceptance_by_depth() -> None:
    # Five rounds accept 2, 1, 4, 0 and 1 drafted tokens.
    unconditional, conditional = metrics.acceptance_by_depth(Counts.from_columns(SPECULATIVE))
    assert unconditional == pytest.approx([4 / 5, 2 / 5, 1 / 5, 1 / 5])
    assert conditional == pytest.approx([4 / 5, 2 / 4, 1 / 2, 1 / 1])


def test_steady_window_by_hand() -> None:
    # a runs from 0 to 4 s, b from 1 to 3 s: two are in flight from 1 to 3. a decodes 4 tokens evenly, 2 of them inside;
    # b gives its prefill token and 2 decoded ones inside. 5 tokens in 2 s.
    columns = {
        **SPECULATIVE,
        "output_tokens": [5, 3],
        "start_s": [0.0, 1.0],
        "ttft_s": [0.0, 0.0],
        "latency_s": [4.0, 2.0],
    }
    counts = Counts.from_columns(columns)
    assert metrics.steady_window(counts) == (1.0, 3.0)
    assert metrics.tokens_per_s_steady([counts]) == pytest.approx(2.5)


def test_steady_window_ignores_the_instant_of_a_hand_over() -> None:
    # One user, three requests back to back: at 1 and 2 s one ends as the next starts. The peak is 1, from 0 to 3.
    columns = {name: values * 2 for name, values in SPECULATIVE.items()}
    columns |= {"output_tokens": [4, 4, 4], "start_s": [0.0, 1.0, 2.0], "latency_s": [1.0, 1.0, 1.0]}
    counts = Counts.from_columns({name: values[:3] for name, values in columns.items()})
    assert metrics.steady_window(counts) == (0.0, 3.0)
    assert metrics.tokens_per_s_steady([counts]) == pytest.approx(4.0)


def closed_loop(users: int, requests: int, seconds: float) -> Counts:
    """``users`` in flight, each asking again at once; every request takes the same time, to the first token none."""
    start = [seconds * (index // users) for index in range(requests)]
    columns = {name: [1] * requests for name in ("rounds", "drafted", "accepted", "accepted_raw")}
    columns |= {"output_tokens": [11] * requests, "accept_histogram": [None] * requests}  # type: ignore[dict-item]
    return Counts.from_columns(
        {**columns, "start_s": start, "ttft_s": [0.0] * requests, "latency_s": [seconds] * requests}
    )


@pytest.mark.parametrize(
    ("users", "requests", "seconds", "turnovers", "short"),
    [
        (4, 12, 1.0, 3.0, True),  # 3 s, every user three times
        (4, 12, 2.0, 3.0, False),  # 6 s are enough
        (4, 40, 0.1, 10.0, False),  # 1 s, but every user ten times
        (1, 9, 0.1, 9.0, True),
        (3, 8, 1.0, 2.0, True),  # the last two have company of two: the peak of three lasts 2 s
    ],
)
def test_short_windows_by_hand(users: int, requests: int, seconds: float, turnovers: float, short: bool) -> None:
    counts = closed_loop(users, requests, seconds)
    assert metrics.steady_turnovers(counts) == turnovers
    assert metrics.steady_short(counts) is short


def test_no_window_is_not_a_short_one() -> None:
    assert metrics.steady_short(closed_loop(1, 3, 0.0)) is None
    assert metrics.steady_turnovers(closed_loop(1, 3, 0.0)) is None


def test_percentiles() -> None:
    assert metrics.percentile(np.arange(1, 12, dtype=float), 50) == 6.0
    assert metrics.percentile(np.arange(11, dtype=float), 95) == pytest.approx(9.5)
    assert metrics.percentile(np.zeros(0), 50) is None
    assert metrics.percentile(np.asarray([1.0, np.nan]), 50) is None


def test_p99_needs_459_samples() -> None:
    """The least n of which one exceeds the 99th percentile with a certainty of 99 %: 0.99 ** n <= 0.01."""
    assert 0.99**metrics.P99_SAMPLES <= 0.01 < 0.99 ** (metrics.P99_SAMPLES - 1)
    assert metrics.P99_SAMPLES == 459
    assert metrics.percentile(np.arange(458, dtype=float), 99) is None
    assert metrics.percentile(np.arange(459, dtype=float), 99) == pytest.approx(453.42)


def test_bandwidth_ceiling_by_hand() -> None:
    # 16 GB of weights at 1.6 TB/s: a round takes 10 ms at least, so 100 rounds a second, of 1 or of 3.5 tokens.
    assert metrics.bandwidth_ceiling(1.0, 16_000_000_000, 1_600_000_000_000) == pytest.approx(100.0)
    assert metrics.bandwidth_ceiling(3.5, 16_000_000_000, 1_600_000_000_000) == pytest.approx(350.0)
    for unknown in ((None, 1, 1), (1.0, None, 1), (1.0, 1, None)):
        assert metrics.bandwidth_ceiling(*unknown) is None  # type: ignore[arg-type]


def test_joined_counts_are_the_requests_one_after_another() -> None:
    both = Counts.joined([Counts.from_columns(SPECULATIVE), Counts.from_columns(AUTOREGRESSIVE)])
    assert both.output_tokens.tolist() == [9, 4, 9, 4]
    assert both.histogram.tolist() == [[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0] * 5, [0] * 5]


@pytest.mark.parametrize(
    ("strategy", "depth", "nodes", "expected"),
    [
        ("autoregressive", None, None, 1),
        ("dflash", 15, None, 16),
        ("dflash", None, None, None),
        ("eagle", 4, 16, 17),
        ("ddtree", 15, 64, 65),
    ],
)
def test_verify_width(strategy: str, depth: int | None, nodes: int | None, expected: int | None) -> None:
    assert metrics.verify_width(strategy, depth, nodes) == expected


def test_lossless_share() -> None:
    reference = {"a": [1, 2, 3], "b": [4]}
    assert metrics.lossless_share({"a": [1, 2, 3], "b": [4]}, reference) == 1.0
    assert metrics.lossless_share({"a": [1, 2, 3], "b": [4, 5]}, reference) == 0.5  # a prefix is not equal
    assert metrics.lossless_share({"c": [1]}, reference) is None


def test_no_requests_give_nothing() -> None:
    empty = Counts.from_columns({name: [] for name in SPECULATIVE})
    assert all(ratio(empty) is None for ratio in metrics.RATIOS)
    assert metrics.tokens_per_s([empty]) is None
    assert metrics.tokens_per_s_steady([empty]) is None
    assert metrics.acceptance_by_depth(empty) == ([], [])


def test_a_single_token_has_no_decode_rate() -> None:
    one = {**{name: values[:1] for name, values in AUTOREGRESSIVE.items()}, "output_tokens": [1], "latency_s": [0.1]}
    counts = Counts.from_columns(one)
    assert metrics.tokens_per_s_per_user(counts) is None
    assert metrics.tpot_ms(counts) is None
    assert metrics.step_ms(counts) is None


def test_unknown_counts_make_only_their_own_ratios_null() -> None:
    counts = Counts.from_columns({**SPECULATIVE, "rounds": [np.nan, 2]})
    assert metrics.acceptance_length(counts) is None
    assert metrics.step_ms(counts) is None
    assert metrics.tokens_per_s_per_user(counts) == pytest.approx(11 / 0.6)


ROUNDS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=12), min_size=1, max_size=6)


def counts_from(rounds: list[list[int]], cut: int) -> Counts:
    """Requests whose rounds accept the given numbers; ``cut`` tokens of each last round do not fit."""
    tokens = [sum(a + 1 for a in each) - min(cut, each[-1]) for each in rounds]
    return Counts.from_columns(
        {
            "output_tokens": [t + 1 for t in tokens],
            "rounds": [len(each) for each in rounds],
            "drafted": [8 * len(each) for each in rounds],
            "accepted": [sum(each) - max(min(cut, each[-1]) - 1, 0) for each in rounds],
            "accepted_raw": [sum(each) for each in rounds],
            "accept_histogram": [np.bincount(each) for each in rounds],
            "start_s": [0.0] * len(rounds),
            "ttft_s": [0.1] * len(rounds),
            "latency_s": [0.1 + 0.02 * len(each) for each in rounds],
        }
    )


@given(ROUNDS, st.integers(0, 3))
def test_integers_conserve(rounds: list[list[int]], cut: int) -> None:
    counts = counts_from(rounds, cut)
    levels = np.arange(counts.histogram.shape[1])
    assert counts.histogram.sum() == counts.rounds.sum()
    assert (counts.histogram @ levels == counts.accepted_raw).all()
    assert (counts.accepted <= counts.accepted_raw).all()
    assert (counts.emitted <= counts.accepted + counts.rounds).all()


@given(ROUNDS, st.integers(0, 3))
def test_identities(rounds: list[list[int]], cut: int) -> None:
    counts = counts_from(rounds, cut)
    length, unclipped = metrics.acceptance_length(counts), metrics.acceptance_length_unclipped(counts)
    rate, step, tpot = (m(counts) for m in (metrics.tokens_per_s_per_user, metrics.step_ms, metrics.tpot_ms))
    assert length is not None
    assert unclipped is not None
    assert length <= unclipped + 1e-12
    if cut == 0:
        assert length == pytest.approx(unclipped)
    if rate is not None:
        assert rate == pytest.approx(length / step * 1000)  # tokens/s = acceptance / round time
        assert rate == pytest.approx(1000 / tpot)
    unconditional, conditional = metrics.acceptance_by_depth(counts)
    assert 1 + sum(unconditional) == pytest.approx(unclipped)
    known = [rate for rate in conditional if rate is not None]
    assert np.allclose(np.cumprod(known), unconditional[: len(known)])


def test_importing_ddbench_is_light() -> None:
    heavy = "[m for m in ('torch', 'pandas', 'numpy', 'matplotlib') if m in sys.modules]"
    code = f"import sys, ddbench, ddbench.records; ddbench.__version__; print({heavy})"
    # pyarrow, which the schemas need, may bring numpy with it.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "pandas" not in done.stdout


def test_a_request_that_the_reference_lacks_is_not_compared() -> None:
    assert metrics.lossless_share({"a": [1], "b": [2]}, {"a": [1]}) == 1.0
    assert metrics.lossless_share({"a": [1], "b": [2]}, {"a": [0], "c": [2]}) == 0.0
    assert metrics.lossless_share({"a": [1]}, {"b": [1]}) is None
