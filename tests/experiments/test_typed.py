from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from ddbench.errors import ConfigError
from experiments.typed import build


@dataclass(frozen=True)
class Inner:
    size: int
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str
    ratio: float
    on: bool
    inner: Inner
    maybe: int | None
    many: tuple[int | None, ...]
    rest: dict[str, Any]
    other: Inner | None = None


GOOD = {
    "name": "n",
    "ratio": 1,
    "on": True,
    "inner": {"size": 3, "kind": "b"},
    "maybe": None,
    "many": [1, None],
    "rest": {"x": [1]},
}


def test_builds_nested_dataclasses() -> None:
    made = build(Outer, GOOD)
    assert made == Outer("n", 1.0, True, Inner(3, "b"), None, (1, None), {"x": [1]})
    assert type(made.ratio) is float
    assert build(Outer, {**GOOD, "many": 4}).many == (4,)
    assert build(Outer, {**GOOD, "other": {"size": 1}}).other == Inner(1)


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"name": 3}, "name", 3),
        ({"ratio": True}, "ratio", True),
        ({"ratio": "1"}, "ratio", "1"),
        ({"on": 1}, "on", 1),
        ({"maybe": 1.5}, "maybe", 1.5),
        ({"maybe": False}, "maybe", False),
        ({"many": ["x"]}, "many", "x"),
        ({"inner": {"size": 3, "kind": "c"}}, "inner.kind", "c"),
        ({"inner": {"size": 3, "colour": 1}}, "inner.colour", 1),
        ({"inner": {}}, "inner.size", None),
        ({"inner": 3}, "inner", 3),
        ({"other": {"size": "x"}}, "other.size", "x"),
        ({"rest": 3}, "rest", 3),
        ({"more": 3}, "more", 3),
    ],
)
def test_names_the_key_and_the_value(change: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {**GOOD, **change})
    assert (caught.value.key, caught.value.value) == (key, value)
    assert caught.value.allowed


def test_an_optional_value_says_that_null_is_allowed() -> None:
    with pytest.raises(ConfigError, match="maybe='x': an integer, or null"):
        build(Outer, {**GOOD, "maybe": "x"})
