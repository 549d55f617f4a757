"""Where the plug-in reaches into SGLang beside its worker; every hook leaves other servers' behaviour alone.

SGLang's own registry sets them (`sglang.srt.plugins.hook_registry`), at the place named and wherever a loaded module
holds the same function by value. It only logs a hook that it could not set, so the worker asks `check_installed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddbench.plugins.sglang.edge import Edge
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.refused import Refused

Original = Callable[..., Any]

RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
SCHEDULER = "sglang.srt.managers.scheduler"
ROUNDS = "sglang.srt.mem_cache.allocation_sizing"

captured: dict[int, bool] = {}  # batch size of every target graph of this process: whether it reads the tree mask
edge: Edge | None = None  # of this process's DDTREE server, set when its worker is made


def _is_ours(runner: Any) -> bool:
    from ddbench.plugins.sglang.algo import is_ddtree

    return is_ddtree(runner.spec_algorithm) and not runner.is_draft_worker


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The server's settings: those that a hooked function was given first, or by name, or the published ones."""
    given = args[0] if args else kwargs.get("server_args")
    if given is not None:
        return given
    from sglang.srt.runtime_context import get_spec

    return get_spec()


def _serves_trees(args: Any) -> bool:
    return bool(args.speculative_algorithm == "DDTREE")


def graph_spec_info(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """The target's graph is captured with a mask; SGLang would capture a DFlash server's without."""
    if not _is_ours(self.model_runner):
        return original(self, *args, **kwargs)
    from sglang.srt.runtime_context import get_spec

    from ddbench.plugins.sglang.verify_input import verify_input

    return verify_input(self.captured_req_width, get_spec().speculative_eagle_topk, self.buffers.custom_mask)


def capture_shape(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Right after a target's graph was captured: did its attention read the backend's mask buffer?"""
    made = original(self, *args, **kwargs)
    if _is_ours(self.model_runner):
        from ddbench.plugins.sglang.masks import graph_reads_mask

        size = int(args[0] if args else kwargs["size"])
        captured[size] = graph_reads_mask(self.attn_backend)
        if not captured[size]:
            raise RuntimeError(f"ddbench: the target's graph for batch size {size} was captured without the tree mask")
    return made


def dummy_verify_input(original: Original, *args: Any, **kwargs: Any) -> Any:
    """The same for the passes that warm kernels up."""
    names = ("spec_algorithm", "server_args", "custom_mask", "num_tokens_per_req", "is_draft_worker")
    asked = _named(original, names, args, kwargs)
    from ddbench.plugins.sglang.algo import is_ddtree

    if not is_ddtree(asked["spec_algorithm"]) or asked["is_draft_worker"]:
        return original(*args, **kwargs)
    from sglang.srt.runtime_context import get_spec

    from ddbench.plugins.sglang.verify_input import verify_input

    return verify_input(asked["num_tokens_per_req"], get_spec().speculative_eagle_topk, asked["custom_mask"])


def need_hidden_states(original: Original, *args: Any, **kwargs: Any) -> bool:
    """Nothing of the target's features is relayed between rounds: they are in the drafter's cache by then."""
    return False if _serves_trees(_arguments(args, kwargs)) else bool(original(*args, **kwargs))


def alloc_len(original: Original, *args: Any, **kwargs: Any) -> int:
    """Cache slots of a round: of the tree or of the drafter's block, whichever is more."""
    length, settings = int(original(*args, **kwargs)), _arguments(args, kwargs)
    return max(length, Sizes.of(settings).window) if _serves_trees(settings) else length


def row_headroom(original: Original, *args: Any, **kwargs: Any) -> int:
    """Room in a request's row of the slot table for two windows: SGLang leaves room for one, and would write the
    second into the next request's row where a sequence ends at the context's edge."""
    extra, settings = int(original(*args, **kwargs)), _arguments(args, kwargs)
    return max(extra, 4 + 2 * Sizes.of(settings).window) if _serves_trees(settings) else extra


def validate_request(original: Original, *args: Any, **kwargs: Any) -> str | None:
    """Answered to the client with status 400."""
    from ddbench.plugins.sglang.refusals import check_request

    stock: str | None = original(*args, **kwargs)
    if not _serves_trees(_arguments((), {})):
        return stock
    if edge is None:
        raise RuntimeError("ddbench: a request came before the DDTREE worker was ready")
    request = args[0] if args else kwargs["req"]
    return check_request(request) or stock or edge.admit(request)


def set_state(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    from ddbench.plugins.sglang.control import set_state as ours

    return ours(original, self, *args, **kwargs)


def get_state(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    from ddbench.plugins.sglang.control import get_state as ours

    return ours(original, self, *args, **kwargs)


AROUND: dict[str, Callable[..., Any]] = {
    f"{RUNNER}.get_spec_info": graph_spec_info,
    f"{RUNNER}.capture_one_shape": capture_shape,
    "sglang.srt.speculative.spec_info.create_dummy_verify_input": dummy_verify_input,
    "sglang.srt.speculative.spec_utils.spec_need_hidden_states": need_hidden_states,
    f"{ROUNDS}.get_alloc_len_per_decode": alloc_len,
    f"{ROUNDS}.get_req_to_token_extra_context_len": row_headroom,
    "sglang.srt.speculative.dflash_utils.validate_dflash_request": validate_request,
    f"{SCHEDULER}.Scheduler.set_internal_state": set_state,
    f"{SCHEDULER}.Scheduler.get_internal_state": get_state,
}
# Modules that hold one of the above by value and use it from there.
USED_IN = {
    "sglang.srt.speculative.spec_info.create_dummy_verify_input": "sglang.srt.model_executor.runner.base_runner",
    f"{ROUNDS}.get_req_to_token_extra_context_len": "sglang.srt.mem_cache.kv_cache_configurator",
    "sglang.srt.speculative.dflash_utils.validate_dflash_request": SCHEDULER,
}


def install() -> None:
    """Hands the hooks to SGLang's registry, which applies them once all plug-ins have registered."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in AROUND.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def check_installed() -> None:
    """Raises Refused when a hook is not where it is needed."""
    from ddbench.plugins.sglang.gate import look_up_dotted

    places = [(target, target) for target in AROUND]
    places += [(target, f"{module}.{target.rpartition('.')[2]}") for target, module in USED_IN.items()]
    for target, place in places:
        if not hasattr(look_up_dotted(place), "__wrapped__"):
            raise Refused(f"SGLang did not set the plug-in's hook on {target} (as seen from {place})")


def _named(original: Original, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    import inspect

    found = dict(inspect.signature(original).bind(*args, **kwargs).arguments)
    return {name: found.get(name) for name in names}
