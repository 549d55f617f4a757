"""The steps of a round on tree buffers, in plain torch: what runs on a CPU, and what the GPU kernels must equal.

`kernels.ops` has the same functions for CUDA. Rows are those of the running batch, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddbench.plugins.kernels.bits import pack_bits, unpack_bits
from ddbench.plugins.kernels.candidates_torch import candidates
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState
from ddbench.tree import ancestor_mask, build_tree

__all__ = [
    "apply_trees",
    "cache_table",
    "candidates",
    "gather_rows",
    "move_kv",
    "pack_bits",
    "restore_positions",
    "tree_attention",
    "unpack_bits",
    "visible",
    "walk",
    "write_trees",
]


def write_trees(state: TreeState, options: Options, log_probs: Tensor, ids: Tensor, slots: Tensor) -> Tensor:
    """Builds the best trees of a batch of drafts and writes them into their slots.

    Args:
        log_probs, ids: ``[batch, depth, k]``, sorted from the best down.
        slots: int ``[batch]``.

    Returns:
        The tokens of the nodes, int32 ``[batch, nodes]``; padding 0.
    """
    slots = slots.long()
    tree = build_tree(
        log_probs[:, : options.levels],
        options.nodes,
        options.width,
        None,
        options.min_log_prob,
        options.force_spine,
    )
    valid = tree.valid
    tokens = tree.token_ids(ids[:, : options.levels].long()).clamp(min=0).to(torch.int32)
    state.tokens[slots] = tokens
    state.parents[slots] = torch.where(valid, tree.parents + 1, -1).to(torch.int32)
    state.depths[slots] = tree.depths.to(torch.int32)
    state.mask[slots] = pack_bits(ancestor_mask(tree.parents, options.levels))
    return tokens


def apply_trees(
    state: TreeState, rows: int, query_start_loc: Tensor, positions: Tensor, input_ids: Tensor | None
) -> None:
    """Before the target's pass: tokens of the trees into ``input_ids``, and positions from sequential to root + depth.

    Args:
        query_start_loc: int32 ``[rows + 1]``; a row's tree stands at the end of its tokens, its root before it.
        positions: int64 ``[tokens]``, changed in place.
        input_ids: int32 ``[tokens]``, changed in place; None leaves the tokens alone.
    """
    for _, slot, first, drafts in _trees(state, rows, query_start_loc):
        step = torch.arange(1, drafts + 1, device=positions.device)
        positions[first : first + drafts] += state.depths[slot, :drafts] - step
        if input_ids is not None:
            input_ids[first : first + drafts] = state.tokens[slot, :drafts]


def restore_positions(state: TreeState, rows: int, query_start_loc: Tensor, positions: Tensor) -> None:
    """After the target's pass: sequential positions again, as the rest of the engine counts."""
    for _, slot, first, drafts in _trees(state, rows, query_start_loc):
        step = torch.arange(1, drafts + 1, device=positions.device)
        positions[first : first + drafts] -= state.depths[slot, :drafts] - step


def _trees(state: TreeState, rows: int, query_start_loc: Tensor) -> list[tuple[int, int, int, int]]:
    """(row, slot, index of the first node among the tokens, nodes) of every row that verifies a tree."""
    slots, drafts, ends = state.row_slot.tolist(), state.row_drafts.tolist(), query_start_loc.tolist()
    return [(r, slots[r], ends[r + 1] - drafts[r], drafts[r]) for r in range(rows) if slots[r] >= 0 and drafts[r] > 0]


def walk(
    state: TreeState,
    rows: int,
    choices: Tensor,
    cu_sampled: Tensor,
    emitted: Tensor,
    query_start_loc: Tensor | None = None,
    positions: Tensor | None = None,
) -> None:
    """Follows the target's choices through each row's tree (DDTree paper, section 4: verification).

    A row without a tree emits the choice after its root and nothing else. Fills ``state.path``.

    Args:
        choices: int ``[sampled]``, the target's token after every verified local index, row after row.
        cu_sampled: int32 ``[rows]``, inclusive cumulative count of each row's entries in ``choices``.
        emitted: int32 ``[rows, width]``, receives accepted tokens and the bonus token, then -1.
        query_start_loc, positions: where both are given, positions are restored too (`restore_positions`).
    """
    if query_start_loc is not None and positions is not None:
        restore_positions(state, rows, query_start_loc, positions)
    emitted.fill_(-1)
    state.path[:rows] = -1
    ends = [0, *cu_sampled.tolist()]
    slots, drafts = state.row_slot.tolist(), state.row_drafts.tolist()
    for row in range(rows):
        chosen = choices[ends[row] : ends[row + 1]].tolist()
        count = min(drafts[row], len(chosen) - 1) if slots[row] >= 0 else 0
        tokens = state.tokens[slots[row], :count].tolist()
        parents = state.parents[slots[row], :count].tolist()
        children = {(parents[i], tokens[i]): i + 1 for i in reversed(range(count))}
        at, path = 0, [0]
        while (at, chosen[at]) in children:
            at = children[at, chosen[at]]
            path.append(at)
        line = [chosen[local] for local in path]
        emitted[row, : len(line)] = torch.tensor(line, dtype=torch.int32)
        state.path[row, : len(path)] = torch.tensor(path, dtype=torch.int32)


