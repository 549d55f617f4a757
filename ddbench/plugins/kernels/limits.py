"""What the build kernel can hold, and scores as integers."""

from __future__ import annotations

import ctypes
import math
import struct

MOST_NODES = 127  # verify width 128: four mask words a row
MOST_DEPTH = 16  # four words of four 7-bit ranks in the build kernel
LOWEST_FINITE = -0x00800001  # key of the lowest score above -inf


def worst_key(min_log_prob: float | None) -> int:
    """Key of the lowest score that is a node: that of the float32 floor, or of the lowest finite number.

    Scores are at most 0; the bits of a negative float32, read as an int32, grow as the number falls.
    """
    if min_log_prob is None or math.isinf(min_log_prob):
        return LOWEST_FINITE
    floor = ctypes.c_float(min_log_prob).value
    if floor == 0.0:
        return -0x80000000
    return min(int(struct.unpack("<i", struct.pack("<f", floor))[0]) if math.isfinite(floor) else 0, LOWEST_FINITE)


def floor_of(key: int) -> float | None:
    """The inverse of `worst_key`: the float32 floor, None for none."""
    if key == LOWEST_FINITE:
        return None
    return 0.0 if key == -0x80000000 else float(struct.unpack("<f", struct.pack("<i", key))[0])
