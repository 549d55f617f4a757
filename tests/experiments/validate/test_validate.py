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
from experiments.changes import of_strategies
from experiments.settings import ModelSettings
from experiments.typed import build
from experiments.validate import measure
from experiments.validate.predictions import Prediction
from experiments.validate.run import run
from experiments.validate.verdict import Missing, Run, judge, verdict
from experiments.writable import unwritable
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
    assert "earlier plan" not in small.err  # the trees' cells beside EAGLE's are both its own
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
    assert evidence["command"].startswith("python -m ddbench experiment=pro6000_validate output_dir=out run_id=a ")
    assert evidence["versions"]["engine"].startswith("ddbench ")
    assert len(evidence["builds"]) == 1


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
    with pytest.raises(ConfigError, match=r"validate\.judge='.*': a folder with a whole tiny/config.yaml"):
        run(judging(f"validate.judge={tmp_path}"), "id")


def judged(folder: Path, *overrides: str) -> dict[str, dict[str, Any]]:
    summary = run(judging(f"validate.judge={folder}", *overrides), "id")
    return {each["key"]: each for each in json.loads(Path(summary["evidence"]).read_text())["lines"]} | summary


@pytest.mark.parametrize("file", ["status.json", "cell.yaml"])
def test_a_damaged_cell_is_named(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    """One without a status is unfinished; one that has a status and no arm is failed, as in a report."""
    folder = Path(shutil.copytree(small.summary["run"], tmp_path / "damaged"))
    cell = next(path.parent for path in folder.glob("tiny/cells/*/cell.yaml") if "strategy: eagle" in path.read_text())
    (cell / file).write_text("{")
    found = judged(folder)
    assert f"warning: tiny/cells/{cell.name}/{file} cannot be read" in capsys.readouterr().err
    line = found["cells.tiny.failed"]
    if file == "status.json":
        assert found["cells"] == {"ok": 4}
        assert (line["state"], line["reason"]) == ("not checked", f"cells/{cell.name}/status.json cannot be read")
    else:
        assert found["cells"] == {"ok": 4, "failed": 1}
        assert (line["state"], line["measured"]) == ("fail", 1.0)
    assert found["lossless_share.eagle_6.batch_8"]["state"] == "not checked"
    assert found["lossless_share.ddtree_64.batch_8"]["state"] == "pass"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.yaml", "", "NoneType in the place of a mapping"),
        ("config.yaml", "engine: 3", "name=None: this setting is required"),
        ("environment.json", "[]", "list in the place of a mapping"),
        ("environment.json", '{"command": "c"}', "without started, python, packages, git_commit"),
        ("environment.json", "{", "Expecting"),
    ],
)
def test_a_damaged_folder_is_one_line(small: Any, tmp_path: Path, file: str, text: str, words: str) -> None:
    place = Path(shutil.copytree(Path(small.summary["run"]) / "tiny", tmp_path / "tiny"))
    (place / file).write_text(text)
    with pytest.raises(ConfigError, match=rf"validate\.judge='.*': a folder with a whole tiny/{file} \(.*{words}"):
        run(judging(f"validate.judge={tmp_path}"), "id")
    assert not (tmp_path / "evidence.json").exists()


def test_a_plan_that_cannot_be_read_is_no_pass(small: Any, tmp_path: Path) -> None:
    place = Path(shutil.copytree(Path(small.summary["run"]) / "tiny", tmp_path / "tiny"))
    plan = next((place / "planned").iterdir())
    plan.write_text("[")
    assert measure._failed(place, plans=2) == Missing(f"planned/{plan.name} cannot be read")


def test_parts_are_left_out_of_a_judgement(small: Any, tmp_path: Path) -> None:
    found = judged(Path(small.summary["run"]), "validate.parts=[host]", f"validate.output={tmp_path / 'e' / 'x.json'}")
    assert found["lines"] == {"pass": 0, "fail": 0, "not checked": 10}
    assert found["cells.tiny.failed"]["reason"] == "left out by validate.parts"
    assert json.loads((tmp_path / "e" / "x.json").read_text())["measured"] == {}


def test_predictions_for_another_engine_are_not_checked(small: Any, tmp_path: Path) -> None:
    found = judged(Path(small.summary["run"]), "validate.machine=h200_sglang", f"validate.output={tmp_path / 'x.json'}")
    assert found["lines"] == {"pass": 0, "fail": 0, "not checked": 47}
    for key in ("largest_gap", "cells.tiny.failed", "lossless_share.ddtree_64.batch_8"):
        assert found[key]["reason"] == "predicted for sglang, not for reference"


def test_a_dry_run_lists_the_cells_of_all_plans_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(judging(f"output_dir={tmp_path / 'out'}", "dry_run=true"), "id")
    told = capsys.readouterr().out
    assert [told.count(f"  {name}") for name in ("autoregressive", "dflash", "ddtree", "eagle")] == [1, 1, 2, 1]
    assert (found["planned"], found["dropped"], found["machine"], "error" in found) == (5, 0, "reference", False)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_seen_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "a" / "b" / "e.json") is None
    assert unwritable(tmp_path) == "it is a folder"
    assert unwritable(tmp_path / "file" / "e.json") == f"{tmp_path / 'file'} is no folder"
    assert unwritable(tmp_path / "file" / "a" / "e.json") == "Not a directory"
    assert unwritable(tmp_path / ("x" * 300)) == "File name too long"
    assert unwritable(Path("/proc/none/e.json")) == "No such file or directory"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def judging(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", ["experiment=pro6000_validate", *overrides])
    found: Any = OmegaConf.to_container(config, resolve=True)
    return dict(found)


def test_what_breaks_off_tells_the_run_id_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not that of the sweep, the name of a folder in the run's."""
    late = ["engine.start_timeout_s=0.001", "faults.retries=0"]
    found = run(judging(f"output_dir={tmp_path}", "run_id=a", "tracking=none", *SMALL, *late), "id")
    assert found["verdict"] == "incomplete"
    assert "the same command with run_id=a does the rest" in capsys.readouterr().err


def test_cells_of_the_commands_other_plan_are_known_by_their_strategy(small: Any, tmp_path: Path) -> None:
    cells = Path(shutil.copytree(Path(small.summary["run"]) / "tiny" / "cells", tmp_path / "cells"))
    ids = {path.name: yaml.safe_load((path / "cell.yaml").read_text())["arm"]["strategy"] for path in cells.iterdir()}
    chain = {name for name, strategy in ids.items() if strategy in ("autoregressive", "eagle")}
    assert len(chain) == 2
    assert of_strategies(cells, ids, {"autoregressive", "eagle"}) == chain
    damaged = next(name for name, strategy in ids.items() if strategy == "dflash")
    (cells / damaged / "cell.yaml").write_text("{")
    assert of_strategies(cells, ids, {"eagle"}) == {damaged} | {name for name in chain if ids[name] == "eagle"}


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
        (["validate.output=/proc/none/e.json"], "validate.output='/proc/none/e.json': a file that can be written (No"),
        (["validate.output=/proc"], "validate.output='/proc': a file that can be written (it is a folder)"),
        (["output_dir=/proc/none"], "output_dir='/proc/none/pro6000_validate/id': a folder in which evidence.json can"),
        (["validate.judge=x", "validate.prompts=3"], "validate.prompts=3: null with validate.judge"),
        (["validate.judge=x", "validate.new_tokens=3"], "validate.new_tokens=3: null with validate.judge"),
        (["validate.judge=x", "dry_run=true"], "dry_run=True: false with validate.judge"),
        (["validate.predict=true"], "pro6000_predictions.yaml': a file that does not exist yet"),
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
