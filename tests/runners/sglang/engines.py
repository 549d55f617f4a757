"""A program in the place of an engine's interpreter: it answers the probe, and runs the stand-in (see its package)."""

from __future__ import annotations

import sys
from pathlib import Path

import ddbench
from ddbench.records import Arm, Cell
from runners import environments
from runners.base import ModelFiles, Prompt, ServerOptions, ServerSpec
from runners.random_models import BLOCK_SIZE, RandomPair
from runners.telemetry_settings import TelemetrySettings

STAND_IN = Path(__file__).parent / "stand_in"
ROOT = Path(ddbench.__file__).parent
TOKENS = 12

SCRIPT = """#!{python}
import json, os, sys

FACTS = {{"python": "3.12", "version": {version!r}, "torch": "2.11.0+cu130", "gpus": ["Stand-in GPU"],
          "plugin": {{"entry_point": True, "hash": {plugin!r}}}}}
if sys.argv[1].endswith("probe_script.py"):
    print(json.dumps(FACTS))
    sys.exit()
paths = [os.environ.get("PYTHONPATH", ""), {stand_in!r}, {root!r}]
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
SAYS = {says!r}
if SAYS is not None:
    os.environ["STAND_IN_SAYS"] = SAYS or " "
os.environ.update({environment!r})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def write_stand_in(
    folder: Path, version: str = "0.5.17", says: str | None = None, environment: dict[str, str] | None = None
) -> str:
    """The path of the program.

    ``says``: what a DDTREE server has in its log; None: what the plug-in says. ``environment``: variables that a server
    has whatever it is given.
    """
    path = folder / "python"
    text = SCRIPT.format(
        python=sys.executable,
        version=version,
        plugin=environments.our_hash(),
        stand_in=str(STAND_IN),
        root=str(ROOT.parent),
        says=says,
        environment=environment or {},
    )
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def spec(
    python: str | None,
    pair: RandomPair,
    strategy: str = "autoregressive",
    url: str | None = None,
    rate: float | None = None,
) -> ServerSpec:
    """Three prompts to a random pair. A "cpu" spares the tests the GPU that SGLang itself would need."""
    prompts = tuple(Prompt(f"p{index}", "data", "code", (f"text {index}",)) for index in range(3))
    model = ModelFiles(str(pair.target), dflash=str(pair.dflash), eagle=str(pair.eagle), block_size=BLOCK_SIZE)
    return ServerSpec(
        model=model,
        device="cpu",
        dtype="float32",
        threads=1,
        template="raw",
        thinking=None,
        context_length=512,
        ignore_eos=True,
        prompts=prompts,
        warmup=(Prompt("w", "data", "code", ("warm",)),),
        max_new_tokens=TOKENS,
        timeout_s=60.0,
        server=ServerOptions(python, url, None, 60.0, (1, 2), (strategy,), rate, 0),
        telemetry=TelemetrySettings(client_lag_rounds=None),  # a busy machine is late, and nothing here is timed
    )


def cell(arm: Arm, batch_size: int = 2, temperature: float = 0.0) -> Cell:
    return Cell(arm, "w", "h", 3, batch_size, TOKENS, temperature, 1.0, 0, 0, 2, 0)
