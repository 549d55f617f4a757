"""Makes the project's virtual environment: ``python scripts/bootstrap.py [FOLDER]``. Needs only Python >= 3.11 and pip.

Versions are those of ``constraints.txt``. PyTorch is installed first, and only as a CPU build: if the package index
would bring CUDA packages (several GB), nothing is downloaded and one line says what to set instead.

    DDBENCH_TORCH_INDEX  an index that has PyTorch's CPU wheels; pytorch.org's install page names the official one
    DDBENCH_CUDA=1       take the CUDA build; for machines with a GPU
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = ".installed"


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv").resolve()
    wanted = (ROOT / "pyproject.toml").read_text() + (ROOT / "constraints.txt").read_text()
    mark = folder / MARK
    if mark.is_file() and mark.read_text() == wanted:
        return 0
    if sys.version_info < (3, 11):  # noqa: UP036
        return _stop(f"Python {sys.version.split()[0]} is too old: ddbench needs 3.11 or newer; set PYTHON=python3.11")
    _say(f"making the environment {folder.name} (some minutes, once)")
    if not (folder / "pyvenv.cfg").is_file():
        venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    index = os.environ.get("DDBENCH_TORCH_INDEX")
    torch = [_pinned("torch"), *(["--index-url", index] if index else [])]
    cuda = [] if os.environ.get("DDBENCH_CUDA") == "1" else _cuda_packages(python, torch)
    if cuda:
        return _stop(
            f"this package index offers torch only with CUDA ({len(cuda)} packages more, several GB). Set "
            "DDBENCH_TORCH_INDEX to PyTorch's CPU wheel index (named on pytorch.org's install page), or DDBENCH_CUDA=1"
        )
    _pip(python, *torch)
    _pip(python, "--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[dev]")
    mark.write_text(wanted)
    return 0


def _pinned(name: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def _cuda_packages(python: Path, requirement: list[str]) -> list[str]:
    """CUDA packages that installing ``requirement`` would bring, by pip's own resolution; nothing is installed."""
    command = [str(python), "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", *requirement]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    names = [item["metadata"]["name"].lower() for item in report["install"]]
    return [name for name in names if name.startswith(("nvidia-", "cuda-", "triton"))]


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)


def _say(line: str) -> None:
    sys.stderr.write(f"ddbench: {line}\n")
    sys.stderr.flush()


def _stop(line: str) -> int:
    _say(line)
    return 2


if __name__ == "__main__":
    sys.exit(main())
