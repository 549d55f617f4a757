"""The attention of verify windows equals a plain softmax over each token's ancestors, whatever the splits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_kernels import DEVICES, on_device
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.device import shared_bytes
from ddbench.plugins.kernels.tiles import AttentionWorkspace, Tile
from ddbench.plugins.sglang import verify_attention as door
from ddbench.plugins.sglang.kernels.attention_launch import verify_attention, workspace_for
from ddbench.plugins.sglang.kernels.attention_plan import Plan, shape_of
from ddbench.plugins.sglang.options import ATTENTION

# Against float32 on the same inputs: bfloat16 rounds the weights and the output, 8 bits each, float32 only sums.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
CONTEXTS = [[0, 1, 17, 300], [128, 5, 64, 31]]
HEADS = [(2, 2, 64), (8, 1, 32), (6, 2, 80), (4, 1, 128)]


@dataclass
class Inputs:
    """Of one pass; ``seen`` bool ``[R, N, N]``, what each token of a window sees of it."""

    width: int
    query: Tensor
    window_keys: Tensor
    window_values: Tensor
    cache_keys: Tensor
    cache_values: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    mask: Tensor
    mask_indptr: Tensor
    seen: Tensor

    def tensors(self, device: str) -> list[Tensor]:
        own = (self.query, self.window_keys, self.window_values, self.cache_keys, self.cache_values)
        return [each.to(device) for each in (*own, self.kv_indptr, self.kv_indices, self.mask, self.mask_indptr)]

    @property
    def scale(self) -> float:
        return float(self.query.shape[2] ** -0.5)


def inputs(context: list[int], width: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int = 0) -> Inputs:
    """Random trees over contexts at random slots; NaN in every slot that belongs to none, rubbish in the mask's part
    that is not to be read."""
    generator = torch.Generator().manual_seed(seed)
    many, kv_heads, size = heads
    rows, tokens = len(context), sum(context)
    seen = torch.zeros(rows, width, width, dtype=torch.bool)
    for row in range(rows):
        for i in range(width):
            seen[row, i, i] = True
            if i:
                parent = int(torch.randint(i, (1,), generator=generator))
                seen[row, i] |= seen[row, parent]
    blocks = []
    for row, past in enumerate(context):
        block = torch.randint(0, 2, (width, past + width), generator=generator, dtype=torch.uint8)
        block[:, past:] = seen[row].to(torch.uint8)
        blocks.append(block.flatten())
    slots = torch.randperm(tokens + 9, generator=generator)[:tokens]
    caches = [torch.full((tokens + 9, kv_heads, size), torch.nan) for _ in range(2)]
    for cache in caches:
        cache[slots] = torch.randn(tokens, kv_heads, size, generator=generator)
    ends = torch.tensor([0, *context]).cumsum(0)
    return Inputs(
        width,
        torch.randn(rows * width, many, size, generator=generator).to(dtype),
        *(torch.randn(rows * width, kv_heads, size, generator=generator).to(dtype) for _ in range(2)),
        *(cache.to(dtype) for cache in caches),
        ends.to(torch.int32),
        slots,
        torch.cat(blocks),
        torch.tensor([0, *(len(block) for block in blocks)]).cumsum(0),
        seen,
    )


def twin(given: Inputs) -> Tensor:
    """Token by token, head by head, in float32."""
    width, group = given.width, given.query.shape[1] // given.window_keys.shape[1]
    out = torch.zeros(given.query.shape)
    for row in range(len(given.kv_indptr) - 1):
        slots = given.kv_indices[given.kv_indptr[row] : given.kv_indptr[row + 1]]
        for i in range(width):
            inside = row * width + torch.nonzero(given.seen[row, i])[:, 0]
            for head in range(given.query.shape[1]):
                own = head // group
                keys = torch.cat([given.cache_keys[slots, own], given.window_keys[inside, own]]).float()
                values = torch.cat([given.cache_values[slots, own], given.window_values[inside, own]]).float()
                weights = (keys @ given.query[row * width + i, head].float() * given.scale).softmax(0)
                out[row * width + i, head] = weights @ values
    return out


def kernel(
    given: Inputs,
    device: str,
    splits: int | None,
    tile: Tile | None = None,
    rows: int = 4,
    exact: bool = True,
) -> Tensor:
    """As the rule has it without ``splits``; else so many, of ``tile`` or the rule's."""
    tensors = given.tensors(device)
    out = torch.full_like(tensors[0], 7.0)
    _, many, size = given.query.shape
    sizes = (given.width, many, given.window_keys.shape[1], size, given.query.element_size())
    if splits is None:
        workspace, cut = workspace_for(rows, *sizes, torch.device(device)), None
    else:
        workspace = AttentionWorkspace.of(given.query.shape[0], many, size, splits, device)
        cut = Plan(tile or shape_of(*sizes, shared_bytes(torch.device(device))), splits)
    workspace.partial.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    verify_attention(*tensors, given.width, given.scale, out, workspace=workspace, cut=cut, exact=exact)
    return out.float().cpu()


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_twin(device: str, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    on_device(device)
    for width, context in ((2, CONTEXTS[0]), (17, CONTEXTS[1][:3])):
        given = inputs(context, width, heads, dtype, seed=width)
        expected = twin(given)
        for splits in (1, 3):
            close(kernel(given, device, splits), expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_splits_and_tiles_that_are_chosen(device: str) -> None:
    on_device(device)
    given = inputs([300, 40], 9, (4, 2, 64), torch.float32)
    expected = twin(given)
    close(kernel(given, device, None), expected, torch.float32)
    close(kernel(given, device, 2, Tile(16, 16, 4, 1)), expected, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_of_several_blocks_and_tiles_as_the_rule_cuts_it(device: str) -> None:
    """80 rows a key-value head: a block of 64, and one that is not full."""
    on_device(device)
    given = inputs([67, 0, 1], 40, (4, 2, 128), torch.float16)
    assert shape_of(40, 4, 2, 128, 2, shared_bytes(torch.device(device))).m == 64
    close(kernel(given, device, None), vectorised(given), torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [2, 9, 16, 64, 128])
@pytest.mark.parametrize("heads", [*HEADS, (32, 8, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # the interpreter has no product of bfloat16
def test_equals_the_twin_on_a_gpu(width: int, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    on_device("cuda")
    given = inputs([2000, 0, 31, 257], width, heads, dtype, seed=width)
    expected = vectorised(given)
    for splits in (1, 3, 31, None):
        close(kernel(given, "cuda", splits), expected, dtype)


@pytest.mark.gpu
def test_float32_as_it_is_served() -> None:
    """Products in TF32, ten bits, as SGLang's own attention takes them."""
    on_device("cuda")
    given = inputs([2000, 31], 16, (8, 2, 128), torch.float32)
    found = kernel(given, "cuda", None, exact=False)
    torch.testing.assert_close(found, vectorised(given), atol=4e-3, rtol=4e-3)


def vectorised(given: Inputs) -> Tensor:
    """`twin`, a row at a time."""
    width, (_, many, _) = given.width, given.query.shape
    group = many // given.window_keys.shape[1]
    outs = []
    for row in range(len(given.kv_indptr) - 1):
        slots = given.kv_indices[given.kv_indptr[row] : given.kv_indptr[row + 1]]
        own = slice(row * width, (row + 1) * width)
        keys = torch.cat([given.cache_keys[slots], given.window_keys[own]]).float().repeat_interleave(group, 1)
        values = torch.cat([given.cache_values[slots], given.window_values[own]]).float().repeat_interleave(group, 1)
        found = torch.einsum("qhd,khd->hqk", given.query[own].float(), keys) * given.scale
        shown = torch.cat([torch.ones(width, len(slots), dtype=torch.bool), given.seen[row]], 1)
        weights = found.masked_fill(~shown[None], -torch.inf).softmax(-1)
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outs)


def test_the_twins_agree() -> None:
    given = inputs([3, 0, 17], 8, (4, 2, 16), torch.float32)
    torch.testing.assert_close(vectorised(given), twin(given))


@pytest.mark.parametrize("device", DEVICES)
def test_a_padded_row_that_sees_nothing_is_zero(device: str) -> None:
    on_device(device)
    given = inputs([5, 0], 4, (2, 1, 32), torch.float32)
    given.mask[given.mask_indptr[1] :] = 0
    found = kernel(given, device, 2)
    assert (found[4:] == 0).all()
    close(found[:4], twin(given)[:4], torch.float32)


def test_layouts_that_are_not_read() -> None:
    on_device("cpu") if not torch.cuda.is_available() else None
    given = inputs([5, 3], 4, (2, 1, 32), torch.float32)
    tensors, out = given.tensors("cpu"), torch.empty(8, 2, 32)
    with pytest.raises(ValueError, match="multiple of"):
        verify_attention(*tensors, 3, given.scale, out)
    with pytest.raises(ValueError, match="quantized"):
        verify_attention(*tensors[:3], tensors[3].half(), *tensors[4:], 4, given.scale, out)
    with pytest.raises(ValueError, match="contiguous"):
        verify_attention(tensors[0].mT.contiguous().mT, *tensors[1:], 4, given.scale, out)


class TritonAttnBackend:
    """With the attributes and the call that SGLang's class of this name has; its attention remembers its calls."""

    def __init__(self) -> None:
        self.num_head, self.num_kv_head, self.v_head_dim = 4, 2, 32
        self.calls: list[tuple[Any, ...]] = []
        self.extend_attention_fwd: Any = lambda *args, **kwargs: self.calls.append((args, kwargs))


def passed(given: Inputs, out: Tensor) -> tuple[Any, ...]:
    """As SGLang's backends call their attention."""
    ends = torch.arange(len(given.kv_indptr)) * given.width
    own = (given.query, given.window_keys, given.window_values, out, given.cache_keys, given.cache_values)
    masked = (given.mask, True, given.mask_indptr, given.width, 1.0, 1.0, given.scale)
    return (*own, ends, given.kv_indptr, given.kv_indices, *masked)


OPTIONS = {"logit_cap": 0.0, "sliding_window_size": -1, "sinks": None, "window_kv_offsets": None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs this, and cannot beside compiled kernels")
def test_takes_masked_passes_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ATTENTION, raising=False)
    backend, given = TritonAttnBackend(), inputs([5, 3], 4, (4, 2, 32), torch.float32)
    installed = door.install(backend, 8, 4, torch.float32, "cpu")
    assert installed is not None
    assert installed.ran is None
    out = torch.full_like(given.query, 7.0)
    backend.extend_attention_fwd(*passed(given, out), **OPTIONS)
    assert installed.ran == "own"
    assert not backend.calls
    close(out, twin(given), torch.float32)
    without_mask = list(passed(given, out))
    without_mask[9] = None
    backend.extend_attention_fwd(*without_mask, **OPTIONS)
    assert installed.ran == "own"
    assert len(backend.calls) == 1
    scaled = list(passed(given, out))
    scaled[13] = 0.5
    for args, options in (
        (scaled, OPTIONS),
        (passed(given, out), OPTIONS | {"logit_cap": 30.0}),
        (passed(given, out), OPTIONS | {"sliding_window_size": 128}),
        (passed(given, out), OPTIONS | {"sinks": torch.zeros(4)}),
        (passed(given, out), OPTIONS | {"score_mod": "bias"}),
        (passed(given, out), OPTIONS | {"skip_prefix": True}),
        (passed(given, out), OPTIONS | {"page_size": 16}),
    ):
        before, installed.ran = len(backend.calls), None
        backend.extend_attention_fwd(*args, **options)
        assert len(backend.calls) == before + 1
        assert installed.ran == "sglang"


def test_is_asked_for_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TritonAttnBackend()
    stock = backend.extend_attention_fwd
    monkeypatch.setenv(ATTENTION, "sglang")
    assert door.install(backend, 8, 4, torch.float32, "cpu") is None
    assert backend.extend_attention_fwd is stock
    monkeypatch.setenv(ATTENTION, "flash")
    with pytest.raises(ConfigError, match="own or sglang"):
        door.install(backend, 8, 4, torch.float32, "cpu")
    monkeypatch.setenv(ATTENTION, "own")
    with pytest.raises(ConfigError, match="not TritonAttnBackend"):
        door.install(object(), 8, 4, torch.float32, "cpu")
    monkeypatch.delenv(ATTENTION)
    assert door.install(object(), 8, 4, torch.float32, "cpu") is None
