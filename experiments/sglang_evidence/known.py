"""The arms that each shard knows, so that a name that none of them has is refused and not left out."""

from __future__ import annotations

from collections.abc import Sequence

from ddbench.errors import ConfigError
from experiments.sglang_evidence import (
    adaptive,
    host,
    hybrid,
    law,
    node_logits,
    replay,
    rounds,
    stress,
    synthetic,
    tiny_checks,
    tiny_speed,
)
from experiments.sglang_evidence.arms import Arm


def _names(*arms: Arm) -> tuple[str, ...]:
    return tuple(arm.name for arm in arms)


def names() -> dict[str, tuple[str, ...]]:
    """By shard; those that are not here have no arms to choose from."""
    return {
        "tiny_checks": _names(*tiny_checks.ARMS),
        "node_logits": node_logits.BACKENDS,
        "law": _names(*law.ARMS, law.FLASHINFER),
        "stress": _names(*stress.ARMS),
        "replay": _names(replay.PLAIN, replay.CHAIN, replay.RECORDER),
        "adaptive": _names(adaptive.ADAPTIVE, adaptive.PLAIN, adaptive.CHAIN),
        **dict.fromkeys(hybrid.SHARDS, _names(*hybrid.ARMS)),
        "tiny_speed": _names(*tiny_speed.ARMS),
        **{name: _names(*arms) for name, arms in rounds.GROUPS.items()},
        "host": _names(*host.ARMS),
        "synthetic": _names(*synthetic.ARMS),
    }


def check_arms(shard: str, arms: Sequence[str] | None) -> None:
    """Raises ConfigError for an arm that the shard does not know, and for none at all; None means the usual ones."""
    if arms is None:
        return
    known = names().get(shard, ())
    if not arms or not set(arms) <= set(known):
        allowed = f"null, or some of {', '.join(known)}" if known else f"null: {shard} has no arms to choose from"
        raise ConfigError("arms", list(arms), allowed)
