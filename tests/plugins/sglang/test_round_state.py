"""What a round reads and writes beside its kernels: windows, the host's bound on lengths, the trace."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.tables import Tables
from ddbench.plugins.sglang.trace import Trace

SIZES = Sizes(5, 4, 2)
LENS = torch.tensor([7, 30])


def batch(host: torch.Tensor | None) -> Any:
    return SimpleNamespace(seq_lens=LENS, seq_lens_cpu=host)


@pytest.mark.parametrize(
    ("host", "draft_input", "expected"),
    [
        (torch.tensor([5, 28]), SimpleNamespace(), [9, 32]),  # a round behind: at most a block more
        (None, SimpleNamespace(reserved_seq_lens_cpu=torch.tensor([17, 40])), [17, 40]),
        (None, SimpleNamespace(nxt_kv_lens_cpu=torch.tensor([18, 41])), [18, 41]),
        (None, SimpleNamespace(), [7, 30]),
    ],
)
def test_the_hosts_bound_holds(host: torch.Tensor | None, draft_input: Any, expected: list[int]) -> None:
    tables = Tables(3, SIZES, "cpu")
    found = tables.bound(batch(host), draft_input, SIZES.block)
    assert found.each.tolist() == expected
    assert (found.each >= LENS).all()
    assert (found.total, found.mean) == (sum(expected), sum(expected) / 2)
    assert found.each.data_ptr() == tables.host_lens.data_ptr()


def test_tables_have_their_widths() -> None:
    tables = Tables(3, SIZES, "cpu")
    assert tables.block_ids.shape == tables.chain.shape == tables.draft_slots.shape == (3, 4)
    assert tables.slots.shape == tables.positions.shape == (3, 5)


def test_the_trace_has_a_line_a_row(tmp_path: Path) -> None:
    trees, walk = Trees(2, 5, 4, "cpu"), Walk(2, 4, "cpu")
    trees.limit(Caps(2, 3, 4))
    log_probs = torch.tensor([[-0.1, -3.0]]).expand(2, 3, 2)
    ops.build(trees, log_probs, torch.tensor([[10, 20]]).expand(2, 3, 2), torch.tensor([1, 2]))
    chosen = torch.tensor([[10, 10, 99, 0, 0], [99, 0, 0, 0, 0]])
    ops.walk(trees, chosen, LENS, walk)
    trace = Trace.to(str(tmp_path / "trace.jsonl"))
    assert trace is not None
    trace.write(SimpleNamespace(reqs=[SimpleNamespace(rid="a"), SimpleNamespace(rid="b")]), trees, walk, True)
    one, other = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert (one["request"], one["graph"], one["emitted"], one["path"]) == ("a", True, [10, 10, 99], [0, 1, 2])
    assert (other["request"], other["emitted"], other["path"]) == ("b", [99], [0])
    assert one["parents"][0] == -1
    assert one["tokens"][0] == 1
    assert Trace.to(None) is None
    assert Trace.to("") is None
