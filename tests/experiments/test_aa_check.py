"""One arm against itself: a small real run, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from experiments import aa_check

CONF = Path(__file__).resolve().parents[2] / "conf"
SMALL = ("experiment=aa_check", "aa_check.pairs=2", "aa_check.blocks=2", "sweep.nodes=[4]", "workload.max_prompts=3")


@pytest.mark.slow
def test_a_small_real_run(ddbench: Any) -> None:
    others = [each for each in ddbench.arguments if not each.startswith(("experiment=", "workload.max_prompts="))]
    ended = ddbench.bare(*SMALL, *others)
    assert ended.code == 0, ended.err
    summary = ended.summary
    assert summary["cells"] == {"ok": 8, "unsupported": 0, "failed": 0, "suspect": 0}
    found = summary["aa_check"]
    assert found["pairs"] == 2
    assert found["low"] <= found["rate"] == found["false_positives"] / 2 <= found["high"]
    assert found["log_sd"] > 0
    assert "fewer than 60" in ended.err
    stored = yaml.safe_load((Path(summary["run"]) / "config.yaml").read_text())
    assert (stored["load"]["blocks"], stored["load"]["restart"]) == (8, False)
    page = Path(summary["report"]).read_text()
    assert "The same arm was measured 4 times in 2 blocks each" in page
    assert re.search(r"\*\*False-positive rate: [\d.]+ % \[[\d.]+ %, [\d.]+ %\]\*\*", page)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sweep.nodes=[4,8]", "sweep.nodes=[4, 8]"),
        ("sweep.batch_size=[1,2]", "sweep.batch_size=[1, 2]"),
        ("sweep.strategy=[ddtree,dflash]", "sweep.strategy=['ddtree', 'dflash']"),
        ("aa_check.pairs=1", "aa_check.pairs=1"),
        ("aa_check.blocks=0", "aa_check.blocks=0"),
        ("aa_check.pairs=many", "aa_check.pairs='many'"),
    ],
)
def test_refusals(override: str, line: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(
            compose("config", overrides=["experiment=aa_check", override]), resolve=True
        )
    with pytest.raises(ConfigError, match=re.escape(line)):
        aa_check.run(config, "id")


def test_autoregressive_decoding_has_no_shape_to_be_one() -> None:
    overrides = ["experiment=aa_check", "sweep.strategy=[autoregressive]", "sweep.nodes=[4,8]", "dry_run=true"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
    assert aa_check.run(config, "id")["planned"] == 120


def test_sixty_pairs_by_default() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=["experiment=aa_check"]), resolve=True)
    assert config["aa_check"] == {"pairs": aa_check.ENOUGH, "blocks": 1}
    assert aa_check.ENOUGH >= 60
