"""How many rounds an answer takes whose rounds emit a pinned length on average."""

from __future__ import annotations

from ddbench.errors import ConfigError


def whole_rounds(length: float, tokens: int) -> dict[int, float]:
    """The law of the number of rounds until at least ``tokens`` tokens are out: rounds to their probability.

    Each round emits one of the two whole numbers around ``length``, drawn so that ``length`` is the mean: what
    SGLANG_SIMULATE_ACC_METHOD=match-expected does, one draw for the whole batch. The last round is a whole one, however
    few of its tokens are wanted, so that the mean of this law is more than ``tokens / length``.

    Raises:
        ConfigError: a length below 1: rounds that emit nothing have no last number.
    """
    if length < 1.0:
        raise ConfigError("length", length, "tokens a round >= 1")
    fewer = int(length)
    more = length - fewer  # probability of one token more
    waiting, found, rounds = {0: 1.0}, dict[int, float](), 0
    while waiting:
        rounds += 1
        going: dict[int, float] = {}
        for emitted, chance in waiting.items():
            for step, share in ((fewer, 1.0 - more), (fewer + 1, more)):
                if share > 0.0:
                    place, key = (found, rounds) if emitted + step >= tokens else (going, emitted + step)
                    place[key] = place.get(key, 0.0) + chance * share
        waiting = going
    return found
