"""Which attention backend of which SGLang can verify a tree: the table of docs/backends.md, as the code obeys it."""

from __future__ import annotations

from typing import Literal

from ddbench.plugins.sglang.refused import Refused, say

State = Literal["correct", "untested", "refused"]

ARCHITECTURES = ("sm_90", "sm_120")

# What the target's backend does with the tree mask, by version, backend and GPU. "correct": shown on such a GPU.
# "untested": the code of a correct one, never run there; it starts and says so. A backend that is not named is refused.
TABLE: dict[str, dict[str, dict[str, State]]] = {
    "0.5.17": {
        "triton": {"sm_90": "correct", "sm_120": "untested"},
        "flashinfer": {"sm_90": "correct", "sm_120": "untested"},
    },
    "0.5.23": {
        "triton": {"sm_90": "untested", "sm_120": "untested"},
    },
}
# Targets with gated delta nets, on Triton: whether every node of a tree was shown to have its parent's state.
HYBRID: dict[str, dict[str, State]] = {
    "0.5.17": {"sm_90": "correct", "sm_120": "untested"},
    "0.5.23": {"sm_90": "untested", "sm_120": "untested"},
}
WHY = {
    "fa3": "its tree pass is not covered by our tests; it has none on sm_120",
    "fa4": "its tree pass is not covered by our tests",
    "flashinfer": "SGLang 0.5.23's plan refuses a mask that is in its graph's buffer already, as ours is",
    "trtllm_mha": "it ignores the tree mask without saying so",
    "torch_native": "it has no tree mask",
    "flex_attention": "it has no tree mask",
}
DRAFT = ("triton", "flashinfer", "fa3")  # the drafter's own pass has no mask


def state_of(version: str, backend: str | None, architecture: str | None) -> State:
    """The table's word. A GPU that it lacks, or that is not known (None), is at best untested."""
    row = TABLE[version].get(backend or "")
    return "refused" if row is None else row.get(architecture or "", "untested")


def why_not(version: str, backend: str | None, architecture: str | None = None) -> str | None:
    """Why a target's backend cannot be used; None if it can."""
    if state_of(version, backend, architecture) != "refused":
        return None
    return WHY.get(backend or "", "unknown to the plug-in")


def hybrid_state(version: str, architecture: str | None) -> State:
    """The word for targets with gated delta nets. A GPU that the table lacks is at best untested."""
    return HYBRID[version].get(architecture or "", "untested")


def usable(version: str, architecture: str | None = None) -> list[str]:
    """Names of the backends that may be used."""
    return [name for name in TABLE[version] if state_of(version, name, architecture) != "refused"]


def check_backends(
    version: str, prefill: str | None, decode: str | None, draft: str | None, architecture: str | None
) -> None:
    """Raises Refused unless the table has the target's backend, one for all phases, and the drafter's is known.

    What it does not call correct is said in the server's log.
    """
    if prefill != decode:
        raise Refused(f"prefill_attention_backend={prefill!r}: must be decode_attention_backend's, {decode!r}")
    why = why_not(version, decode, architecture)
    if why is not None:
        known = ", ".join(usable(version, architecture))
        raise Refused(f"attention_backend={decode!r}: {why}; with DDTREE on SGLang {version}: {known}")
    if draft not in DRAFT:
        raise Refused(f"speculative_draft_attention_backend={draft!r}: with DDTREE: {', '.join(DRAFT)}")
    if state_of(version, decode, architecture) != "correct":
        say(f"untested: {decode} on {architecture or 'this GPU'} with SGLang {version}: see docs/backends.md")


def architecture_of_gpu() -> str | None:
    """As the table names it, of the current GPU; None where there is none."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
