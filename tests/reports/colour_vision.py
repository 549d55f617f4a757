"""How far apart two colours are for an eye with normal vision, without green or without red cones, and in grey print.

Dichromats by Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
deficiency" (2009), severity 1, in linear RGB; distance as CIE 1976 Delta E in L*a*b* under D65 (a difference of 2.3 is
just seen).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

NORMAL: Matrix = np.eye(3)
DEUTERANOPIA: Matrix = np.asarray(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA: Matrix = np.asarray(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
TO_XYZ: Matrix = np.asarray(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
D65: Matrix = np.asarray([0.95047, 1.0, 1.08883])


def distance(first: str, second: str, vision: Matrix = NORMAL) -> float:
    """Delta E of two colours ``#rrggbb`` as seen by ``vision``."""
    return float(np.linalg.norm(lab(first, vision) - lab(second, vision)))


def lab(colour: str, vision: Matrix = NORMAL) -> Matrix:
    """L*, a*, b* of a colour."""
    coded = np.asarray([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(vision @ linear, 0.0, 1.0) / D65
    cut = 6 / 29
    f = np.where(xyz > cut**3, np.cbrt(xyz), xyz / (3 * cut**2) + 4 / 29)
    return np.asarray([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
