"""Where a backend's verify pass reads the tree mask, and whether its captured graphs do.

Triton's has a buffer of its own for a graph's mask and reads the tree's part of it alone. FlashInfer's has two for its
graphs, packed bits and where a row's begin, which its plan would fill after a wait for the device; we fill them
ourselves. Without a graph it is given the whole mask, the context's part too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.sglang.recurrent import attending

FLASHINFER = "FlashInferAttnBackend"


@dataclass(frozen=True)
class Place:
    """Where the mask of a round goes.

    Attributes:
        mask: flat; a byte an entry, or eight entries a byte where ``starts`` is there.
        whole: the context's part is written too.
        starts: int32 ``[P + 1]``, first bytes of the rows' bits, for a graph of P rows.
    """

    mask: Tensor
    whole: bool = False
    starts: Tensor | None = None

    @property
    def in_place(self) -> bool:
        """The backend's own plan must leave the mask alone."""
        return self.starts is not None

    def write(self, ops: Any, trees: Any, seq_lens: Tensor, positions: Tensor) -> None:
        """Positions, links and mask of the batch's trees."""
        if self.starts is None:
            ops.lay_out(trees, seq_lens, positions, self.mask, self.whole)
            return
        ops.lay_out(trees, seq_lens, positions)
        ops.write_packed_mask(trees, seq_lens, self.mask, self.starts)

    def check(self, in_graph: bool) -> None:
        """Raises RuntimeError where the pass did not read the mask from here."""
        if self.in_place and not in_graph:
            raise RuntimeError("ddbench: the mask was written for a graph, and the pass ran without one")
        if self.whole and in_graph:
            raise RuntimeError("ddbench: the mask was written for a pass without a graph, and a graph ran")


def graph_reads_mask(backend: Any) -> bool:
    """Whether the pass that was captured last with this backend took its mask from the buffer that rounds write to."""
    backend = attending(backend)
    if _is_flashinfer(backend):
        wrappers = getattr(backend.forward_metadata, "prefill_wrappers", None) or ()
        bits, starts = backend.cuda_graph_custom_mask, backend.cuda_graph_qk_indptr[0]
        return bool(wrappers) and all(
            _same(each._custom_mask_buf, bits) and _same(each._mask_indptr_buf, starts) for each in wrappers
        )
    owned = backend.verify_mask
    return owned is not None and _same(getattr(backend.forward_metadata, "custom_mask", None), owned.buffer)


def place_for(runner: Any, rows: int, width: int, tokens: int, device: torch.device) -> Place:
    """For the next pass of SGLang's ModelRunner: the backend's own buffers where a graph or the batch fits into them.

    Args:
        tokens: at least the committed tokens of the batch.
    """
    backend = attending(runner.attn_backend)
    if _is_flashinfer(backend):
        padded = graph_rows(runner.decode_cuda_graph_runner, rows)
        if padded is not None:
            return Place(backend.cuda_graph_custom_mask, starts=backend.cuda_graph_qk_indptr[0][: padded + 1])
        return Place(_fresh(rows, width, tokens, device, torch.bool), whole=True)
    owned = backend.verify_mask
    if owned is not None and owned.fits(rows):
        return Place(owned.buffer)
    return Place(_fresh(rows, width, tokens, device, torch.uint8))


def captured_sizes(graphs: Any) -> list[int]:
    """Batch sizes, ascending, of SGLang's runner of graphs; it has none or another kind in its place without graphs."""
    return sorted(int(size) for size in getattr(graphs, "capture_bs", None) or ())


def graph_rows(graphs: Any, rows: int) -> int | None:
    """Rows of the captured graph that SGLang replays for a batch; None where it has none for it."""
    exact = getattr(graphs, "disable_padding", False)
    fitting = [size for size in captured_sizes(graphs) if (size == rows if exact else size >= rows)]
    return min(fitting, default=None)


def _fresh(rows: int, width: int, tokens: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(width * (tokens + rows * width), dtype=dtype, device=device)


def _is_flashinfer(backend: Any) -> bool:
    return any(kind.__name__ == FLASHINFER for kind in type(backend).__mro__)


def _same(used: Tensor | None, owned: Tensor) -> bool:
    return used is not None and bool(used.data_ptr() == owned.data_ptr())
