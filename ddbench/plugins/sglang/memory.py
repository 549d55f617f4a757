"""What a DDTree server needs of a GPU's memory, computed before it starts from numbers of the configuration.

N is the verify width, B the drafter's block, R the largest captured batch, L the context length. Sizes are those of
SGLang 0.5.17's and 0.5.23's own allocations (page size 1, multi-head attention), for one rank, in bytes. Not among
them: the CUDA context and libraries, what kernels need for activations, and the allocator's cut-offs.

Keys and values are sized by tokens, so a verify width costs mostly what is captured with it: logits of R * N rows in
float32, and index and mask buffers of R * N * L entries. Long contexts make the latter the largest item by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.device import shared_bytes_of
from ddbench.plugins.kernels.words import words_of
from ddbench.plugins.sglang.kernels.attention_plan import entries_of
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.state_memory import Recurrent, state_parts
from ddbench.plugins.sglang.width_memory import narrow_bytes, offer_bytes

GIB = 2**30
EXTRA_POSITIONS = 4  # of a row of the slot table, beside context and windows
TRITON_SPLITS = 8  # SGLang's --triton-attention-num-kv-splits
FLASHINFER_WORKSPACE = 512 * 2**20  # of Qwen models, 384 MiB of others
SAMPLED_ROWS = 256  # entries of a window whose distributions are in memory at a time (`choose.ROWS`)
MARGIN = 2 * GIB  # of `defaults`: context, libraries, compiled kernels, fragments
BACKENDS = ("triton", "flashinfer", "fa3")
POOLED = ("weights", "kv_target", "kv_drafter", "states", "node_states", "node_windows")  # in --mem-fraction-static


@dataclass(frozen=True)
class Model:
    """A model's dimensions. ``kv_element`` bytes a number of the cache, ``element`` of an activation.

    Of a hybrid, ``layers`` are those with keys and values, and ``recurrent`` the others.
    """

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    intermediate: int
    vocabulary: int
    weight_bytes: int
    element: int = 2
    kv_element: int = 2
    recurrent: Recurrent | None = None

    def layer_kv_bytes(self, ranks: int) -> int:
        """Keys and values of one token in one layer of one of ``ranks`` tensor-parallel ranks."""
        return 2 * max(1, self.kv_heads // ranks) * self.head_size * self.kv_element


@dataclass(frozen=True)
class Setup:
    """A server's sizes.

    Attributes:
        version: of SGLang.
        sizes: verify width, block and candidates; of a chain, ``Sizes(B, B, 1)``.
        requests: most running requests.
        captured: batch sizes with a graph.
        context: context length.
        tokens: of the key-value pool.
        backend, draft_backend: attention backends of target and drafter.
        features: the target's layers whose hidden states the drafter reads.
        ranks: tensor-parallel ranks.
        chunk: most tokens of one prefill pass.
        multiprocessors: of the GPU; 132 of an H200, 188 of an RTX PRO 6000.
        narrower: verify widths that have graphs beside ``sizes.verify_width``'s (`pilot`).
    """

    version: str
    sizes: Sizes
    requests: int
    captured: Sequence[int]
    context: int
    tokens: int
    backend: str = "triton"
    draft_backend: str = "triton"
    features: int = 5
    ranks: int = 1
    chunk: int = 8192
    multiprocessors: int = 132
    narrower: Sequence[int] = ()

    def __post_init__(self) -> None:
        for key, value in (("attention_backend", self.backend), ("draft_attention_backend", self.draft_backend)):
            if value not in BACKENDS:
                raise ConfigError(key, value, " or ".join(BACKENDS))

    @property
    def rows(self) -> int:
        """Largest batch with a graph."""
        return max(self.captured)


def cell_bytes(version: str, target: Model, drafter: Model | None, ranks: int = 1) -> int:
    """Bytes that SGLang counts for one token of the pool, target and drafter together.

    0.5.17 gives the drafter's layers the size of the target's; 0.5.23 takes the drafter's own geometry.

    Raises ConfigError for another version.
    """
    if version not in ("0.5.17", "0.5.23"):
        raise ConfigError("version", version, "0.5.17 or 0.5.23")
    cell = target.layers * target.layer_kv_bytes(ranks)
    if drafter is None:
        return cell
    if version == "0.5.17":
        return -(-cell * (target.layers + drafter.layers) // target.layers)
    return cell + drafter.layers * drafter.layer_kv_bytes(ranks)


def pool_bytes(tokens: int, model: Model, ranks: int = 1) -> int:
    """Bytes of one model's keys and values for ``tokens`` tokens; slot 0 is one more, for what nobody reads."""
    return (tokens + 1) * model.layers * model.layer_kv_bytes(ranks)


def reserved_tokens(requests: int, sizes: Sizes) -> int:
    """Tokens of the pool that windows hold: two of each request are under way at a time."""
    return 2 * requests * sizes.window


