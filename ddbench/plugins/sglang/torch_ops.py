"""The steps of a round in plain torch: what the Triton kernels of `kernels.ops` must equal, with the same signatures.

Order of a round: `prepare`, the drafter's pass, `candidates` (with tensor parallelism `shard_candidates` and `merge`),
`build`, `lay_out`, the target's pass, `walk`, `move_kv`, `gather_rows`. Rows are those of the running batch, R of them;
every tensor of rows may be larger than the batch where it belongs to `Trees` or `Walk`, and exactly R rows elsewhere.
N is the verify width, B the drafter's block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddbench.plugins.kernels.bits import pack_bits, unpack_bits
from ddbench.plugins.kernels.candidates_torch import best, candidates
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.tree import ancestor_mask, build_tree

__all__ = [
    "build",
    "candidates",
    "gather_rows",
    "kv_table",
    "lay_out",
    "merge",
    "move_kv",
    "prepare",
    "shard_candidates",
    "walk",
    "weigh",
    "write_packed_mask",
]


def prepare(
    bonus: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    mask_token: int,
    block_ids: Tensor,
    positions: Tensor,
    draft_slots: Tensor,
    slots: Tensor,
) -> None:
    """The drafter's block and the cache slots of the verify window, read once from ``req_to_token``.

    Args:
        bonus: int ``[R]``, the root of each row.
        seq_lens: int ``[R]``, committed length before the window.
        req_pool_indices: int ``[R]``, row of each request in ``req_to_token``.
        req_to_token: int ``[requests, context]``, slot of every position of a request.
        block_ids: int64 ``[R, B]``, receives the root and then ``mask_token``.
        positions: int64 ``[R, B]``, receives seq_lens + 0 .. B - 1.
        draft_slots: int64 ``[R, B]``, receives the slots of these positions.
        slots: int64 ``[R, N]``, receives the slots of seq_lens + 0 .. N - 1. Beyond the table's edge slots are 0, the
            engine's own place for what nobody reads.
    """
    block_ids.fill_(mask_token)
    block_ids[:, 0] = bonus
    for out in (draft_slots, slots):
        at = seq_lens.long()[:, None] + torch.arange(out.shape[1], device=out.device)
        inside = at < req_to_token.shape[1]
        found = req_to_token[req_pool_indices.long()[:, None], at.clamp(max=req_to_token.shape[1] - 1)]
        out.copy_(torch.where(inside, found, 0))
    positions.copy_(seq_lens.long()[:, None] + torch.arange(positions.shape[1], device=positions.device))


def shard_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``k`` best of one shard of the vocabulary, for `merge`.

    Returns:
        Logits float32 ``[rows, k]``, best first, of equal ones the lower id; ids within the shard, int32 ``[rows, k]``;
        log-sum-exp of the shard's logits, float32 ``[rows]``.
    """
    return best(logits, k)


