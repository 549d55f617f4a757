"""Where a round's mask goes: Triton's buffer, FlashInfer's packed bits of a graph, or a fresh one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees
from ddbench.plugins.sglang.masks import Place, graph_reads_mask, graph_rows, place_for

CPU = torch.device("cpu")
WIDTH, ROWS, CONTEXT = 9, 4, 100


def triton(used: str = "ours") -> Any:
    """A backend with a buffer for a graph's mask, as SGLang's VerifyMask is."""
    buffer = torch.zeros(ROWS * WIDTH * (CONTEXT + WIDTH), dtype=torch.bool)
    owned = SimpleNamespace(buffer=buffer, fits=lambda rows: rows <= ROWS)
    mask = {"ours": buffer, "none": None, "other": buffer.clone()}[used]
    return SimpleNamespace(verify_mask=owned, forward_metadata=SimpleNamespace(custom_mask=mask))


class FlashInferAttnBackend:
    """SGLang's, as far as masks go: two buffers for its graphs, and wrappers that hold them, or not."""

    verify_mask = None

    def __init__(self, bits: str = "ours", starts: str = "ours", wrappers: int = 1) -> None:
        self.cuda_graph_custom_mask = torch.zeros(ROWS * WIDTH * CONTEXT, dtype=torch.uint8)
        self.cuda_graph_qk_indptr = [torch.zeros(ROWS + 1, dtype=torch.int32)]
        choice = {"ours": self.cuda_graph_custom_mask, "other": torch.zeros(3, dtype=torch.uint8), "none": None}
        places = {"ours": self.cuda_graph_qk_indptr[0][:3], "other": torch.zeros(5, dtype=torch.int32), "none": None}
        wrapper = SimpleNamespace(_custom_mask_buf=choice[bits], _mask_indptr_buf=places[starts])
        self.forward_metadata = SimpleNamespace(prefill_wrappers=[wrapper] * wrappers)


def runner(backend: Any, sizes: tuple[int, ...] | None = (1, 2, 4), exact: bool = False) -> Any:
    graphs = None if sizes is None else SimpleNamespace(capture_bs=list(sizes), disable_padding=exact)
    return SimpleNamespace(attn_backend=backend, decode_cuda_graph_runner=graphs)


@pytest.mark.parametrize(
    ("backend", "reads"),
    [
        (triton("ours"), True),
        (triton("none"), False),
        (triton("other"), False),
        (SimpleNamespace(verify_mask=None, forward_metadata=SimpleNamespace()), False),
        (FlashInferAttnBackend(), True),
        (FlashInferAttnBackend(bits="none"), False),
        (FlashInferAttnBackend(bits="other"), False),
        (FlashInferAttnBackend(starts="other"), False),
        (FlashInferAttnBackend(starts="none"), False),
        (FlashInferAttnBackend(wrappers=0), False),
    ],
)
def test_whether_a_graph_reads_the_mask(backend: Any, reads: bool) -> None:
    assert graph_reads_mask(backend) is reads


@pytest.mark.parametrize(("rows", "exact", "padded"), [(1, False, 1), (3, False, 4), (5, False, None), (3, True, None)])
def test_rows_of_the_graph(rows: int, exact: bool, padded: int | None) -> None:
    assert graph_rows(runner(None, exact=exact).decode_cuda_graph_runner, rows) == padded
    assert graph_rows(None, rows) is None
    assert graph_rows(SimpleNamespace(), rows) is None, "SGLang's runner without graphs, in their place"


def test_tritons_own_buffer_where_the_batch_fits() -> None:
    owner = triton()
    assert place_for(runner(owner), 4, WIDTH, 50, CPU).mask is owner.verify_mask.buffer
    fresh = place_for(runner(owner), 5, WIDTH, 50, CPU)
    assert fresh.mask.numel() == WIDTH * (50 + 5 * WIDTH)
    assert not fresh.whole
    assert not fresh.in_place


def trees_of(rows: int) -> Trees:
    """Branching trees, no two alike."""
    trees = Trees(ROWS, WIDTH, 4, "cpu")
    trees.limit(Caps(3, 3, WIDTH - 1))
    seeded = torch.Generator().manual_seed(3)
    log_probs = torch.randn(rows, 3, 3, generator=seeded).log_softmax(-1).sort(-1, descending=True).values
    ops.build(trees, log_probs, torch.randint(0, 90, (rows, 3, 3), generator=seeded), torch.arange(rows))
    return trees


def blocks(flat: torch.Tensor, lens: list[int]) -> list[torch.Tensor]:
    """Each row's ``[N, L + N]`` block of a flat mask of whole blocks."""
    sizes = [WIDTH * (length + WIDTH) for length in lens]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(WIDTH, -1) for part in parts]


def test_flashinfers_bits_are_the_mask_that_its_plan_would_pack() -> None:
    """A batch of 3 in a graph of 4: the bits, row by row, of the mask that a pass without a graph is given."""
    lens = torch.tensor([7, 30, 2])
    backend, trees, positions = FlashInferAttnBackend(), trees_of(3), torch.zeros(3, WIDTH, dtype=torch.int64)
    eager = place_for(runner(backend, None), 3, WIDTH, 60, CPU)
    assert eager.whole
    assert eager.mask.dtype == torch.bool
    assert eager.mask.numel() >= WIDTH * (39 + 3 * WIDTH)
    eager.write(ops, trees, lens, positions)
    expected = [*blocks(eager.mask, lens.tolist()), torch.ones(WIDTH, 1 + WIDTH, dtype=torch.bool)]
    depths = positions.clone()

    place = place_for(runner(backend), 3, WIDTH, 60, CPU)
    assert place.in_place
    assert place.mask is backend.cuda_graph_custom_mask
    place.write(ops, trees, lens, positions.zero_())
    assert torch.equal(positions, depths)
    starts = backend.cuda_graph_qk_indptr[0].tolist()
    assert starts[0] == 0
    for row, block in enumerate(expected):
        part = backend.cuda_graph_custom_mask[starts[row] : starts[row + 1]]
        bits = (part[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        assert torch.equal(bits.flatten()[: block.numel()].bool(), block.flatten())
        assert starts[row + 1] - starts[row] == -(-block.numel() // 8)
    assert not expected[0].all(), "a mask that hides something"


def test_a_pass_that_read_another_mask_is_not_used() -> None:
    bits = Place(torch.zeros(1), starts=torch.zeros(2))
    bits.check(in_graph=True)
    with pytest.raises(RuntimeError, match="written for a graph"):
        bits.check(in_graph=False)
    whole = Place(torch.zeros(1), whole=True)
    whole.check(in_graph=False)
    with pytest.raises(RuntimeError, match="a graph ran"):
        whole.check(in_graph=True)
    for ran in (True, False):
        Place(torch.zeros(1)).check(in_graph=ran)
