"""Branches of SGLang with trees of their own, started from a checkout: how each is told a tree, and which it can have.

Nothing of a branch is here: its flags are arguments of its server, by the names that its thread or its files gave them
when they were read. None of the branches was ever run with this (docs/rivals.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from ddbench.errors import ConfigError

KEY = "engine.branch"
NAMES = ("verify_width", "nodes", "width", "depth", "block", "drafter")  # that a template may have in braces
# Settings that every server is told from the cell's flags or by us (runners.sglang.command), and others of SGLang that
# say the same: of an adapter they would hide a difference between the arms.
TOLD = (
    *("model_path", "revision", "load_format", "trust_remote_code", "skip_tokenizer_init", "sampling_defaults"),
    *("incremental_streaming_output", "stream_interval", "dtype", "quantization", "kv_cache_dtype", "context_length"),
    *("max_running_requests", "max_total_tokens", "mem_fraction_static", "chunked_prefill_size", "page_size"),
    *("attention_backend", "sampling_backend", "grammar_backend", "min_free_slots_delay", "random_seed"),
    *("disable_radix_cache", "disable_overlap_schedule", "disable_decode_cuda_graph", "disable_prefill_cuda_graph"),
    *("tp_size", "log_level_http", "cuda_graph_bs_decode"),
)
SAME = (
    *("host", "port", "config", "tensor_parallel_size", "disable_cuda_graph", "cuda_graph_bs", "cuda_graph_max_bs"),
    *("prefill_attention_backend", "decode_attention_backend"),
)


@dataclass(frozen=True)
class Tree:
    """A tree that is asked for. ``block``: positions of the drafter's block, its anchor counted."""

    width: int | None
    depth: int | None
    nodes: int | None
    block: int | None
    drafter: str = ""


@dataclass(frozen=True)
class Branch:
    """How a branch's server is told to draft a tree.

    ``arguments``: words of the command line, each flag with one value or none; ``environment``: variables. Both are
    templates: ``{nodes}`` and the other :data:`NAMES`. ``overlap``: whether its trees run under overlap scheduling.
    ``greedy``: whether they run at temperature 0 alone. ``read``: where its flags are from. ``rule``: of width, nodes
    and block, why it cannot have that tree, None if it can, beyond what its templates leave out.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    overlap: bool = True
    greedy: bool = False
    name: str = "own"
    read: str = "as given"
    rule: Callable[[int, int, int], str | None] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ConfigError(f"{KEY}.name", self.name, "letters, digits, _ . and -")
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ConfigError(f"{KEY}.environment", name, "names of variables: letters, digits and _")
        unknown = sorted(self.axes - set(NAMES))
        if unknown:
            raise ConfigError(KEY, f"{{{unknown[0]}}}", f"templates with {', '.join(f'{{{name}}}' for name in NAMES)}")
        if not self.axes & {"verify_width", "nodes"}:
            raise ConfigError(KEY, list(self.arguments), "{verify_width} or {nodes} in one of the templates")
        names = _settings(self.arguments)
        if "speculative_algorithm" not in names:
            raise ConfigError(KEY, list(self.arguments), "--speculative-algorithm among the arguments")
        for name in names:
            _check_name(name)

    @property
    def axes(self) -> set[str]:
        """What its templates can say."""
        found = set()
        for each in (*self.arguments, *self.environment.values()):
            try:
                fields = [part[1:] for part in Formatter().parse(each) if part[1] is not None]
            except ValueError as error:
                raise ConfigError(KEY, self.words, f"templates whose braces fit ({error})") from None
            if any(form or conversion for _, form, conversion in fields):
                raise ConfigError(KEY, each, "names alone in braces, with no ! and no : after them")
            found |= {str(name) for name, _, _ in fields}
        return found

    @property
    def words(self) -> list[str]:
        """All templates, as they are kept with every cell."""
        return [*self.arguments, *(f"{name}={value}" for name, value in sorted(self.environment.items()))]

    def settings(self, tree: Tree) -> dict[str, Any]:
        """Arguments for a tree, by the names of settings; a flag without a value is True."""
        return _settings(tuple(each.format(**_values(tree)) for each in self.arguments))

    def variables(self, tree: Tree) -> dict[str, str]:
        return {name: each.format(**_values(tree)) for name, each in self.environment.items()}

    def refuse(self, tree: Tree) -> str | None:
        """Why it cannot draft a tree; None if it can."""
        if tree.nodes is None or tree.block is None:
            return f"{self.name} needs a number of nodes, and a drafter whose block is known"
        if tree.width is None and "width" in self.axes:
            return f"{self.name} has no unlimited width: sweep.width must be a number"
        if tree.width is not None and "width" not in self.axes:
            return f"{self.name} cannot be told a width: sweep.width must be null"
        if tree.depth not in (None, tree.block - 1) and "depth" not in self.axes:
            return f"{self.name} cannot be told a depth: only {tree.block - 1}, that of the whole block"
        return None if self.rule is None else self.rule(tree.width or 0, tree.nodes, tree.block)


def misfits(told: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """What a server says of its branch's own settings that is not what it was told, one text each."""
    return [
        f"{name} is {info[name]!r}, not {value!r}"
        for name, value in told.items()
        if info.get(name) is not None and str(info[name]) != str(value)
    ]


