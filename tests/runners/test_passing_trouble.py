"""The machine's trouble is told from a wrong model, by real errors and by those that loaders make of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from runners.passing_trouble import passing_trouble


def as_a_loader_says(cause: BaseException) -> ConfigError:
    error = ConfigError("target", "somewhere", f"a causal LM that transformers loads ({cause})")
    error.__cause__ = cause
    return error


def raised_by(path: Path) -> OSError:
    with pytest.raises(OSError) as caught:  # noqa: PT011  whatever the system says
        path.read_bytes()
    return caught.value


def test_an_input_error_is_the_machine_s() -> None:
    error = raised_by(Path("/proc/self/mem"))  # which answers so at its beginning
    assert error.errno == 5
    assert passing_trouble(as_a_loader_says(error)) is error


@pytest.mark.parametrize("place", ["nothing", "."])
def test_a_wrong_path_is_the_reader_s(tmp_path: Path, place: str) -> None:
    assert passing_trouble(as_a_loader_says(raised_by(tmp_path / place))) is None


def test_what_is_said() -> None:
    for text in ("can't start new thread", "CUDA error: unspecified launch failure", "CUDA out of memory. Tried to"):
        assert passing_trouble(as_a_loader_says(RuntimeError(text)))
    assert passing_trouble(as_a_loader_says(RuntimeError("size mismatch for lm_head.weight"))) is None
    assert passing_trouble(as_a_loader_says(ValueError("can't start new thread"))) is None
    assert passing_trouble(MemoryError())
    assert passing_trouble(as_a_loader_says(OSError("no file named model.safetensors"))) is None  # without a number
    assert passing_trouble(OSError(28, os.strerror(28)))
