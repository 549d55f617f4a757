"""One process that has vLLM loaded serves all tests: it forks a child for every engine that a test asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from vllm_jobs import EngineHost


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHost]:
    """Runs engines of the vLLM in this environment; the same job is run once a session."""
    host = EngineHost(tmp_path_factory.mktemp("engines"))
    yield host
    host.close()
