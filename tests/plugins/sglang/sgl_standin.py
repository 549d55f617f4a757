"""A package that looks like a recorded SGLang from outside: modules, classes and functions with its parameters.

SGLang itself needs a GPU's libraries even to be imported. What the plug-in does with it before a worker is made (the
gate, the registration, the settings) needs its surface alone, so it can be tested on any machine; `recorded/` has what
inspection of the real one found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddbench.plugins.sglang import gate

RECORDED = Path(__file__).parent / "recorded"
OURS = ("ddbench.plugins.sglang.algo", "ddbench.plugins.sglang.compat")  # modules that hold SGLang's objects

# What the plug-in calls at a server's start, with bodies. The drafter's configuration is a JSON file in its folder.
BODIES: dict[str, str] = {
    "sglang.srt.managers.io_struct": """
from dataclasses import dataclass
@dataclass
class SetInternalStateReq:
    server_args: dict
@dataclass
class SetInternalStateReqOutput:
    updated: bool
""",
    "sglang.srt.plugins.hook_registry": """
from enum import Enum
HookType = Enum("HookType", "BEFORE AFTER AROUND REPLACE")
class HookRegistry:
    hooks = {}
    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, source=None):
        cls.hooks[target] = (hook, hook_type)
""",
    "sglang.srt.speculative.spec_registry": """
REGISTERED = {}
class CustomSpecAlgo:
    def __init__(self, name=None, **more):
        self.name = name
def register_algorithm(name, *, supports_overlap=False, validate_server_args=None, spec_class=CustomSpecAlgo):
    def keep(factory):
        REGISTERED[name] = (validate_server_args, spec_class, factory)
        return factory
    return keep
""",
    "sglang.srt.speculative.spec_info": """
from enum import Enum
from sglang.srt.speculative.spec_registry import register_algorithm
class SpeculativeAlgorithm(Enum):
    DFLASH = 1
    register = staticmethod(register_algorithm)
    def is_dspark(self): return False
    def create_future_map(self, device, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay):
        return ("relay", self, device)
def create_dummy_verify_input({dummy}): return ("stock", spec_algorithm)
""",
    "sglang.srt.runtime_context": """
from types import SimpleNamespace
SPEC = SimpleNamespace(speculative_algorithm=None)
def get_spec(): return SPEC
def get_exec(): ...
def get_server_args(): ...
""",
    "sglang.srt.arg_groups.overrides": """
def attention_backends_of(cfg): return cfg.prefill_attention_backend, cfg.decode_attention_backend
def resolved_view(server_args): return server_args
""",
    "sglang.srt.utils.hf_transformers_utils": """
import json, pathlib, types
def get_config(model, trust_remote_code, revision=None, model_override_args=None, model_config_parser=None, **kwargs):
    return types.SimpleNamespace(**json.loads((pathlib.Path(model) / "config.json").read_text()))
""",
    "sglang.srt.speculative.dflash_utils": """
from types import SimpleNamespace
def parse_dflash_draft_config(*, draft_hf_config):
    return SimpleNamespace(resolve_block_size=lambda default: getattr(draft_hf_config, "block_size", default))
def apply_dflash_verify_logits_adjustments(next_token_logits, sampling_info, draft_token_num): ...
def validate_dflash_request(req, enable_overlap): return "stock"
""",
    "sglang.srt.configs.model_config": """
from enum import Enum
AttentionArch = Enum("AttentionArch", "MHA MLA")
""",
    "sglang.srt.configs.hybrid_arch": """
def mambaish_config(model_config): return getattr(model_config, "recurrent", None)
""",
    "sglang.srt.mem_cache.memory_pool": """
class MHATokenToKVPool: ...
""",
}


@contextmanager
def standin(
    folder: Path, recorded: str = "0.5.17", version: str | None = None, change: dict[str, Any] | None = None
) -> Iterator[None]:
    """While it is open, ``import sglang`` gives one as ``recorded``, that says it is ``version``.

    Args:
        change: place -> other parameters, or None for none.
    """
    root = folder / "standin"
    write(root, json.loads((RECORDED / f"{recorded}.json").read_text()), change or {})
    facts = root / f"sglang-{version or recorded}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version or recorded}\n")
    hidden = _take_modules()
    sys.path.insert(0, str(root))
    gate._checked.clear()
    try:
        yield
    finally:
        sys.path.remove(str(root))
        _take_modules()
        sys.modules.update(hidden)
        gate._checked.clear()


def _take_modules() -> dict[str, Any]:
    names = [name for name in sys.modules if name.partition(".")[0] == "sglang" or name in OURS]
    return {name: sys.modules.pop(name) for name in names}


def write(root: Path, recording: dict[str, Any], change: dict[str, Any]) -> None:
    """The package's files. A place that `BODIES` has is as there, unless it is changed."""
    places = dict(recording["parameters"]) | dict.fromkeys(recording["present"]) | change
    modules: dict[str, dict[str, Any]] = {}
    for place, parameters in places.items():
        module, _, path = place.partition(":")
        modules.setdefault(module, {})[path] = (parameters, place in change)
    dummy = recording["parameters"]["sglang.srt.speculative.spec_info:create_dummy_verify_input"]
    for module in set(modules) | set(BODIES):
        lines = [BODIES.get(module, "").replace("{dummy}", ", ".join(dummy))]
        for path, (parameters, changed) in modules.get(module, {}).items():
            if changed or module not in BODIES:
                lines.append(_define(path, parameters, changed))
        file = root.joinpath(*module.split("."), "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines))
    for parent in root.rglob("*"):
        if parent.is_dir() and parent.suffix != ".dist-info":
            (parent / "__init__.py").touch()


def _define(path: str, parameters: list[str] | None, changed: bool) -> str:
    """Source that sets ``path``, a name or one inside a class; a change to None makes it None, as good as missing."""
    owner, _, name = path.rpartition(".")
    opened = f"if {owner!r} not in globals(): {owner} = type({owner!r}, (), {{}})\n" if owner else ""
    target = f"{owner}.{name}" if owner else name
    if parameters is None:
        return f"{opened}{target} = None" if changed else f"{opened}{target} = object()"
    taken = ", ".join([*(["self"] if owner else []), *parameters])
    return f"{opened}{target} = lambda {taken}: None"
