"""Limits of the trees of a running server, set and read through SGLang's own state.

``POST /set_internal_state {"server_args": {"ddtree_nodes": 8, "ddtree_width": 2, "ddtree_depth": 4}}`` holds for every
round that is launched after it was answered with true; 0 lifts a limit. ``GET /server_info`` shows the limits and
the captured sizes under ``internal_states[0].ddtree``. A smaller tree still pays the captured width: such a server
answers for acceptance, never for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.kernels.buffers import Caps
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refused import say

PREFIX = "ddtree_"
NAMES = ("nodes", "width", "depth", "force_spine")
RECORDING = "ddtree_record"  # see `recorder`
STEERING = ("ddtree_verify", "ddtree_policy")  # see `pilot`


def changed(caps: Caps, sizes: Sizes, asked: Mapping[str, Any]) -> Caps:
    """``caps`` with what was asked for, 0 as the most that was captured. Raises ConfigError."""
    most = {"nodes": sizes.verify_width - 1, "width": sizes.top_k, "depth": sizes.block - 1}
    values: dict[str, Any] = {}
    for key, value in asked.items():
        name = key.removeprefix(PREFIX)
        if name not in NAMES:
            raise ConfigError(key, value, f"unknown; known: {', '.join(PREFIX + each for each in NAMES)}")
        number = _whole(key, value)
        values[name] = bool(number) if name == "force_spine" else number or most[name]
    wanted = replace(caps, **values)
    wanted.check(sizes.verify_width, sizes.block, sizes.top_k)
    return wanted


def _whole(key: str, value: Any) -> int:
    """A client's number. Raises ConfigError for what is none, or not a whole and finite one."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ConfigError(key, value, "an integer")


def set_state(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Around SGLang's ``Scheduler.set_internal_state``: takes our keys, leaves the others to it."""
    from sglang.srt.managers.io_struct import SetInternalStateReq, SetInternalStateReqOutput

    asked = dict(request.server_args)
    ours = {key: asked.pop(key) for key in list(asked) if key.startswith(PREFIX)}
    worker = scheduler.draft_worker
    if not ours or not hasattr(type(worker), "limit_trees"):
        return original(scheduler, request)
    mode = ours.pop(RECORDING, None)
    steering = {key: ours.pop(key) for key in STEERING if key in ours}
    try:
        if steering:
            numbers = {key: _whole(key, value) for key, value in steering.items()}
            worker.steer(*(numbers.get(key) for key in STEERING))
        if ours:
            worker.limit_trees(changed(worker.caps, worker.sizes, ours))
        if mode is not None:
            worker.record(_whole(RECORDING, mode))
    except ConfigError as error:
        say(f"limits refused: {error}")
        return SetInternalStateReqOutput(updated=False)
    return (
        original(scheduler, SetInternalStateReq(server_args=asked))
        if asked
        else SetInternalStateReqOutput(updated=True)
    )


def get_state(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's ``Scheduler.get_internal_state``: adds what the trees of this server are."""
    found = original(scheduler, *args, **kwargs)
    worker = scheduler.draft_worker
    if hasattr(type(worker), "limit_trees"):
        found.internal_state["ddtree"] = worker.describe()
    return found
