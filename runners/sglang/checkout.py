"""A folder of SGLang sources that runs in the place of the installed ones: what is in it, and whether it does run."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from ddbench.errors import ConfigError
from runners.checkouts import CODE, TEXT, Checkout, examine
from runners.hosts import Host

KEY = "engine.checkout"
SOURCES = "python"  # of a checkout of SGLang: the folder that the package is in
WHERE = "import importlib.util as u; print((u.find_spec('sglang') or u).origin)"


@lru_cache(maxsize=4)
def look(checkout: str) -> Checkout:
    """What is in the folder; asked once, since there are thousands of files.

    Raises:
        ConfigError: it is no folder, or no SGLang is in it.
    """
    folder = Path(checkout).expanduser()
    if not (folder / SOURCES / "sglang" / "launch_server.py").is_file():
        raise ConfigError(KEY, checkout, f"a folder of SGLang sources, with {SOURCES}/sglang/launch_server.py")
    folder = folder.resolve()
    return examine("checkout", folder, folder / SOURCES, CODE | TEXT)


def python_path(found: Checkout) -> str:
    """``PYTHONPATH`` by which its sources come before all others."""
    return os.pathsep.join(filter(None, (str(found.folder / SOURCES), os.environ.get("PYTHONPATH"))))


def check_runs(found: Checkout, python: str, host: Host) -> None:
    """Raises ConfigError where ``python`` imports another SGLang although the checkout's comes first."""
    done = host.run([python, "-c", WHERE], env={"PYTHONPATH": python_path(found)})
    place = done.stdout.strip().splitlines()[-1] if done.ok and done.stdout.strip() else done.said
    if not Path(place).is_relative_to(found.folder):
        raise ConfigError(KEY, str(found.folder), f"sources that engine.python imports; it has sglang from {place}")
