"""The factors of a drafter whose error is known are found."""

from __future__ import annotations

import numpy as np

from ddbench.adaptive.calibration import Calibration


def test_factors_are_accepted_over_expected() -> None:
    found = Calibration(3, horizon=1e9, prior=1.0)
    found.learn(np.array([[0.5, 0.0, 0.0], [3.0, 1.0, 0.0]]), np.array([[2, 0, 0], [3, 2, 0]]), rows=4)
    np.testing.assert_allclose(found.factors, [[2.0, 1.0, 1.0], [1.0, 1.5, 1.0]], rtol=1e-6)
    assert found.rounds == 4


def test_a_drafter_with_a_known_error_is_seen_through() -> None:
    """True chances are 0.7 and 1.3 times what it says; 4000 rounds, within four standard errors."""
    rng = np.random.default_rng(11)
    said = np.array([[0.2, 0.15, 0.1], [0.7, 0.5, 0.4]])
    true = said * np.array([[0.7], [1.3]])
    found = Calibration(3, horizon=1e9)
    for _ in range(1000):
        kept = (rng.random((4, 2, 3)) < true).sum(axis=0)
        found.learn(said * 4, kept, rows=4)
    error = np.sqrt(true * (1 - true) / 4000) / said
    assert (np.abs(found.factors - true / said) < 4 * error + 0.02).all()
    assert not np.allclose(found.factors, 1.0, atol=0.1)


def test_what_is_long_past_is_forgotten() -> None:
    found = Calibration(1, horizon=50.0)
    for accepted in [0] * 500 + [1] * 500:
        found.learn(np.array([[0.0], [0.5]]), np.array([[0], [accepted]]), rows=1)
    assert 1.7 < found.factors[1, 0] <= 2.0
    assert 49 < found.rounds <= 50
