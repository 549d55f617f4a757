"""This checkout's ddbench as a wheel that carries the plug-ins into an engine's environment.

Written by hand after the wheel format (PEP 427) and that of installed projects (PEP 376): it needs neither a network
nor a build tool, and the same sources give the same bytes. Only Python sources are in it: what runs inside an engine,
and no model.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import ddbench
from ddbench.errors import ConfigError
from runners.environments import ROOT

PACKAGE = Path(ddbench.__file__).resolve().parent
MOMENT = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can tell
METADATA = "Metadata-Version: 2.1\nName: ddbench\nVersion: {version}\nSummary: The plug-ins of ddbench for engines\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: ddbench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, package: Path = PACKAGE) -> Path:
    """Writes the wheel into ``folder`` and returns its path. Raises ConfigError where entry points are not known."""
    version = ddbench.__version__
    path = folder / f"ddbench-{version}-py3-none-any.whl"
    files = {f"ddbench/{each.relative_to(package).as_posix()}": each.read_bytes() for each in _sources(package)}
    info = f"ddbench-{version}.dist-info"
    files |= {
        f"{info}/METADATA": METADATA.format(version=version).encode(),
        f"{info}/WHEEL": WHEEL.encode(),
        f"{info}/entry_points.txt": _entry_points().encode(),
    }
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, MOMENT)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def _sources(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)


def _digest(data: bytes) -> str:
    """As RECORD wants it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _entry_points() -> str:
    """``entry_points.txt``: those by which engines find the plug-ins."""
    groups = _declared()
    if not groups:
        raise ConfigError("experiment", "bootstrap", "a ddbench whose entry points are known (a checkout, or a wheel)")
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) + "\n"
        for group, points in groups.items()
    )


def _declared() -> Mapping[str, Mapping[str, str]]:
    """Entry points by group: from the checkout's pyproject.toml, else from the installed distribution."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        found: Mapping[str, Mapping[str, str]] = tomllib.loads(project.read_text())["project"].get("entry-points", {})
        return found
    try:
        points = importlib.metadata.distribution("ddbench").entry_points
    except importlib.metadata.PackageNotFoundError:
        return {}
    groups: dict[str, dict[str, str]] = {}
    for point in points:
        if point.group != "console_scripts":
            groups.setdefault(point.group, {})[point.name] = point.value
    return groups
