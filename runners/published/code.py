"""The published implementation, imported from its checkout and asked for one answer at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ddbench.decoding import Generation, ModelPair, Request, Strategy
from ddbench.errors import ConfigError
from runners.published.checkout import look
from runners.published.counts import rounds_of, trouble
from runners.published.interface import KEY
from runners.published.options import PublishedOptions

MODULES = ("ddtree", "dflash", "model")  # of the checkout, as they import each other


@dataclass(frozen=True)
class Answer:
    """An answer with what the published code says of it beside its tokens: seconds a stage, summed over rounds, its own
    seconds an output token, and the rounds that :func:`runners.published.counts.rounds_of` leaves out."""

    generation: Generation
    stages_s: dict[str, float]
    own_tpot_s: float
    surplus_rounds: int


class PublishedCode:
    """Its functions with its own drafter, over the target of ``pair``, which must attend by ``sdpa``.

    It makes modules of common names (``model``, ``dflash``) importable, so it belongs in a process of its own. On a
    device other than CUDA its clock, which waits for CUDA, is replaced by one that does not.

    Raises:
        ConfigError: a checkout that cannot be imported, or a drafter that it cannot read.
    """

    def __init__(self, options: PublishedOptions, pair: ModelPair, drafter: Path) -> None:
        self.checkout = look(options.checkout)
        self._ddtree, self._dflash, model = _modules(self.checkout.folder)
        self.pair = pair
        if pair.device.type != "cuda":
            for module in (self._ddtree, self._dflash):
                module.cuda_time = time.perf_counter  # type: ignore[attr-defined]
        self._ddtree.maybe_enable_cpp_compact(options.compiled_compaction)
        self.drafter = _drafter(model, drafter, options, pair)

    def answer(self, strategy: Strategy, request: Request, clock: Callable[[], float], start: float) -> Answer:
        """One request, greedy, alone. ``start``: what ``clock`` said when decoding began.

        Strategies: autoregressive decoding (its loop with a block of one token, as it measures its baseline), the whole
        chain, and trees bounded by ``nodes`` alone. A request that goes wrong has an ``error``.
        """
        assert self.pair.dflash is not None
        config = self.pair.dflash.config
        block = 1 if strategy.name == "autoregressive" else config.block_size
        asked: dict[str, Any] = {
            "model": self.drafter,
            "target": self.pair.target,
            "input_ids": torch.tensor([request.token_ids], device=self.pair.device),
            "mask_token_id": config.mask_token_id,
            "max_new_tokens": request.max_new_tokens,
            "block_size": block,
            "stop_token_ids": sorted(request.stop_ids) or None,
            "temperature": 0.0,
        }
        begin = clock()
        if strategy.name == "ddtree":
            nodes = strategy.nodes or config.max_depth
            told: SimpleNamespace = self._ddtree.ddtree_generate(**asked, tree_budget=nodes)
        else:
            nodes = block - 1
            told = self._dflash.dflash_generate(**asked)
        end = clock()
        output = tuple(told.output_ids[0, len(request.token_ids) :].tolist())
        lengths = [int(length) for length in told.acceptance_lengths]
        rounds, surplus = rounds_of(lengths, len(output), nodes, None, nodes + 1)
        generation = Generation(
            request,
            output,
            rounds if block > 1 else (),
            begin - start,
            begin - start + told.time_to_first_token,
            end - start,
            "stop" if output and output[-1] in request.stop_ids else "length",
            len(request.token_ids),
            trouble(request, output, lengths),
        )
        stages = {name: float(seconds) for name, seconds in told.stage_times.items()}
        return Answer(generation, stages, float(told.time_per_output_token), surplus)


def _modules(folder: Path) -> tuple[ModuleType, ...]:
    sys.path.insert(0, str(folder))
    try:
        modules = tuple(import_module(name) for name in MODULES)
    except ImportError as error:
        allowed = f"a checkout whose own needs are installed in this environment ({error}; docs/rivals.md)"
        raise ConfigError(KEY, str(folder), allowed) from error
    finally:
        sys.path.remove(str(folder))
    for module in modules:
        if module.__file__ is None or not Path(module.__file__).resolve().is_relative_to(folder):
            allowed = f"one that is found first: module {module.__name__} is imported from {module.__file__}"
            raise ConfigError(KEY, str(folder), allowed)
    return modules


def _drafter(model: ModuleType, folder: Path, options: PublishedOptions, pair: ModelPair) -> Any:
    try:
        drafter = model.DFlashDraftModel.from_pretrained(
            folder, attn_implementation=options.drafter_attention, dtype=pair.dtype
        )
        drafter = drafter.to(pair.device).eval()
        found = drafter.block_size, drafter.mask_token_id, tuple(drafter.target_layer_ids)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, ImportError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        allowed = f"a checkpoint that the published implementation reads ({first})"
        raise ConfigError("model.dflash.source", str(folder), allowed) from error
    assert pair.dflash is not None
    config = pair.dflash.config
    if found != (config.block_size, config.mask_token_id, config.target_layer_ids):
        allowed = f"a checkpoint that both read alike; the published implementation finds {found}"
        raise ConfigError("model.dflash.source", str(folder), allowed)
    return drafter