def move_kv(
    state: TreeState, rows: int, query_start_loc: Tensor, slot_mapping: Tensor, caches: Sequence[Tensor]
) -> None:
    """Keys and values of the accepted path to the front of each row's verify window, in every layer of ``caches``.

    Args:
        slot_mapping: int64 ``[tokens]``, where each token's key and value lie.
        caches: one a layer, ``[blocks, kv_heads, block_size, 2 * head_size]``, any strides.
    """
    pairs = [pair for moves in _moves(state, rows, query_start_loc) for pair in moves]
    if not pairs:
        return
    source, target = (slot_mapping[torch.tensor(side)].long() for side in zip(*pairs, strict=True))
    for cache in caches:
        size = cache.shape[2]
        cache[target // size, :, target % size] = cache[source // size, :, source % size].clone()


def gather_rows(state: TreeState, rows: int, query_start_loc: Tensor, hidden: Tensor) -> None:
    """Rows of ``hidden`` ``[tokens, size]`` of the accepted path to the front of each verify window, in place."""
    pairs = [pair for moves in _moves(state, rows, query_start_loc) for pair in moves]
    if pairs:
        source, target = (torch.tensor(side) for side in zip(*pairs, strict=True))
        hidden[target] = hidden[source].clone()


def _moves(state: TreeState, rows: int, query_start_loc: Tensor) -> list[list[tuple[int, int]]]:
    """(from, to) token indices of each row's accepted nodes that are not in their place."""
    paths = state.path[:rows].tolist()
    moves = []
    for row, _, first, _ in _trees(state, rows, query_start_loc):
        root = first - 1
        path = [local for local in paths[row] if local >= 0]
        moves.append([(root + local, root + place) for place, local in enumerate(path) if local != place])
    return moves


def tree_attention(
    state: TreeState | None,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    out: Tensor,
    causal: bool = True,
) -> None:
    """Attention over the paged cache, row after row; rows with a tree see their context and, in it, their ancestors.

    Args:
        state: whose ``row_slot`` and ``row_drafts`` say which rows have a tree; None for none.
        query, out: ``[tokens, heads, head_size]``.
        cache: ``[blocks, kv_heads, block_size, 2 * head_size]``, keys before values, the new tokens' own included.
        block_table: int32 ``[rows, blocks]``.
        seq_lens: int32 ``[rows]``, the new tokens included.
        causal: False lets every token see the whole sequence (a block drafter's own pass).
    """
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    size, head = cache.shape[2], query.shape[-1]
    group = query.shape[1] // cache.shape[1]
    for row, length in enumerate(lengths):
        begin, end = starts[row], starts[row + 1]
        if end <= begin or length <= 0 or begin >= query.shape[0]:
            continue
        past = torch.arange(length)
        kv = cache[block_table[row, past // size].long(), :, past % size].float()  # [length, kv_heads, 2 * head]
        keys, values = (part.repeat_interleave(group, dim=1) for part in (kv[..., :head], kv[..., head:]))
        scores = torch.einsum("qhd,khd->hqk", query[begin:end].float(), keys) * scale
        if causal:
            scores = scores.masked_fill(~visible(state, row, end - begin, length), float("-inf"))
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(out.dtype)


def visible(state: TreeState | None, row: int, queries: int, length: int) -> Tensor:
    """Which of a sequence's positions each of its last ``queries`` tokens sees: bool ``[queries, length]``."""
    past = length - queries
    seen = torch.arange(length)[None, :] <= past + torch.arange(queries)[:, None]
    slot = -1 if state is None else int(state.row_slot[row])
    drafts = 0 if state is None else int(state.row_drafts[row])
    if state is None or slot < 0 or drafts == 0:
        return seen
    root = queries - 1 - drafts
    width = drafts + 1
    seen[root:, past + root :] = unpack_bits(state.mask[slot, :width], width)
    return seen


def cache_table(caches: Sequence[Tensor]) -> Sequence[Tensor]:
    """What `move_kv` takes as ``caches``: here the tensors themselves."""
    return caches
