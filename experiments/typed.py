"""Plain configuration data to frozen dataclasses, checked once at the door."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ddbench.errors import ConfigError

T = TypeVar("T")

LARGEST = 2**63
_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def build(cls: type[T], data: object, key: str = "") -> T:
    """An instance of the dataclass ``cls`` from the mapping ``data``; ``key`` is its place in the configuration.

    Nothing is guessed: ``true`` is no integer and ``"3"`` is no number. A single value stands for a list of one.

    Raises:
        ConfigError: an unknown key, a missing one, or a value of another type, named by its full key.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(key, data, "a group of settings")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name, value in data.items():
        if name not in fields:
            raise ConfigError(_join(key, str(name)), value, f"unknown key; known here: {', '.join(fields)}")
    hints = get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(data[name], hints[name], _join(key, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(_join(key, name), None, "this setting is required")
    return cls(**values)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _convert(value: Any, hint: Any, key: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (inner,) = (arg for arg in args if arg is not type(None))
        try:
            return _convert(value, inner, key)
        except ConfigError as error:
            if error.key != key or "or null" in error.allowed:
                raise
            raise ConfigError(key, value, f"{error.allowed}, or null") from None
    if origin is Literal:
        if value not in args:
            raise ConfigError(key, value, f"one of {', '.join(map(str, args))}")
        return value
    if origin in (tuple, list):
        many = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        return origin(_convert(item, args[0], key) for item in many)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(key, value, "a group of settings")
        return {name: _convert(item, args[1], _join(key, str(name))) for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(hint, value, key)  # type: ignore[arg-type]
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ConfigError(key, value, _NAMES.get(hint, hint.__name__))
    if hint is int and abs(value) >= LARGEST:
        raise ConfigError(key, value, "an integer of less than 64 bits, which tables can hold")
    return value
