"""The door for limits of a running server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from sgl_standin import standin

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.control import changed, get_state, set_state
from ddbench.plugins.sglang.kernels.buffers import Caps
from ddbench.plugins.sglang.options import Sizes

SIZES = Sizes(64, 16, 8)
WIDEST = Caps(8, 15, 63)


def test_what_is_not_asked_for_stays() -> None:
    assert changed(WIDEST, SIZES, {"ddtree_nodes": 8}) == Caps(8, 15, 8)
    assert changed(Caps(2, 4, 8, -3.0), SIZES, {"ddtree_depth": 5.0}) == Caps(2, 5, 8, -3.0)


def test_zero_lifts() -> None:
    asked = {"ddtree_nodes": 0, "ddtree_width": 0, "ddtree_depth": 0}
    assert changed(Caps(1, 2, 3), SIZES, asked) == WIDEST


def test_the_spine() -> None:
    assert changed(WIDEST, SIZES, {"ddtree_force_spine": 1}).force_spine is True
    assert changed(Caps(8, 15, 63, None, True), SIZES, {"ddtree_force_spine": 0}).force_spine is False


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"ddtree_nodes": 64}, "nodes=64"),
        ({"ddtree_nodes": -1}, "nodes=-1"),
        ({"ddtree_width": 9}, "width=9"),
        ({"ddtree_depth": 16}, "depth=16"),
        ({"ddtree_depth": 2.5}, "ddtree_depth=2.5"),
        ({"ddtree_nodes": float("inf")}, "ddtree_nodes=inf"),
        ({"ddtree_nodes": float("nan")}, "ddtree_nodes=nan"),
        ({"ddtree_nodes": "8"}, "ddtree_nodes='?8"),
        ({"ddtree_nodes": None}, "ddtree_nodes=None"),
        ({"ddtree_force_spine": float("nan")}, "ddtree_force_spine=nan"),
        ({"ddtree_block": 4}, "ddtree_block=4"),
        ({"ddtree_force_spine": 1, "ddtree_nodes": 3}, "force_spine"),
    ],
)
def test_limits_that_are_none(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(WIDEST, SIZES, asked)


class Worker:
    """A worker as far as the door needs one."""

    def __init__(self) -> None:
        self.caps, self.sizes = WIDEST, SIZES

    def limit_trees(self, caps: Caps) -> None:
        self.caps = caps

    def describe(self) -> dict[str, Any]:
        return {"nodes": self.caps.nodes}


def original(scheduler: Any, request: Any) -> Any:
    """SGLang's own answer: the keys that were left to it."""
    return sorted(request.server_args)


def ask(worker: object, **keys: float) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    return set_state(original, SimpleNamespace(draft_worker=worker), SetInternalStateReq(server_args=keys))


def test_the_servers_door(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with standin(tmp_path):
        worker = Worker()
        assert ask(worker, ddtree_nodes=8).updated is True
        assert worker.caps == Caps(8, 15, 8)
        assert ask(worker, ddtree_nodes=999).updated is False
        assert worker.caps == Caps(8, 15, 8)
        assert "limits refused: nodes=999" in capfd.readouterr().err
        assert ask(worker, ddtree_nodes=float("inf")).updated is False
        assert "limits refused: ddtree_nodes=inf" in capfd.readouterr().err
        assert ask(worker, ddtree_width=2, max_micro_batch_size=4) == ["max_micro_batch_size"]
        assert worker.caps == Caps(2, 15, 8)
        assert ask(worker, max_micro_batch_size=4) == ["max_micro_batch_size"]
        assert ask(object(), ddtree_width=1) == ["ddtree_width"], "another algorithm's server answers as ever"


def test_the_servers_state() -> None:
    def answer(scheduler: Any) -> Any:
        return SimpleNamespace(internal_state={"load": 1})

    ours, other = SimpleNamespace(draft_worker=Worker()), SimpleNamespace(draft_worker=None)
    assert get_state(answer, ours).internal_state == {"load": 1, "ddtree": {"nodes": 63}}
    assert get_state(answer, other).internal_state == {"load": 1}