def merge(values: Tensor, ids: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The best of the whole vocabulary from the best of its shards, which hold ascending, contiguous ids.

    Exact in order, ties included, and the same on every rank that is given the same tensors.

    Args:
        values: float32 ``[shards, rows, k]``, of `shard_candidates`.
        ids: int ``[shards, rows, k]``, ids of the whole vocabulary.
        lse: float32 ``[shards, rows]``.

    Returns:
        As `candidates`: log-probabilities float32 and ids int32, ``[rows, k]``.
    """
    k = values.shape[2]
    flat = values.transpose(0, 1).flatten(1)
    order = flat.sort(dim=1, descending=True, stable=True).indices[:, :k]
    chosen = ids.transpose(0, 1).flatten(1).gather(1, order).to(torch.int32)
    return flat.gather(1, order) - lse.logsumexp(0)[:, None], chosen


def build(trees: Trees, log_probs: Tensor, ids: Tensor, roots: Tensor) -> None:
    """Builds each row's best tree within ``trees.caps`` into ``trees``: tokens, parents, depths, bits.

    The tree is `ddbench.tree.build_tree`'s of the same limits, ties included. Made to be the tail of the drafter's
    graph. Capped nodes are padding.

    Args:
        log_probs, ids: ``[R, B - 1, K]``, sorted from the best down; any strides.
        roots: int ``[R]``, token of the root; any stride.
    """
    caps = Caps.of(trees.caps.tolist())
    rows, drafted, k = log_probs.shape
    tree = build_tree(
        log_probs,
        min(caps.nodes, trees.verify_width - 1),
        min(caps.width, k),
        min(caps.depth, drafted),
        caps.min_log_prob,
        caps.force_spine,
    )
    padding = trees.verify_width - 1 - tree.parents.shape[1]
    parents = torch.nn.functional.pad(tree.parents, (0, padding), value=-2)
    trees.tokens[:rows, 0] = roots.to(torch.int64)
    tokens = tree.token_ids(ids.long()).clamp(min=0)
    trees.tokens[:rows, 1:] = torch.nn.functional.pad(tokens, (0, padding))
    trees.parents[:rows, 0] = -1
    trees.parents[:rows, 1:] = torch.where(parents == -2, -1, parents + 1).to(torch.int32)
    trees.depths[:rows, 0] = 0
    trees.depths[:rows, 1:] = torch.nn.functional.pad(tree.depths, (0, padding)).to(torch.int32)
    trees.bits[:rows] = pack_bits(ancestor_mask(parents, drafted))


def weigh(trees: Trees, log_probs: Tensor, ids: Tensor, scores: Tensor, chain: Tensor) -> None:
    """What the drafter thinks of each entry of trees that were built of these candidates.

    Args:
        log_probs, ids: ``[R, B - 1, K]``, as `build` was given them.
        scores: float32 ``[R, N]``, receives the sum of a node's log-probabilities from the root down, summed in any
            order; -inf for the root and for padding.
        chain: int32 ``[R, N]``, receives 1 for a node of the drafter's own chain: rank 0 from the root down.
    """
    rows, levels, k = log_probs.shape
    depths, parents = trees.depths[:rows].long(), trees.parents[:rows].long().clamp(min=0)
    level = (depths - 1).clamp(min=0)[:, :, None].expand(-1, -1, k)
    ranks = (ids.long().gather(1, level) == trees.tokens[:rows, :, None]).int().argmax(-1)
    own = log_probs.float().clamp(max=0.0).gather(1, level).gather(2, ranks[:, :, None])[:, :, 0]
    total, first = torch.zeros_like(own), torch.ones_like(depths)
    for depth in range(1, levels + 1):
        here = depths == depth
        total = torch.where(here, own + total.gather(1, parents), total)
        first = torch.where(here, (ranks == 0) & (first.gather(1, parents) == 1), first)
    scores[:rows] = torch.where(depths > 0, total, float("-inf"))
    chain[:rows] = torch.where(depths > 0, first, 0).to(torch.int32)


def lay_out(trees: Trees, seq_lens: Tensor, positions: Tensor, mask: Tensor | None = None, whole: bool = False) -> None:
    """What the target's pass needs beside the tokens: positions, the mask, and the links of ``trees``.

    Args:
        seq_lens: int ``[R]``, committed length L_r before the window, on the device.
        positions: int64 ``[R, N]``, receives L_r + depth.
        mask: bool or uint8, flat; SGLang's FULL_MASK: row after row of the batch a row-major ``N x (L_r + N)`` block,
            1 where a token may look. Entries beyond its end are not written; a row that has any must be one that nobody
            reads (`edge`). None leaves the mask alone.
        whole: writes the context part too (all 1), as backends need that read it; else the last N columns alone.
    """
    rows, width = seq_lens.shape[0], trees.verify_width
    positions.copy_(seq_lens.long()[:, None] + trees.depths[:rows])
    trees.first_child[:rows] = -1
    trees.next_sibling[:rows] = -1
    for row, above in enumerate(trees.parents[:rows].tolist()):
        last: dict[int, int] = {}
        for local, parent in enumerate(above):
            if parent < 0:
                continue
            if parent in last:
                trees.next_sibling[row, last[parent]] = local
            else:
                trees.first_child[row, parent] = local
            last[parent] = local
    if mask is None:
        return
    seen = unpack_bits(trees.bits[:rows], width).to(mask.dtype)
    start = 0
    for row, length in enumerate(seq_lens.tolist()):
        block = torch.ones(width, length + width, dtype=mask.dtype, device=mask.device)
        block[:, length:] = seen[row]
        first = 0 if whole else length
        place = start + torch.arange(block.numel(), device=mask.device).view_as(block)[:, first:]
        there = place < mask.numel()
        mask[place[there]] = block[:, first:][there]
        start += block.numel()


def write_packed_mask(trees: Trees, seq_lens: Tensor, packed: Tensor, starts: Tensor, fill: int = 1) -> None:
    """The whole mask as FlashInfer's kernels read it, one bit an entry: in place of its blocking plan.

    Args:
        seq_lens: int ``[R]``, committed length L_r before the window, on the device.
        packed: uint8, flat. Row r's block of ``N x (L_r + N)`` bits, row-major, lowest bit of a byte first, begins at
            byte ``starts[r]``; the bits that fill up its last byte are 0.
        starts: int32 ``[P + 1]``, P >= R, receives the blocks' first bytes and the end of the last one. Rows R .. P - 1
            are a graph's padding: of ``fill`` committed tokens, all 1.
    """
    width = trees.verify_width
    lengths = seq_lens.tolist() + [fill] * (starts.shape[0] - 1 - seq_lens.shape[0])
    seen = unpack_bits(trees.bits[: seq_lens.shape[0]], width)
    place = torch.arange(8, device=packed.device)
    at = 0
    for row, length in enumerate(lengths):
        block = torch.ones(width, length + width, dtype=torch.bool, device=packed.device)
        if row < seq_lens.shape[0]:
            block[:, length:] = seen[row]
        bits = torch.nn.functional.pad(block.flatten(), (0, -block.numel() % 8)).view(-1, 8)
        starts[row] = at
        packed[at : at + bits.shape[0]] = (bits.long() << place).sum(1).to(torch.uint8)
        at += bits.shape[0]
    starts[len(lengths)] = at


def walk(trees: Trees, choices: Tensor, seq_lens: Tensor, out: Walk, forced: Tensor | None = None) -> None:
    """Follows the target's choices down each row's tree (DDTree paper, section 4: verification) into ``out``.

    The same walk verifies greedily, with the target's best token after every entry as ``choices``, and by sample and
    match, with one draw from the target's filtered distribution after every entry.

    Args:
        choices: int ``[R, N]``, the target's token after every entry of the window.
        seq_lens: int ``[R]``, committed length before the window.
        forced: int32 ``[R]``; where positive, the length of the path whatever the target says, as far as the tree
            reaches: down to the first entry of depth ``forced - 1``, or of the deepest there is. For synthetic
            measurements alone.
    """
    rows = seq_lens.shape[0]
    out.path[:rows] = -1
    out.out_tokens[:rows] = 0
    for row in range(rows):
        said = choices[row].tolist()
        tokens, parents = trees.tokens[row].tolist(), trees.parents[row].tolist()
        want = 0 if forced is None else int(forced[row])
        path = _forced_path(parents, trees.depths[row].tolist(), want) if want > 0 else _path(said, tokens, parents)
        line = [tokens[local] for local in path[1:]] + [said[path[-1]]]
        out.path[row, : len(path)] = torch.tensor(path, dtype=torch.int32)
        out.out_tokens[row, : len(line)] = torch.tensor(line)
        out.bonus[row] = line[-1]
        out.commit_lens[row] = len(path)
        out.new_seq_lens[row] = int(seq_lens[row]) + len(path)


def _path(said: list[int], tokens: list[int], parents: list[int]) -> list[int]:
    """Local indices from the root on, as long as the target's choice is among the children."""
    children = {(parents[i], tokens[i]): i for i in reversed(range(len(tokens))) if parents[i] >= 0}
    path = [0]
    while (path[-1], said[path[-1]]) in children:
        path.append(children[path[-1], said[path[-1]]])
    return path


def _forced_path(parents: list[int], depths: list[int], length: int) -> list[int]:
    """The path of ``length`` entries to the first entry that deep, or to the first of the deepest."""
    local = depths.index(min(length - 1, max(depths)))
    path = [local]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def kv_table(buffers: Sequence[Tensor]) -> Sequence[Tensor]:
    """What `move_kv` takes as ``table``: here the buffers themselves, one a layer and side, ``[slots, ...]``.

    Slot-major and dense within a slot (page size 1), as ``k_buffer`` and ``v_buffer`` of SGLang's MHATokenToKVPool.
    """
    return buffers


def move_kv(out: Walk, slots: Tensor, table: Sequence[Tensor]) -> None:
    """Keys and values of the accepted path to the front of each row's window, in place: entry d of the path to slot d.

    Args:
        slots: int64 ``[R, N]``, the window's slots as `prepare` read them; the engine's own table may have changed.
        table: from `kv_table`.
    """
    paths = out.path[: slots.shape[0]].tolist()
    pairs = [(r, local, place) for r, path in enumerate(paths) for place, local in enumerate(path) if local > place]
    if not pairs:
        return
    row, local, place = torch.tensor(pairs, device=slots.device).unbind(1)
    for buffer in table:
        buffer[slots[row, place]] = buffer[slots[row, local]].clone()


def gather_rows(out: Walk, hidden: Tensor, gathered: Tensor) -> None:
    """Rows of the accepted path, row after row of the batch.

    Args:
        hidden: ``[R * N, size]``, the target's features of every entry; last dimension dense.
        gathered: ``[R * B, size]``, receives entry d of row r's path at ``r * B + d``; beyond its end the root's row.
    """
    block = out.path.shape[1]
    rows = gathered.shape[0] // block
    width = hidden.shape[0] // rows if rows else 1
    first = torch.arange(rows, device=hidden.device)[:, None] * width
    gathered.copy_(hidden[(first + out.path[:rows].clamp(min=0)).flatten()])
