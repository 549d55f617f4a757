"""The functions of the published implementation that we call, and the refusal of a checkout that has others.

Read from the source, before any of it runs: an interface that has moved must not be found halfway through a sweep.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from ddbench.errors import ConfigError

KEY = "engine.checkout"
GENERATE = ("model", "target", "input_ids", "mask_token_id", "max_new_tokens", "block_size", "stop_token_ids")


@dataclass(frozen=True)
class Function:
    """A function in a file of the checkout. ``optional`` parameters have a default value."""

    file: str
    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}: {self.name}({', '.join([*self.required, *(f'{name}=' for name in self.optional)])})"


INTERFACE = (
    Function("ddtree.py", "ddtree_generate", GENERATE, ("temperature", "tree_budget", "save_tree_traces")),
    Function("ddtree.py", "maybe_enable_cpp_compact", ("enabled",)),
    Function("dflash.py", "dflash_generate", GENERATE, ("temperature",)),
    Function("dflash.py", "cuda_time", ()),
)


def check_interface(checkout: Path) -> None:
    """Raises ConfigError, in one line, where a function that we call is missing or takes other parameters."""
    for wanted in INTERFACE:
        found = _find(checkout / wanted.file, wanted.name)
        if found is None:
            raise ConfigError(KEY, str(checkout), f"a checkout with {wanted}; it has no such function (docs/rivals.md)")
        if found != wanted:
            shown = str(found).partition(": ")[2]
            raise ConfigError(KEY, str(checkout), f"a checkout with {wanted}; there it is {shown} (docs/rivals.md)")


def _find(path: Path, name: str) -> Function | None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(KEY, str(path.parent), f"readable Python in {path.name} ({error})") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _signature(path.name, node)
    return None


def _signature(file: str, node: ast.FunctionDef) -> Function:
    """Its parameters as far as they can be given by name."""
    asked = node.args
    names = [each.arg for each in (*asked.posonlyargs, *asked.args)]
    plain = len(names) - len(asked.defaults)
    by_name = list(zip(asked.kwonlyargs, asked.kw_defaults, strict=True))
    required = [*names[:plain], *(each.arg for each, default in by_name if default is None)]
    optional = [*names[plain:], *(each.arg for each, default in by_name if default is not None)]
    return Function(file, node.name, tuple(required), tuple(optional))
