"""Energy of a cell from its readings: by the GPU's counter, else by its power; nothing where readings are missing."""

from __future__ import annotations

import pandas as pd
import pytest

from reports.energy import by_cell, of_cells

CELLS = [{"cell_id": "a"}, {"cell_id": "b"}]


def readings(*rows: tuple[str, float, str, float | None]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["cell_id", "time_s", "name", "value"])
    return frame.astype({"value": "Float64", "name": "string"})


def test_the_counter_is_taken_before_the_power() -> None:
    frame = readings(
        ("a", 0.0, "gpu_energy_j", 1000.0),
        ("a", 1.0, "gpu_energy_j", 1350.0),
        ("a", 2.0, "gpu_energy_j", 1725.5),
        *(("a", t, "gpu_power_w", 300.0) for t in (0.0, 1.0, 2.0)),
        *(("a", t, "gpu_temperature_c", 60.0) for t in (0.0, 1.0, 2.0)),
    )
    assert by_cell(frame) == {"a": {"gpu": 725.5}}


def test_power_is_integrated_by_the_trapezoidal_rule_in_order_of_time() -> None:
    frame = readings(
        ("a", 2.0, "gpu_power_w", 500.0), ("a", 0.0, "gpu_power_w", 100.0), ("a", 1.0, "gpu_power_w", 300.0)
    )
    assert by_cell(frame) == {"a": {"gpu": pytest.approx(200.0 + 400.0)}}


def test_several_gpus_and_several_cells() -> None:
    frame = readings(
        *(("a", t, "gpu_energy_j", 10.0 * t) for t in (0.0, 5.0)),
        *(("a", t, "gpu1_power_w", 20.0) for t in (0.0, 5.0)),
        *(("b", t, "gpu_energy_j", 1.0 * t) for t in (0.0, 5.0)),
    )
    found = by_cell(frame)
    assert found == {"a": {"gpu": 50.0, "gpu1": 100.0}, "b": {"gpu": 5.0}}
    assert of_cells(found, CELLS[:1], 2) == 150.0
    assert of_cells(found, CELLS, 2) is None  # of one GPU of b nothing is known
    assert of_cells(found, CELLS[1:], 1) == 5.0


def test_nothing_is_made_up() -> None:
    frame = readings(("a", 0.0, "cpu_percent", 90.0), ("a", 1.0, "cpu_percent", 95.0), ("b", 0.0, "gpu_energy_j", 4.0))
    assert of_cells(by_cell(frame), CELLS[:1], 1) is None
    assert of_cells(by_cell(frame), CELLS[1:], 1) is None
    assert of_cells({}, [], 1) is None
    reset = readings(("a", 0.0, "gpu_energy_j", 9e9), ("a", 1.0, "gpu_energy_j", 5.0))  # the driver was loaded anew
    assert by_cell(reset) == {"a": {}}
