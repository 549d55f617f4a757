"""A checkout is looked at before any of it runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from runners.published.checkout import look
from runners.published.interface import INTERFACE

STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(STAND_IN, tmp_path / "checkout", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "checkout"


def git(folder: Path, *arguments: str) -> str:
    told = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *told, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def refusal(checkout: Path | str | None) -> str:
    with pytest.raises(ConfigError) as caught:
        look(None if checkout is None else str(checkout))
    assert caught.value.key == "engine.checkout"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_commit_changes_and_licence_are_recorded(checkout: Path) -> None:
    bare = look(str(checkout))
    assert (bare.commit, bare.changed, bare.licence) == (None, None, "LICENSE: MIT License")
    assert str(bare) == f"published ddtree (no commit, source {bare.source})"
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "a")
    kept = look(str(checkout))
    assert (kept.commit, kept.changed, kept.source) == (git(checkout, "rev-parse", "HEAD"), False, bare.source)
    (checkout / "ddtree.py").write_text((checkout / "ddtree.py").read_text() + "\n# changed\n")
    (checkout / "LICENSE").unlink()
    changed = look(str(checkout))
    assert (changed.commit, changed.changed, changed.licence) == (kept.commit, True, None)
    assert changed.source != kept.source
    assert (
        str(changed)
        == f"published ddtree (commit {kept.commit[:12] if kept.commit else None} changed, source {changed.source})"
    )


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    assert "a folder with a checkout" in refusal(None)
    assert "a folder with a checkout" in refusal(tmp_path / "nowhere")
    assert "it has no such function" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("ddtree.py", "tree_budget=None", "nodes=None", "there it is ddtree_generate("),
        (
            "ddtree.py",
            "    model,\n    target,",
            "    target,\n    model,",
            "there it is ddtree_generate(target, model,",
        ),
        ("dflash.py", "temperature=0.0", "temperature", "stop_token_ids, temperature)"),
        ("dflash.py", "def cuda_time()", "def clock()", "dflash.py: cuda_time(); it has no such function"),
        ("ddtree.py", "cpp_compact(enabled)", "cpp_compact(enabled, *, again)", "cpp_compact(enabled, again)"),
        ("ddtree.py", "import dflash", "import (", "readable Python in ddtree.py"),
    ],
)
def test_other_signatures_are_refused(checkout: Path, file: str, old: str, new: str, told: str) -> None:
    text = (checkout / file).read_text()
    assert old in text
    (checkout / file).write_text(text.replace(old, new, 1))
    assert told in refusal(checkout)


def test_the_table_names_what_is_called() -> None:
    assert [str(each).partition("(")[0] for each in INTERFACE] == [
        "ddtree.py: ddtree_generate",
        "ddtree.py: maybe_enable_cpp_compact",
        "dflash.py: dflash_generate",
        "dflash.py: cuda_time",
    ]
