"""What a decode run takes and gives: requests with their sampling, strategies with their shape, records by round."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from ddbench.errors import ConfigError

STRATEGIES = ("autoregressive", "dflash", "eagle", "ddtree")

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How the target's tokens are drawn. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 keep the whole law.

    Raises:
        ConfigError: a value outside its range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError("temperature", self.temperature, "a finite number >= 0 (0 is greedy)")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError("top_p", self.top_p, "a number in (0, 1]")
        if self.top_k < 0:
            raise ConfigError("top_k", self.top_k, "an integer >= 0 (0 keeps every token)")


@dataclass(frozen=True)
class Request:
    """One prompt to be continued, already as token ids (any chat template applied).

    ``prompt_id`` and ``turn`` also key the random draws: the same request draws the same uniforms under every strategy.

    Raises:
        ConfigError: an empty prompt, or no token to generate.
    """

    prompt_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    turn: int = 0

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ConfigError("token_ids", self.prompt_id, "a prompt of at least one token")
        if self.max_new_tokens < 1:
            raise ConfigError("max_new_tokens", self.max_new_tokens, "an integer >= 1")

    @property
    def draw_seed(self) -> int:
        """A 63-bit key of (seed, prompt id, turn): with the absolute position it determines a token's uniform."""
        text = f"{self.sampling.seed}\0{self.prompt_id}\0{self.turn}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True)
class Strategy:
    """A way to decode, with the shape of what it drafts; an axis that it lacks, or leaves to its default, is None.

    =============== ============================== ===================================== =========================
    name            depth                          width                                 nodes
    =============== ============================== ===================================== =========================
    autoregressive  -                              -                                     -
    dflash          chain length, default whole    -                                     -
                    block
    eagle           drafter passes (required)      drafter's top-k and beam, default 1   default ``depth`` at width 1
    ddtree          default whole block            children a node, default unlimited    default ``block_size - 1``
    =============== ============================== ===================================== =========================

    Raises:
        ConfigError: an unknown name, a number below 1, or an axis that the strategy does not have.
    """

    name: str
    width: int | None = None
    depth: int | None = None
    nodes: int | None = None
    force_spine: bool = False
    min_log_prob: float | None = None

    def __post_init__(self) -> None:
        if self.name not in STRATEGIES:
            raise ConfigError("strategy", self.name, f"one of {', '.join(STRATEGIES)}")
        axes = {"autoregressive": (), "dflash": ("depth",)}.get(self.name, ("width", "depth", "nodes"))
        for axis in ("width", "depth", "nodes"):
            value = getattr(self, axis)
            if value is None:
                continue
            if axis not in axes:
                raise ConfigError(f"strategy.{axis}", value, f"null, since {self.name} has no {axis}")
            if value < 1:
                raise ConfigError(f"strategy.{axis}", value, "an integer >= 1, or null")
        if self.name != "ddtree" and self.force_spine:
            raise ConfigError("strategy.force_spine", True, f"false, since {self.name} is not a ddtree")
        if self.name != "ddtree" and self.min_log_prob is not None:
            raise ConfigError("strategy.min_log_prob", self.min_log_prob, f"null, since {self.name} is not a ddtree")
        if self.min_log_prob is not None and not self.min_log_prob <= 0.0:
            raise ConfigError("strategy.min_log_prob", self.min_log_prob, "a log-probability <= 0, or null")
        if self.name == "eagle" and self.depth is None:
            raise ConfigError("strategy.depth", None, "an integer >= 1: the drafter passes of an eagle round")
        if self.name == "eagle" and self.nodes is None and (self.width or 1) > 1:
            raise ConfigError("strategy.nodes", None, "an integer >= 1: the nodes an eagle tree is reranked to")


@dataclass(frozen=True)
class Round:
    """One draft and one verify pass, as one sequence saw it.

    ``accepted_raw`` counts the accepted path; ``accepted`` those of its tokens that were kept after the cut at stop
    tokens and ``max_new_tokens``; ``emitted`` is what the round added to the output, bonus token included, after the
    cut. Stage seconds are those of the whole batch, shared by its ``in_flight`` sequences; on CUDA they are read from
    events at the round's one synchronisation. ``draft_s`` holds all drafter passes, ``build_s`` the tree and its mask,
    ``verify_s`` the target's pass, ``commit_s`` the walk, compaction and bookkeeping. ``verify_width`` is that of the
    pass, which all its sequences share. Under a policy, ``choice`` (tree, chain or autoregressive) and ``chosen_nodes``
    say what it chose; an autoregressive step is a round that drafts nothing.
    """

    drafted: int
    tree_depth: int
    accepted: int
    accepted_raw: int
    emitted: int
    in_flight: int
    draft_s: float
    build_s: float
    verify_s: float
    commit_s: float
    verify_width: int | None = None
    choice: str | None = None
    chosen_nodes: int | None = None


@dataclass(frozen=True)
class Generation:
    """The outcome of one request. Clocks are seconds since decoding began; a request starts when it is admitted.

    ``rounds`` is empty for autoregressive decoding. ``output_token_ids`` holds the first token, which comes from
    prefill, and ends with the stop token if ``finish_reason`` is "stop".
    """

    request: Request
    output_token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    start_s: float
    first_token_s: float
    finish_s: float
    finish_reason: FinishReason
    prompt_tokens: int
    error: str | None = None
