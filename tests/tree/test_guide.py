"""The guide's examples run, in order, as one script; and the package needs nothing but torch and numpy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guides_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tree.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 6
    exec(compile("\n".join(blocks), "docs/tree.md", "exec"), {"__name__": "guide"})


def test_the_package_needs_torch_and_numpy_alone() -> None:
    script = (
        "import sys, torch, numpy; before = set(sys.modules)\n"
        "import ddbench.tree\n"
        "ours = {name for name in set(sys.modules) - before if name.startswith('ddbench')}\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))\n"
        "print(*sorted(ours))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    packages, ours = done.stdout.splitlines()
    assert set(packages.split()) - set(sys.stdlib_module_names) == {"ddbench"}
    others = [name for name in ours.split() if not name.startswith("ddbench.tree")]
    assert others == ["ddbench", "ddbench.errors", "ddbench.redaction"]
