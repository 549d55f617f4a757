"""Which SGLang this is, and whether everything that the plug-in touches looks as it did when it was written."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.signatures import NAMES, SIGNATURES

RUN = ("0.5.17",)  # seen running on a GPU
READ = ("0.5.23",)  # signatures compared, rounds with made-up models on a CPU; never run on a GPU

_checked: list[str] = []


def engine_version() -> str | None:
    """Version of the installed SGLang; None if there is none."""
    try:
        return importlib.metadata.version("sglang").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def check_version() -> str:
    """The version, if it is a known one. Raises Refused."""
    version = engine_version()
    known = RUN + READ
    if version not in known:
        raise Refused(f"SGLang {version}: the DDTREE plug-in knows {', '.join(known)}")
    return version


def check_engine() -> str:
    """The version, if it is a known one and every touched function has the parameters it had. Raises Refused."""
    if not _checked:
        version = check_version()
        wrong = differences(version)
        if wrong:
            raise Refused(f"SGLang {version} is not as the DDTREE plug-in knows it: {'; '.join(wrong)}")
        _checked.append(version)
    return _checked[0]


def differences(version: str) -> list[str]:
    """What differs from the tables of ``version``, one text each."""
    wrong = []
    for place, expected in SIGNATURES[version].items():
        found = parameters(place)
        if found != expected:
            wrong.append(f"{place} takes {found}, not {expected}")
    wrong += [f"{place} is missing" for place in NAMES[version] if look_up(place) is None]
    return wrong


def parameters(place: str) -> tuple[str, ...] | None:
    """Names of a function's parameters without self; None if there is no such function."""
    function = look_up(place)
    if function is None:
        return None
    return tuple(name for name in inspect.signature(function).parameters if name != "self")  # type: ignore[arg-type]


def look_up(place: str) -> object | None:
    """The object at ``module:attribute.attribute``, or None."""
    module, _, path = place.partition(":")
    if not _importable(module):
        return None
    found: object | None = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def look_up_dotted(place: str) -> object | None:
    """The object at ``module.attribute.attribute``: the longest importable module's, or None."""
    parts = place.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if _importable(module):
            return look_up(f"{module}:{'.'.join(parts[cut:])}")
    return None


def _importable(module: str) -> bool:
    """False if it or a package above it is not there; what it needs itself and does not find is raised."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        return False
    return True
