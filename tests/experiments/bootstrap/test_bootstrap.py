"""Environments made over a real sshd from a wheelhouse, adopted, and checked. Their engine is an empty package."""

from __future__ import annotations

import ast
import functools
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import ConfigError
from experiments.bootstrap import environment
from experiments.bootstrap.recipes import Recipe, recipe_of
from experiments.bootstrap.run import BootstrapSettings
from experiments.bootstrap.wheel import PACKAGE, write_wheel
from runners import environments, probe_script
from runners.hosts import Host, LocalHost, open_host
from tests.runners.hosts.ssh_servers import SshServer

RECIPE = Recipe(("vllm==0.32.0", "torch==2.13.0", "torchvision"), ("torchvision",))


def stand_in(folder: Path, name: str, version: str) -> None:
    """A wheel of an empty package."""
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-{version}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheelhouse")
    for name, version in (("vllm", "0.32.0"), ("torch", "2.13.0"), ("torchvision", "0.1")):
        stand_in(folder, name, version)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[str]:
    """The address of a package index (PEP 503) with the same wheels, as a folder that a web server shows."""
    folder = tmp_path_factory.mktemp("index")
    for wheel in wheelhouse.iterdir():
        place = folder / wheel.name.partition("-")[0]
        place.mkdir(exist_ok=True)
        shutil.copyfile(wheel, place / wheel.name)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, index: str) -> Iterator[Host]:
    """One whose pip finds an index of its own, and no other place."""
    variables = {"PIP_INDEX_URL": index, "PIP_NO_INDEX": "false", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    with SshServer(tmp_path_factory.mktemp("ssh"), variables=variables) as server:
        host = open_host(server.config())
        yield host
        host.close()


@pytest.fixture(scope="module")
def made(host: Host, wheelhouse: Path) -> str:
    """The interpreter of an environment made on the host from the wheelhouse, with the plug-in in it."""
    python = environment.make(host, "vllm", "cpu", RECIPE, wheelhouse)
    found = environments.ask(host, "vllm", python)
    assert environments.plugin_problem(found) == "no ddbench is installed there"
    with pytest.raises(ConfigError, match=r"no ddbench.*on host loopback: `.*bootstrap host=loopback engine=vllm"):
        environments.check_plugin(host, "vllm", "cpu", python, found)
    environment.install_plugin(host, "vllm", python, found)
    return python


def site_packages(python: str) -> Path:
    return next(Path(python).parents[1].glob("lib/python*/site-packages"))


def test_an_environment_from_a_wheelhouse(host: Host, made: str) -> None:
    found = environments.ask(host, "vllm", made)
    assert (found["dist"], found["version"], found["torch"]) == ("vllm", "0.32.0", "2.13.0")
    environments.check_engine("vllm", made, found)
    assert environments.find_python(host, "vllm", "cpu", None) == made
    assert not (site_packages(made) / "torchvision").exists()
    assert (Path(made).parents[1] / environment.MARK).read_text() == RECIPE.mark


def test_the_second_time_takes_nothing(host: Host, made: str, tmp_path: Path) -> None:
    before = site_packages(made).stat().st_mtime_ns
    assert environment.make(host, "vllm", "cpu", RECIPE, tmp_path) == made  # an empty wheelhouse is not looked at
    assert site_packages(made).stat().st_mtime_ns == before


def test_online_an_index_is_asked(host: Host, made: str, wheelhouse: Path) -> None:
    """What a recipe adds to an environment comes from the index that pip on the host knows."""
    stand_in(wheelhouse, "more", "1.0")  # which the index got no copy of
    assert not (site_packages(made) / "torchvision").exists()
    online = Recipe(("vllm==0.32.0", "torch==2.13.0", "torchvision"))
    assert environment.make(host, "vllm", "cpu", online, None) == made
    assert (site_packages(made) / "torchvision").exists()
    with pytest.raises(ConfigError, match=r"`pip install more==1\.0` to succeed \(ERROR: No matching"):
        environment.make(host, "vllm", "cpu", Recipe(("more==1.0",)), None)
    environment.make(host, "vllm", "cpu", RECIPE, wheelhouse)


def test_a_wheel_that_is_missing_is_named(host: Host, made: str, wheelhouse: Path) -> None:
    with pytest.raises(ConfigError, match=r"`pip install --no-index .* to succeed \(ERROR: No matching.*nosuchthing"):
        environment.make(host, "vllm", "cpu", Recipe(("nosuchthing==1",)), wheelhouse)


def test_a_changed_file_of_the_plug_in_is_caught(host: Host, made: str) -> None:
    """One byte of one file: every start on the host refuses, and says what mends it."""
    found = environments.ask(host, "vllm", made)
    assert found["plugin"] == {"entry_point": True, "hash": environments.our_hash()}
    environments.check_plugin(host, "vllm", "cpu", made, found)
    place = site_packages(made) / "ddbench" / "tree" / "build.py"
    source = place.read_bytes()
    place.write_bytes(source + b"\n")
    changed = environments.ask(host, "vllm", made)
    with pytest.raises(ConfigError, match=r"another version of ddbench.*`.*bootstrap host=loopback engine=vllm"):
        environments.check_plugin(host, "vllm", "cpu", made, changed)
    place.write_bytes(source)
    environments.check_plugin(host, "vllm", "cpu", made, environments.ask(host, "vllm", made))


def test_an_interpreter_without_the_engine(host: Host) -> None:
    found = environments.ask(host, "sglang", sys.executable)
    with pytest.raises(ConfigError, match=r"an environment with SGLang and torch; Python 3\.\d+\.\d+ has none"):
        environments.check_engine("sglang", sys.executable, found)
    with pytest.raises(ConfigError, match=r"there is no such program on host loopback"):
        environments.find_python(host, "sglang", "cuda", "/nowhere/python")
    for given in (None, host.path("venvs", "sglang", "bin", "python")):
        with pytest.raises(
            ConfigError, match=r"`python -m ddbench experiment=bootstrap host=loopback engine=sglang` m"
        ):
            environments.find_python(host, "sglang", "cuda", given)
    with pytest.raises(ConfigError, match=r"a working Python interpreter on host loopback"):
        environments.ask(host, "sglang", "/bin/false")


def imported(source: Path) -> set[str]:
    """Modules of ddbench that a file imports, anywhere in it; of ``from ddbench.x import y`` both x and y."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.partition(".")[0] == "ddbench"}


def sources_of(module: str) -> list[Path]:
    """The files that are run when a module is imported: its own and those of the packages around it."""
    places = [PACKAGE.parent.joinpath(*module.split(".")[:depth]) for depth in range(1, module.count(".") + 2)]
    return [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def test_the_hash_is_over_all_that_runs_inside_an_engine() -> None:
    """Whatever the plug-ins import, directly or not."""
    seen: set[Path] = set()
    unread = list((PACKAGE / "plugins").rglob("*.py"))
    while unread:
        file = unread.pop()
        if file not in seen:
            seen.add(file)
            unread += [each for name in imported(file) for each in sources_of(name)]
    parts = {file.relative_to(PACKAGE).parts[0] for file in seen}
    assert parts <= set(probe_script.HASHED)
    assert {"plugins", "tree", "errors.py"} <= parts


def test_the_same_sources_give_the_same_wheel(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    wheels = [write_wheel(tmp_path / name) for name in ("a", "b")]
    assert len({hashlib.sha256(wheel.read_bytes()).digest() for wheel in wheels}) == 1
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "out")
    assert probe_script.plugin_hash(tmp_path / "out" / "ddbench") == probe_script.plugin_hash(PACKAGE)
    assert not [name for name in names if name.endswith(".safetensors")]


def test_recipes() -> None:
    assert recipe_of("sglang", "cuda").packages == ("sglang==0.5.23",)
    assert recipe_of("vllm", "cuda:1").packages == ("vllm==0.33.0",)
    assert recipe_of("vllm", "cpu").torch == ("torch==2.13.0",)
    with pytest.raises(ConfigError, match=r"engine='reference'.*vllm or sglang"):
        recipe_of("reference", "cpu")
    with pytest.raises(ConfigError, match=r"bootstrap\.wheelhouse=.*a folder with wheels"):
        BootstrapSettings(wheelhouse="/nowhere")


@pytest.fixture(scope="module")
def line(make_command_line: Callable[[], Any]) -> Any:
    return make_command_line()


def test_sglang_has_no_build_for_the_cpu(line: Any) -> None:
    ended = line.bare("experiment=bootstrap", "engine=sglang", "engine.device=cpu")
    assert (ended.code, ended.out) == (2, "")
    (only,) = ended.errors
    assert "engine.device='cpu': cuda: SGLang has no build for the CPU" in only


def test_a_dry_run_is_refused_and_makes_nothing(line: Any) -> None:
    ended = line.bare("experiment=bootstrap", "engine=vllm", "engine.device=cpu", "dry_run=true")
    assert (ended.code, ended.errors) == (2, ["error: dry_run=True: false: bootstrap has no plan to list"])


def test_adopting_from_the_command_line(line: Any, made: str) -> None:
    """The whole verb in a process: an environment that is only checked, then one that gets the plug-in."""
    (site_packages(made) / "ddbench" / "errors.py").write_text("changed = True\n")
    asked = ["experiment=bootstrap", "engine=vllm", "engine.device=cpu", f"'engine.python=\"{made}\"'".strip("'")]

    def bootstrap(*more: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-m", "ddbench", *asked, *more]
        return subprocess.run(command, env=environment, cwd=line.folder, capture_output=True, text=True, check=False)

    looked = bootstrap()
    assert looked.returncode == 1, looked.stderr
    assert "another version of ddbench" in looked.stdout
    assert "bootstrap.install_plugin=true puts it there" in looked.stdout
    done = bootstrap("bootstrap.install_plugin=true")
    assert done.returncode == 0, done.stderr
    assert f'"plugin": "{environments.our_hash()}"' in done.stdout
    environments.check_plugin(LocalHost(), "vllm", "cpu", made, environments.ask(LocalHost(), "vllm", made))
