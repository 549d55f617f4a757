"""One rank of a tensor-parallel sampler: `python sgl_ranks.py RANK FOLDER` writes the trees that it built."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.sampler import TreeSampler

ROWS, BLOCK, HIDDEN, VOCABULARY = 3, 6, 8, 61
FIRST_HALF = 32  # rows of the head on rank 0; rank 1 has one less, padded
SIZES = Sizes(16, BLOCK, 5)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states ``[R * B, size]``, tokens ``[R * B]``, the whole head ``[vocabulary, size]``."""
    seeded = torch.Generator().manual_seed(7)
    hidden = torch.randint(-2, 3, (ROWS * BLOCK, HIDDEN), generator=seeded).float()
    weight = torch.randint(-1, 2, (VOCABULARY, HIDDEN), generator=seeded).float()
    return hidden, torch.randint(0, VOCABULARY, (ROWS * BLOCK,), generator=seeded), weight


def trees_of(hidden: Tensor, ids: Tensor, head: Any, group: Any) -> Trees:
    trees = Trees(ROWS, SIZES.verify_width, BLOCK, "cpu")
    trees.limit(Caps(SIZES.top_k, BLOCK - 1, SIZES.verify_width - 1))
    TreeSampler(torch_ops, trees, SIZES, head, group)(hidden, ids)
    return trees


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    hidden, ids, weight = inputs()
    begin, end = (0, FIRST_HALF) if rank == 0 else (FIRST_HALF, VOCABULARY)
    padded = torch.full((FIRST_HALF, HIDDEN), 9.0)
    padded[: end - begin] = weight[begin:end]
    shard = SimpleNamespace(num_added_elements=0, num_org_elements=end - begin, org_vocab_start_index=begin)
    group = SimpleNamespace(world_size=2, all_gather_into_tensor=dist.all_gather_into_tensor)
    trees = trees_of(hidden, ids, SimpleNamespace(weight=padded, shard_indices=shard), group)
    (folder / f"{rank}.json").write_text(
        json.dumps({"tokens": trees.tokens.tolist(), "parents": trees.parents.tolist()})
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