def _check_name(name: str) -> None:
    """Raises ConfigError for an argument that is no plain flag, or that other settings say.

    A server takes the beginning of a flag for the flag.
    """
    flag = "--" + name.replace("_", "-")
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ConfigError(KEY, flag, "flags of letters, digits and -")
    if any(told.startswith(name) for told in (*TOLD, *SAME)):
        allowed = "flags of the branch's trees alone: engine.flags says the others, equal in all arms (overlap: false)"
        raise ConfigError(KEY, flag, allowed)


def _values(tree: Tree) -> dict[str, Any]:
    nodes, block = tree.nodes or 0, tree.block or 0
    depth = tree.depth or block - 1
    return {
        "verify_width": nodes + 1,
        "nodes": nodes,
        "width": tree.width,
        "depth": depth,
        "block": block,
        "drafter": tree.drafter,
    }


def _settings(arguments: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    last = None
    for word in arguments:
        if word.startswith("--"):
            name, given, value = word[2:].replace("-", "_").partition("=")
            found[name], last = value if given else True, None if given else name
        elif last is None:
            raise ConfigError(KEY, word, "arguments of flags that begin with --, one for each or none")
        else:
            found[last], last = int(word) if word.isdecimal() else word, None
    return found


def _rule_29907(width: int, nodes: int, block: int) -> str | None:
    """Of a position it takes nodes // depth + 1 candidates at most, two at least; with nodes = depth it is a chain."""
    depth = block - 1
    widest = 1 if nodes == depth else max(nodes // depth + 1, 2)
    if width <= widest:
        return None
    return f"sglang_29907 takes at most {widest} candidates of a position at {nodes} nodes, not {width}"


def _rule_31069(width: int, nodes: int, block: int) -> str | None:
    """Every step expands the best ``width`` nodes into ``width`` children each; the best of all are verified."""
    if width not in (4, 8, 16):
        return f"sglang_31069 has widths 4, 8 and 16, not {width}"
    most = width + (block - 2) * width**2
    return None if nodes <= most else f"nodes {nodes} > {most}: sglang_31069 drafts no more at that width"


def _rule_36196(width: int, nodes: int, block: int) -> str | None:
    return "sglang_36196 makes its trees from the selector of a DFlash-2 drafter, a kind that ddbench does not read"


BRANCHES = {
    each.name: each
    for each in (
        Branch(
            name="sglang_29907",
            arguments=("--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "{nodes}"),
            environment={"SGLANG_DDTREE_MAX_TOPK": "{width}"},
            overlap=False,
            read="sgl-project/sglang pull request 29907 and a stored copy of its ddtree_utils.py, on 2026-11-30",
            rule=_rule_29907,
        ),
        Branch(
            name="sglang_31069",
            arguments=(
                *("--speculative-algorithm", "DFLASH", "--speculative-dflash-tree-verify"),
                *("--speculative-eagle-topk", "{width}", "--speculative-num-draft-tokens", "{verify_width}"),
                *("--speculative-dflash-block-size", "{block}"),
            ),
            read="sgl-project/sglang pull request 31069 and stored copies of its files, on 2026-11-30",
            rule=_rule_31069,
        ),
        Branch(
            name="sglang_36196",
            arguments=(
                *("--speculative-algorithm", "DFLASH", "--speculative-dflash-block-size", "{block}"),
                *("--speculative-dflash-tree-width", "{width}"),
            ),
            environment={"SGLANG_DFLASH_MAX_NUM_NODES": "{verify_width}"},
            greedy=True,
            read="sgl-project/sglang pull request 36196 and a stored copy of its speculative_hook.py, on 2026-11-30",
            rule=_rule_36196,
        ),
    )
}