def attention_bytes(
    backend: str, width: int, rows: int, context: int, model: Model, ranks: int, verifies: bool, tree: bool
) -> int:
    """Static buffers of a backend's graphs for ``width`` tokens of each of ``rows`` sequences.

    ``verifies``: the model is the target, whose backend owns a verify mask; ``tree``: it has several candidates.
    """
    tokens = rows * width
    if backend == "triton":
        partial = tokens * (model.heads // ranks) * TRITON_SPLITS * (model.head_size + 1) * 4  # of plain decoding
        return tokens * context * 8 + partial + tokens * 4 + verifies * tokens * (context + width)
    if backend == "flashinfer":  # has a mask buffer, read or not
        return tokens * context * (4 + 1)
    tables = 4 * rows * context * 4 + 3 * context * 8  # decode, draft, verify and extend
    if not (verifies and tree):
        return tables + verifies * tokens * width
    cascade = 2 * rows * context * 4 + tokens * (width + 3) * 4
    return tables + cascade + tokens * (context + width)


def tables_bytes(requests: int, sizes: Sizes) -> int:
    """The plug-in's own buffers: `Trees`, two of `Walk`, and `Tables`."""
    width, block = sizes.verify_width, sizes.block
    trees = width * (3 * 8 + 2 * 4 + 4 * words_of(width))
    walk = block * (4 + 8) + 4 + 8 + 8
    windows = 3 * 8 * block + 2 * 8 * width
    return requests * (trees + 2 * walk + windows) + 5 * 4


def splits_bytes(setup: Setup, target: Model) -> int:
    """Where the plug-in's own attention of the verify pass puts its splits (`verify_attention`); 0 of a chain."""
    if setup.backend != "triton" or setup.sizes.top_k == 1:
        return 0
    heads, kv_heads = target.heads // setup.ranks, max(1, target.kv_heads // setup.ranks)
    width = setup.sizes.verify_width
    rows = max(setup.requests, setup.rows)
    sizes = (heads, kv_heads, target.head_size, target.element, shared_bytes_of((9, 0)))
    entries = entries_of(rows, width, *sizes, setup.multiprocessors)
    return entries * heads * (target.head_size + 1) * 4


def parts(setup: Setup, target: Model, drafter: Model) -> dict[str, int]:
    """Bytes by what they are for; their sum is what a started server holds."""
    sizes, rows, ranks = setup.sizes, setup.rows, setup.ranks
    width, block = sizes.verify_width, sizes.block
    verified, drafted = rows * width, rows * block
    sides = ((setup.backend, width, target, True), (setup.draft_backend, block, drafter, False))
    attention = [
        attention_bytes(backend, side, rows, setup.context, model, ranks, verifies, sizes.top_k > 1)
        for backend, side, model, verifies in sides
    ]
    workspace = FLASHINFER_WORKSPACE if "flashinfer" in (setup.backend, setup.draft_backend) else 0
    # Each captured batch size of 0.5.17 keeps its own output of target features; 0.5.23 has one for all.
    kept = sum(setup.captured) if setup.version == "0.5.17" else rows
    # One buffer of the larger of both for target and drafter, unless the drafter's is made second and larger.
    logits = verified if width >= block else verified + drafted
    return {
        "weights": target.weight_bytes + drafter.weight_bytes,
        "kv_target": pool_bytes(setup.tokens, target, ranks),
        "kv_drafter": pool_bytes(setup.tokens, drafter, ranks),
        "slot_table": (setup.requests + 1) * (setup.context + EXTRA_POSITIONS + 2 * sizes.window) * 4,
        "logits": logits * target.vocabulary * 4,
        "draft_logits": rows * (block - 1) * (target.vocabulary // ranks) * target.element,
        "attention_target": attention[0],
        "attention_drafter": attention[1],
        "attention_workspace": workspace,
        "attention_splits": splits_bytes(setup, target),
        "inputs": _inputs(rows, width, target) + (0 if width == block else _inputs(rows, block, drafter)),
        "features": kept * width * setup.features * target.hidden * target.element,
        "tables": tables_bytes(setup.requests, sizes),
        **_states(setup, target),
        **_further(setup, target, kept),
    }


def _further(setup: Setup, target: Model, kept: int) -> dict[str, int]:
    """Graphs of further verify widths; ``kept``: sequences of the outputs that are kept."""
    if not setup.narrower:
        return {}
    found = narrow_bytes(
        setup.narrower,
        setup.sizes.block,
        setup.requests,
        lambda width: _inputs(setup.rows, width, target),
        lambda width: kept * width * setup.features * target.hidden * target.element,
    )
    budgets = sum(width > 1 for width in setup.narrower) + 1
    return {"narrower": found + offer_bytes(setup.requests, setup.sizes.verify_width, setup.sizes.block, budgets)}


def _states(setup: Setup, target: Model) -> dict[str, int]:
    """Recurrent states, as many as requests: of a server without a prefix cache."""
    if target.recurrent is None:
        return {}
    return state_parts(target.recurrent, setup.requests, setup.requests, setup.sizes, setup.ranks)


def _inputs(rows: int, width: int, model: Model) -> int:
    """Static inputs of the graphs of ``width`` tokens a sequence: ids, slots, positions (one and three), embeddings."""
    tokens = rows * width
    return tokens * (model.hidden * model.element + 8 + 8 + 8 + 24) + rows * (8 + 8) + (rows + tokens) * width


def slack_bytes(setup: Setup, target: Model, drafter: Model) -> int:
    """What must stay free beside weights and key-value pools: `parts` but those, passes at work, and `MARGIN`.

    Passes at work are the captured ones (`captured_bytes`), a prefill chunk or verify pass outside of graphs, whose
    features are there one by one and joined, and the distributions that sampling sorts. Upper bounds for dense models:
    none of them uses again what another has left in the allocator.
    """
    found = parts(setup, target, drafter)
    static = sum(size for name, size in found.items() if name not in POOLED)
    verified = setup.rows * setup.sizes.verify_width
    tokens = max(setup.chunk, verified)
    eager = pass_bytes(tokens, target, setup.ranks) + 2 * _features(tokens, setup, target)
    sampling = min(verified, SAMPLED_ROWS) * target.vocabulary * (4 * 4 + 8)
    return static + captured_bytes(setup, target, drafter) + eager + sampling + MARGIN


def captured_bytes(setup: Setup, target: Model, drafter: Model) -> int:
    """What graphs hold beyond their static buffers: a private pool has it as long as they live.

    The largest batch's intermediates, of target and drafter, in which smaller batches find room; the target's features
    before they are joined (the `features` of `parts` are); and its logits as the output head gives them, before
    ``_copy_logits_to_buffer`` of SGLang's ``logits_processor`` writes them into the float32 ones of `parts`. With
    several ranks a rank's own share of them is there before the whole.
    """
    verified, drafted = setup.rows * setup.sizes.verify_width, setup.rows * setup.sizes.block
    vocabulary = target.vocabulary + (target.vocabulary // setup.ranks if setup.ranks > 1 else 0)
    logits = verified * vocabulary * target.element
    both = pass_bytes(verified, target, setup.ranks) + pass_bytes(drafted, drafter, setup.ranks)
    return both + _features(verified, setup, target) + logits


def pass_bytes(tokens: int, model: Model, ranks: int) -> int:
    """The widest moment of a dense layer: gate, up and their product, and four tensors of hidden states."""
    return tokens * (3 * model.intermediate // ranks + 4 * model.hidden) * model.element


def _features(tokens: int, setup: Setup, target: Model) -> int:
    return tokens * setup.features * target.hidden * target.element


@dataclass(frozen=True)
class Defaults:
    """``tokens``: --max-total-tokens, ``fraction``: --mem-fraction-static."""

    tokens: int
    fraction: float


def defaults(setup: Setup, target: Model, drafter: Model, free_bytes: int, tokens: int | None = None) -> Defaults:
    """A pool of ``tokens``, None for every request at full length, and the largest fraction that leaves room for the
    rest.

    ``setup.tokens`` is not looked at. SGLang gives weights and pool at most ``fraction`` of what was free before.

    Raises ConfigError, which names the widest verify width that fits, where this one does not.
    """
    pool, need = _need(setup, target, drafter, tokens)
    if need > free_bytes:
        asked, have = need / GIB, free_bytes / GIB
        allowed = (
            f"needs {asked:.1f} GiB of {have:.1f} GiB free; {_narrower(setup, target, drafter, free_bytes, tokens)}"
        )
        raise ConfigError("speculative_num_draft_tokens", setup.sizes.verify_width, allowed)
    return Defaults(pool, int(1000 * (1 - slack_bytes(setup, target, drafter) / free_bytes)) / 1000)


def _need(setup: Setup, target: Model, drafter: Model, tokens: int | None) -> tuple[int, int]:
    """Tokens of the pool, None for every request at full length, and bytes of weights, pool and slack."""
    if tokens is None:
        tokens = setup.requests * setup.context + reserved_tokens(setup.requests, setup.sizes)
    pool = tokens * cell_bytes(setup.version, target, drafter, setup.ranks) + sum(_states(setup, target).values())
    return tokens, target.weight_bytes + drafter.weight_bytes + pool + slack_bytes(setup, target, drafter)


def _narrower(setup: Setup, target: Model, drafter: Model, free_bytes: int, tokens: int | None) -> str:
    sizes = setup.sizes
    chain = sizes.top_k == 1 and sizes.verify_width == sizes.block  # its width is the drafter's own
    for width in () if chain else range(sizes.verify_width - 1, 1, -1):
        smaller = replace(setup, sizes=Sizes(width, sizes.block, min(sizes.top_k, width - 1)))
        if _need(smaller, target, drafter, tokens)[1] <= free_bytes:
            return f"at this context and batch size at most {width}"
    return "fewer requests, a shorter context or fewer captured batch sizes are needed"
