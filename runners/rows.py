"""What came of a cell's requests, as rows of :mod:`ddbench.records`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.records import Cell
from runners.client import Completion
from runners.completions import TokenRequest
from runners.counts import RequestCounts, Tally
from runners.load import LoadResult
from runners.prompts import Tokenized


@dataclass(frozen=True)
class Sent:
    """A request with where it comes from."""

    item: Tokenized
    repeat: int
    request: TokenRequest


def requests_of(
    cell: Cell, items: Sequence[Tokenized], repeat: int, new_tokens: int, stop_ids: frozenset[int], ignore_eos: bool
) -> list[Sent]:
    """The requests of one repeat, in the order of the prompts."""
    return [
        Sent(
            item,
            repeat,
            TokenRequest(
                item.token_ids,
                new_tokens,
                cell.temperature,
                cell.top_p,
                cell.top_k,
                seed=request_seed(cell.seed + repeat, item.prompt.id, item.prompt.turn),
                ignore_eos=ignore_eos,
                stop_ids=tuple(sorted(stop_ids)),
            ),
        )
        for item in items
    ]


def request_seed(seed: int, prompt_id: str, turn: int = 0) -> int:
    """A seed of its own for each turn of each prompt, so that no two draw alike; the same in every arm."""
    text = f"{seed}/{prompt_id}/{turn}" if turn else f"{seed}/{prompt_id}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def request_rows(cell: Cell, sent: Sequence[Sent], result: LoadResult, tally: Tally) -> list[dict[str, Any]]:
    """requests.parquet. Clocks run from the start of the load; a request of an open loop from its arrival."""
    rows = []
    for item, done, wait_s, counts in zip(sent, result.completions, result.waits_s, tally.requests, strict=True):
        arrived_s = done.start_s - wait_s
        rows.append(
            {
                **_origin(cell, item),
                "dataset": item.item.prompt.dataset,
                "category": item.item.prompt.category,
                "seed": cell.seed + item.repeat,
                "prompt_tokens": len(item.item.token_ids),
                "output_tokens": len(done.token_ids),
                **_counted(counts),
                "start_s": arrived_s - result.start_s,
                "ttft_s": None if done.first_token_s is None else done.first_token_s - arrived_s,
                "latency_s": done.finish_s - arrived_s,
                "finish_reason": done.finish_reason,
                "cached_tokens": done.cached_tokens,
                "output_token_ids": list(done.token_ids),
                "error": done.error,
            }
        )
    return rows


def round_rows(cell: Cell, sent: Sequence[Sent], tally: Tally) -> list[dict[str, Any]] | None:
    """rounds.parquet; None where the rounds of a request are not known, or nothing was drafted.

    A server does not say how many sequences shared a round, how deep its tree was, or how long its stages took: null.
    """
    if any(counts.by_round is None for counts in tally.requests) or not tally.sums.drafts:
        return None
    return [
        {
            **_origin(cell, item),
            "round": index,
            "drafted": each.drafted,
            "tree_depth": cell.arm.depth if cell.arm.strategy in ("dflash", "eagle") else None,
            "accepted": each.accepted,
            "accepted_raw": each.accepted_raw,
            "emitted": each.emitted,
        }
        for item, counts in zip(sent, tally.requests, strict=True)
        for index, each in enumerate(counts.by_round or ())
    ]


def cut_short(completions: Sequence[Completion], why: str) -> str:
    """Why a load ended before its end, with how much of it was done."""
    done = sum(each.error is None for each in completions)
    return f"{why}; {done} of {len(completions)} requests were done"


def _origin(cell: Cell, sent: Sent) -> dict[str, Any]:
    return {
        "cell_id": cell.cell_id,
        "block": cell.block,
        "prompt_id": sent.item.prompt.id,
        "turn": sent.item.prompt.turn,
        "repeat": sent.repeat,
    }


def _counted(counts: RequestCounts) -> dict[str, Any]:
    if not counts.known:
        return dict.fromkeys(("rounds", "drafted", "accepted", "accepted_raw", "accept_histogram"))
    return {
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "accepted_raw": counts.accepted_raw,
        "accept_histogram": list(counts.histogram),
    }
