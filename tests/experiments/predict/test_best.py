"""Best shapes, margins, crossovers, and another card: against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from experiments.predict.best import best, pays
from experiments.predict.elsewhere import Model, elsewhere, here, model_of
from experiments.predict.surface import Predicted, Shape
from experiments.settings import load_settings
from experiments.validate.predict import H200

CONF = Path(__file__).resolve().parents[3] / "conf"
PLAIN = Shape("autoregressive", None, None, None, False, None)
CHAIN = Shape("dflash", None, 15, None, False, None)
TREE = Shape("ddtree", None, 15, 63, False, None)
WIDTHS = {PLAIN: 1, CHAIN: 16, TREE: 64}
SPEEDS = {PLAIN: {1: 100.0, 4: 80.0, 16: 40.0}, CHAIN: {1: 300.0, 4: 160.0, 16: 20.0}, TREE: {1: 400.0, 4: 40.0}}


def point(shape: Shape, batch: int, speed: float | None, ms: float = 5.0) -> Predicted:
    ratio = None if speed is None else speed / SPEEDS[PLAIN][batch]
    none = {"loop_tokens_per_s_per_user": None, "loop_tokens_per_s": None}
    acceptance = None if speed is None else speed * ms / 1e3
    return Predicted(
        shape,
        WIDTHS[shape],
        batch,
        0.0,
        9,
        acceptance,
        304.0,
        ms if speed else None,
        speed,
        None if speed is None else speed * batch,
        extrapolated=speed is None,
        speedup_vs_autoregressive=ratio,
        **none,
    )


POINTS = [point(shape, batch, SPEEDS[shape].get(batch)) for shape, batch in product((PLAIN, CHAIN, TREE), (1, 4, 16))]


def test_best_shape_by_batch_size() -> None:
    one, four, sixteen = best(POINTS)
    assert (one.shape, one.next, one.margin) == (TREE, CHAIN, pytest.approx(1 / 3))
    assert one.margin_over == {"dflash": pytest.approx(1 / 3), "autoregressive": pytest.approx(3.0)}
    assert (four.shape, four.margin_over["ddtree"]) == (CHAIN, pytest.approx(3.0))
    assert (sixteen.shape, sixteen.next, sixteen.margin) == (PLAIN, CHAIN, pytest.approx(1.0))


def test_what_is_best_by_extrapolation_says_so() -> None:
    plain, chain = point(PLAIN, 4, 80.0), replace(point(CHAIN, 4, 160.0), extrapolated=True)
    for points in ([plain, chain], [replace(plain, extrapolated=True), replace(chain, extrapolated=False)]):
        (told,) = best(points)
        assert told.extrapolated
        assert pays(points)[0].extrapolated == (4,)
    assert not best([plain, replace(chain, extrapolated=False)])[0].extrapolated
    far = elsewhere([chain], Model(16e9, 8e9, 0.0, 0.0, 1, 0.0), H200, "pro6000_workstation")
    assert far[0].extrapolated


def test_where_speculation_stops_paying() -> None:
    """The chain is at 2 and at 1/2 at batch sizes 4 and 16: it crosses at their geometric mean."""
    chain, tree = pays(POINTS)
    assert chain.sizes == (1, 4, 16)
    assert chain.ratios == pytest.approx((3.0, 2.0, 0.5))
    assert chain.crossings == ((pytest.approx(8.0), False),)
    assert tree.crossings == ((pytest.approx(2.52, abs=0.01), False),)  # from 4 to 1/2 over two doublings
    assert chain.always
    slow = [point(PLAIN, 1, 100.0), point(CHAIN, 1, 50.0)]
    assert (pays(slow)[0].crossings, pays(slow)[0].always) == ((), False)


def test_another_card_by_its_floor() -> None:
    """16 GB of weights: 3.333 ms here, 8.929 to 9.351 there (1792 to 1711 GB/s); 5 ms were measured here."""
    model = Model(16e9, 8e9, 0.0, 0.0, 1, 0.0)
    (told,) = elsewhere([point(PLAIN, 1, 100.0, ms=5.0)], model, H200, "pro6000_workstation")
    fast, slow, floor = 16 / 1.792, 16 / 1.711, 16 / 4.8
    assert told.floor_here_ms == pytest.approx(floor)
    assert told.floor_there_ms == pytest.approx((fast * slow) ** 0.5)
    emitted = 500.0  # tokens/s x ms: 1e3 x acceptance length
    assert told.stays == pytest.approx(emitted / ((fast * slow) ** 0.5 + 5 - floor))
    assert told.scales == pytest.approx(emitted / (5 * (fast * slow) ** 0.5 / floor))
    assert told.low == pytest.approx(emitted / (1.15 * 5 * slow / floor))
    assert told.high == pytest.approx(emitted / max(fast, 0.85 * (fast + 5 - floor)))
    assert told.low < told.scales < told.stays < told.high


def test_a_step_faster_than_its_card_is_another_models() -> None:
    """32 GB take 6.67 ms to read on an H200, and 5 were measured."""
    with pytest.raises(ConfigError, match=r"a step of autoregressive at batch 1 took 5.00 ms.* no less than 6.67 ms"):
        elsewhere([point(PLAIN, 1, 100.0, ms=5.0)], Model(32e9, 8e9, 0.0, 0.0, 1, 0.0), H200, "pro6000_workstation")


@pytest.mark.parametrize("name", ["tiny", "qwen3_8b"])
def test_bytes_are_those_of_the_engine_that_was_measured(name: str) -> None:
    """The settings name the built-in engine in float32; the cost may be of a server in bfloat16."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=[f"model={name}"]), resolve=True)
    asked = load_settings(config, "id")
    assert asked.engine.dtype == "float32"
    wide, half = (model_of(asked, None, dtype) for dtype in ("float32", "bfloat16"))
    params = asked.model.target.params
    assert (wide.weight_bytes, half.weight_bytes) == (4 * params, 2 * params)
    assert (wide.cache_bytes, wide.drafter_bytes) == (2 * half.cache_bytes, 2 * half.drafter_bytes)
    assert wide.weights == half.weights == params


def test_a_drafter_and_a_wide_pass_are_counted() -> None:
    """At 64 x 16 tokens the arithmetic of 8e9 weights takes longer than reading them; the drafter's block is added."""
    model = Model(16e9, 8e9, 2e9, 1e9, 16, 1e5)
    (told,) = elsewhere([point(TREE, 1, 400.0, ms=30.0)], model, H200, "pro6000_workstation")
    cache = 304 * 1e5
    expected = 1e3 * ((16e9 + cache) / 4.8e12 + 2e9 / 4.8e12)
    assert told.floor_here_ms == pytest.approx(expected)
    wide = [Predicted(TREE, 64, 16, 0.0, 9, 4.0, 304.0, 30.0, 133.0, 2133.0, None, None, False)]
    (told,) = elsewhere(wide, model, H200, "pro6000_workstation")
    assert told.floor_here_ms == pytest.approx(1e3 * (2 * 8e9 * 1024 / 989.4e12 + 2 * 1e9 * 256 / 989.4e12))


def test_points_without_numbers_and_unknown_cards() -> None:
    assert elsewhere([point(TREE, 16, None)], Model(1, 1, 1, 1, 1, 1), H200, "pro6000_workstation") == []
    assert here("NVIDIA H200") == H200
    with pytest.raises(ConfigError, match="cost of cpu: some: a card is scaled from one of H200"):
        here("cpu: some")
