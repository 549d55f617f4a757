"""What the source may not do, read from its syntax: no shell, no pickle, no code out of a checkpoint unless asked."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ddbench", "runners", "experiments", "reports", "benchmarks", "scripts")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
STARTERS = {"run", "Popen", "call", "check_call", "check_output"}  # of subprocess
SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
EVALUATORS = {"eval", "exec"}
# Not part of a run: training reads its own intermediate files, a GPU check its own dump, both as tensors alone.
OWN_TENSORS = {"experiments/train_tiny/shop.py", "experiments/sglang_evidence/node_logits.py"}


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node


def constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def faults(source: str, path: str) -> list[str]:
    """What a file does that it may not, as ``line: what``."""
    tree = ast.parse(source)
    found = []
    for name, call in calls(tree):
        starts = name in {f"subprocess.{each}" for each in STARTERS}
        if name in SHELLS or (keyword(call, "shell") is not None and is_true(keyword(call, "shell"))):
            found.append(f"{call.lineno}: a shell")
        if starts and call.args and isinstance(call.args[0], ast.JoinedStr | ast.BinOp | ast.Constant):
            found.append(f"{call.lineno}: a command that is a text")
        if name.endswith("torch.load") and not (path in OWN_TENSORS and is_true(keyword(call, "weights_only"))):
            found.append(f"{call.lineno}: torch.load")
        if is_true(keyword(call, "allow_pickle")):
            found.append(f"{call.lineno}: numpy's pickle")
        if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
            found.append(f"{call.lineno}: YAML that can make objects")
        if name in EVALUATORS:
            found.append(f"{call.lineno}: {name}")
        if is_true(keyword(call, "trust_remote_code")):
            found.append(f"{call.lineno}: code out of a checkpoint")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: {name}" for name in named if name.partition(".")[0] in PICKLES]
    return found


def test_the_source() -> None:
    assert len(FILES) > 200
    names = {path: path.relative_to(ROOT).as_posix() for path in FILES}
    found = {name: faults(path.read_text(encoding="utf-8"), name) for path, name in names.items()}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import os\nos.system('ls ' + name)",
        "subprocess.run('ls', shell=True)",
        "subprocess.run(f'ls {name}')",
        "subprocess.Popen('ls ' + name)",
        "asyncio.create_subprocess_shell(line)",
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "eval(text)",
        "AutoModel.from_pretrained(folder, trust_remote_code=True)",
    ],
)
def test_what_it_finds(planted: str) -> None:
    assert len(faults(planted, "somewhere.py")) >= 1


def test_what_it_lets_pass() -> None:
    fine = (
        "subprocess.run([python, '-c', text], check=True)\nsubprocess.run(command)\nmodel.eval()\nyaml.safe_load(text)"
    )
    assert faults(fine, "somewhere.py") == []


def test_engines_listen_on_loopback_alone() -> None:
    """Every door that a command line of ours opens is named, and is loopback."""
    opened = []
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert "0.0.0.0" not in {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}, path
        for node in ast.walk(tree):
            words = node.elts if isinstance(node, ast.List | ast.Tuple) else []
            opened += [after for word, after in itertools.pairwise(map(constant, words)) if word == "--host"]
    assert len(opened) >= 2
    assert {each for each in opened if not str(each).startswith("--")} == {"127.0.0.1"}  # some only name the options


def test_engines_are_told_to_read_safetensors_alone() -> None:
    for name in ("vllm", "sglang"):
        text = (ROOT / "runners" / name / "command.py").read_text()
        assert "safetensors" in text
