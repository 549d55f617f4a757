"""A real validation of the reference engine, as small as it can be, and planted predictions that must fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from ddbench.errors import ConfigError
from experiments.settings import ModelSettings
from experiments.typed import build
from experiments.validate import measure
from experiments.validate.predictions import Prediction
from experiments.validate.record import without_folders
from experiments.validate.run import run
from experiments.validate.verdict import Missing, Run, judge, verdict
from runners.ports import free_port

SMALL = ("validate.prompts=3", "validate.new_tokens=12", "load.warmup_tokens=2", "engine.threads=1")


@pytest.fixture(scope="module")
def line(make_command_line: Callable[[], Any]) -> Any:
    return make_command_line()


def validate(line: Any, *more: str) -> Any:
    return line.bare("experiment=pro6000_validate", f"output_dir={line.folder / 'out'}", "run_id=a", *SMALL, *more)


@pytest.fixture(scope="module")
def small(line: Any) -> Any:
    return validate(line)


def lines(ended: Any) -> dict[str, dict[str, Any]]:
    evidence = json.loads(Path(ended.summary["evidence"]).read_text())
    return {each["key"]: each for each in evidence["lines"]}


def test_a_host_that_is_down_is_one_line(line: Any) -> None:
    there = ["host=pro6000", "host.address=127.0.0.1", f"host.port={free_port()}"]
    ended = line.bare("experiment=pro6000_validate", f"output_dir={line.folder / 'none'}", *there)
    assert (ended.code, ended.out) == (2, "")
    (only,) = ended.errors
    assert only.startswith("error: host.address='127.0.0.1': a host that answers")
    assert not (line.folder / "none").exists()


def test_too_few_prompts_are_no_pass(small: Any) -> None:
    assert small.code == 1, small.err
    assert small.summary["verdict"] == "incomplete"
    found = lines(small)
    for key, each in found.items():
        assert each["state"] == ("not checked" if key.startswith("acceptance_length") else "pass"), each
    assert small.summary["lines"] == {"pass": 8, "fail": 0, "not checked": 2}
    assert found["acceptance_length.ddtree_64.batch_8"]["reason"] == "predicted for 144 prompts, measured on 3"
    assert found["lossless_share.ddtree_64.batch_8"]["measured"] == 1.0
    assert 0.3 < found["program_gib.autoregressive.batch_8"]["measured"] < 0.9
    assert "not checked  acceptance_length.dflash_16.batch_8" in small.out


def test_the_evidence_file_has_what_every_evidence_has(small: Any) -> None:
    evidence = json.loads(Path(small.summary["evidence"]).read_text())
    for key in ("command", "date", "gpu", "driver", "versions", "measured", "notes"):
        assert key in evidence
    assert evidence["measured"]["cells.tiny.failed"] == 0.0
    assert evidence["command"].startswith("python -m ddbench experiment=pro6000_validate output_dir=.../out run_id=a ")
    assert evidence["versions"]["engine"].startswith("ddbench ")
    assert len(evidence["builds"]) == 1


def test_a_command_tells_no_folders_of_a_machine() -> None:
    line = "python -m ddbench engine.python=/opt/x/bin/python3 '/tmp/a b' a=docs/evidence/c.json b=1/2 'c=[/u/v,d]'"
    told = "python -m ddbench engine.python=.../python3 '.../a b' a=docs/evidence/c.json b=1/2 'c=[.../v,d]'"
    assert without_folders(line) == told


def test_a_folder_is_judged_again_without_an_engine(small: Any, tmp_path: Path) -> None:
    """The same lines from the stored cells alone; the file says when and with what they were measured, and by whom
    judged."""
    folder = Path(shutil.copytree(small.summary["run"], tmp_path / "moved"))
    again = run(judging(f"validate.judge={folder}", "validate.note='Twice.'"), "id")
    was, now = (json.loads(Path(each["evidence"]).read_text()) for each in (small.summary, again))
    assert Path(again["evidence"]) == folder / "evidence.json"
    assert now["lines"] == was["lines"]
    assert {key: again[key] for key in ("verdict", "lines", "error")} == {
        key: small.summary[key] for key in ("verdict", "lines", "error")
    }
    assert again["cells"] == {key: count for key, count in small.summary["cells"].items() if count}
    for key in ("command", "gpu", "driver", "versions", "git_commit", "builds", "measured"):
        assert now[key] == was[key]
    assert now["judged"]["command"] != was["command"]
    assert now["notes"] == f"{was['notes']} Twice."


def test_half_a_folder_is_judged_and_none_is_refused(small: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"validate\.judge='.*': the folder of a validation"):
        run(judging(f"validate.judge={tmp_path}"), "id")
    shutil.copytree(Path(small.summary["run"]) / "tiny", tmp_path / "tiny")
    shutil.rmtree(next(iter((tmp_path / "tiny" / "cells").iterdir())))
    shutil.move(tmp_path / "tiny" / "config.yaml", tmp_path / "tiny" / "config.txt")
    with pytest.raises(ConfigError, match=r"validate\.judge='.*': a folder with configurations"):
        run(judging(f"validate.judge={tmp_path}"), "id")


def judging(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", ["experiment=pro6000_validate", *overrides])
    found: Any = OmegaConf.to_container(config, resolve=True)
    return dict(found)


def test_planted_predictions_fail(small: Any) -> None:
    """The same cells against predictions that are wrong: what was measured is what is judged."""
    model = build(ModelSettings, yaml.safe_load((conf_folder() / "model" / "tiny.yaml").read_text()), "model")
    measured = measure.of_tiny(Path(small.summary["run"]) / "tiny", model)
    planted = [
        Prediction("lossless_share.dflash_16.batch_8", "planted", low=0.4, high=0.5),
        Prediction("acceptance_length.ddtree_64.batch_8", "planted", low=1.0, high=16.0),
        Prediction("acceptance_length.dflash_16.batch_8", "planted", high=0.9),
        Prediction("program_gib.autoregressive.batch_8", "planted", low=3.0),
    ]
    lines = judge(planted, measured, Run("reference", 3, 12))
    assert [line.state for line in lines] == ["fail", "pass", "fail", "fail"]
    assert lines[0].reason == "1 is above 0.5"
    assert verdict(lines) == "fail"


def test_an_engine_that_changed_between_the_two_sweeps_is_said(small: Any, tmp_path: Path) -> None:
    """Its source may be edited meanwhile: outputs of two builds are not held against each other."""
    folder = Path(shutil.copytree(Path(small.summary["run"]) / "tiny", tmp_path / "tiny"))
    (status,) = [
        place.parent / "status.json"
        for place in folder.glob("cells/*/cell.yaml")
        if yaml.safe_load(place.read_text())["arm"]["strategy"] == "eagle"
    ]
    status.write_text(json.dumps(json.loads(status.read_text()) | {"build": "another"}))
    model = build(ModelSettings, yaml.safe_load((conf_folder() / "model" / "tiny.yaml").read_text()), "model")
    found = measure.of_tiny(folder, model)
    missing = found["lossless_share.eagle_6.batch_8"]
    assert isinstance(missing, Missing)
    assert "not compared with autoregressive: build differ" in missing.reason
    assert found["lossless_share.ddtree_64.batch_8"] == 1.0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["engine=sglang", "engine.device=cpu"], "something was predicted for, not sglang on a CPU"),
        (["validate.parts=[tiny,speed]"], "some of host, tiny, rounds"),
        (["validate.prompts=0"], "validate.prompts=0"),
        (["validate.machine=b200"], "validate.machine='b200'"),
        (["model=tiny_untrained"], "model='tiny_untrained': tiny"),
        (["engine.device=cuda:7"], "engine.device='cuda:7'"),
    ],
)
def test_what_cannot_be_validated_is_refused(overrides: list[str], said: str, tmp_path: Path) -> None:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", ["experiment=pro6000_validate", f"output_dir={tmp_path / 'out'}", *overrides])
    with pytest.raises(ConfigError) as error:
        run(OmegaConf.to_container(config, resolve=True), "id")
    assert said in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_second_plan_that_is_refused_is_an_error_after_what_the_first_measured(small: Any, line: Any) -> None:
    """Gone on with in a copy of the folder, whose cells are the first plan's."""
    there = line.folder / "refused"
    folder = Path(shutil.copytree(small.summary["run"], there / "pro6000_validate" / "a"))
    (folder / "evidence.json").unlink()
    for plan in (folder / "tiny" / "planned").glob("*.json"):
        cells = json.loads(plan.read_text())
        if any(cell["strategy"] == "eagle" for cell in cells):
            plan.unlink()
            (eagle,) = [cell["cell_id"] for cell in cells if cell["strategy"] == "eagle"]
            shutil.rmtree(folder / "tiny" / "cells" / eagle)
    ended = validate(line, f"output_dir={there}", "model.eagle.source=asset://none")
    assert ended.code == 2
    assert [each for each in ended.errors if each.startswith("error: ")] == [ended.errors[-1]]
    assert "model.eagle" in ended.errors[-1]
    evidence = json.loads((folder / "evidence.json").read_text())
    found = {each["key"]: each for each in evidence["lines"]}
    assert evidence["verdict"] == "incomplete"
    assert found["lossless_share.ddtree_64.batch_8"]["measured"] == 1.0
    assert found["program_gib.autoregressive.batch_8"]["state"] == "pass"
    failed = found["cells.tiny.failed"]
    assert (failed["state"], failed["reason"]) == ("not checked", "1 of its 2 plans were begun")
    assert found["lossless_share.eagle_6.batch_8"]["state"] == "not checked"
