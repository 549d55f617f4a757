"""The gate: known versions whose every touched place is as recorded, and a loud refusal of all others."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from sgl_standin import RECORDED, standin

from ddbench.plugins.sglang import gate, hooks, plugin
from ddbench.plugins.sglang.backends import TABLE
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.signatures import NAMES, SIGNATURES
from ddbench.plugins.sglang.workers import MODULES

VERSIONS = ("0.5.17", "0.5.23")
WORKER = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2"


def registered() -> Any:
    """Check of the settings, class and worker's factory that SGLang has under DDTREE."""
    from sglang.srt.speculative.spec_registry import REGISTERED

    return REGISTERED["DDTREE"]


def test_the_versions_are_the_same_everywhere() -> None:
    assert gate.RUN + gate.READ == VERSIONS
    for table in (SIGNATURES, NAMES, MODULES, TABLE):
        assert tuple(table) == VERSIONS
    assert {path.stem for path in RECORDED.glob("*.json")} == set(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tables_are_what_inspection_found(version: str) -> None:
    recorded = json.loads((RECORDED / f"{version}.json").read_text())
    assert {place: tuple(names) for place, names in recorded["parameters"].items()} == SIGNATURES[version]
    assert recorded["present"] == dict.fromkeys(NAMES[version], True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_hooked_function_is_in_the_table(version: str) -> None:
    """A hook calls the original: what it passes on must be what the version takes."""
    tabled = {place.replace(":", ".") for place in SIGNATURES[version]}
    assert set(hooks.AROUND) <= tabled


@pytest.mark.parametrize("version", VERSIONS)
def test_a_known_engine_passes(version: str, tmp_path: Path) -> None:
    with standin(tmp_path, version):
        assert gate.check_engine() == version
        assert gate.differences(version) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({f"{WORKER}.__init__": ["server_args", "gpu_id", "target_worker"]}, "__init__ takes"),
        ({f"{WORKER}.init_cuda_graphs": ["later"]}, r"init_cuda_graphs takes \('later',\), not \(\)"),
        ({"sglang.srt.layers.attention.verify_mask:VerifyMask.fits": None}, "VerifyMask.fits takes None"),
        ({"sglang.srt.distributed:get_tp_group": None}, "get_tp_group is missing"),
    ],
)
def test_an_engine_that_was_changed_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with standin(tmp_path, change=change), pytest.raises(Refused, match=says):
        gate.check_engine()


def test_another_versions_functions_are_refused(tmp_path: Path) -> None:
    with standin(tmp_path, "0.5.23", version="0.5.17"), pytest.raises(Refused, match="is not as the DDTREE plug-in"):
        gate.check_engine()


@pytest.mark.parametrize("version", ["0.5.16", "0.5.18", "0.6.0"])
def test_an_unknown_version_is_refused_in_its_place(
    version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SGLang only logs what a plug-in raises: so DDTREE is registered, and a server that asks for it is told why."""
    with standin(tmp_path, version=version):
        plugin.register()
        check, _, _ = registered()
        with pytest.raises(Refused, match=rf"SGLang {version}: the DDTREE plug-in knows 0\.5\.17, 0\.5\.23"):
            check(None)
    assert f"ddbench: DDTREE plug-in refused: SGLang {version}" in capfd.readouterr().err


def test_no_door_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with standin(tmp_path, version="0.4.0", change={"sglang.srt.speculative.spec_info:SpeculativeAlgorithm": None}):
        plugin.register()
    assert "ddbench: DDTREE cannot be registered" in capfd.readouterr().err


@pytest.mark.parametrize("version", VERSIONS)
def test_registration(version: str, tmp_path: Path) -> None:
    with standin(tmp_path, version):
        plugin.register()
        check, kind, _ = registered()
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        from ddbench.plugins.sglang.algo import DDTreeAlgorithm, check_first

        assert (check, kind) == (check_first, DDTreeAlgorithm)
        assert HookRegistry.hooks == {target: (hook, HookType.AROUND) for target, hook in hooks.AROUND.items()}


def test_hooks_that_were_not_set_are_refused(tmp_path: Path) -> None:
    with standin(tmp_path), pytest.raises(Refused, match="did not set the plug-in's hook on"):
        hooks.check_installed()


def set_as_sglang_does(places: list[str]) -> None:
    """A wrapper that names what it wraps at every one of ``places``, as SGLang's registry leaves it there."""
    for place in places:
        owner, _, name = place.rpartition(".")
        holder: Any = importlib.import_module(owner) if importable(owner) else gate.look_up_dotted(owner)
        stock = getattr(holder, name)
        setattr(holder, name, functools.wraps(stock)(lambda *args, stock=stock, **kwargs: stock(*args, **kwargs)))


def importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a class is no package
        return False


@pytest.mark.parametrize("version", VERSIONS)
def test_hooks_that_were_set_pass(version: str, tmp_path: Path) -> None:
    """And each of them is missed where it alone was not set, also where a module holds the function by value."""
    held = [f"{module}.{target.rpartition('.')[2]}" for target, module in hooks.USED_IN.items()]
    places = [*hooks.AROUND, *held]
    copies: dict[str, Any] = {":".join(place.rsplit(".", 1)): ["args"] for place in held}
    for missing in (None, *places):
        folder = tmp_path / str(missing)
        folder.mkdir()
        with standin(folder, version, change=copies):
            set_as_sglang_does([place for place in places if place != missing])
            if missing is None:
                hooks.check_installed()
                continue
            with pytest.raises(Refused, match=rf"as seen from {missing}\)"):
                hooks.check_installed()


@pytest.mark.sglang
def test_the_installed_engine_is_as_recorded() -> None:
    version = gate.check_version()
    assert gate.differences(version) == []
