"""Reads signatures out of a version's source files, without importing them: classes, their bases, what they hold."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(root: Path, place: str) -> tuple[str, ...] | None:
    """Names of the parameters, without self, of ``module:name`` or ``module:Class.name`` under ``root``, or None."""
    found = look_up(root, place)
    if not isinstance(found, Function):
        return None
    arguments = found.args
    several = [arguments.vararg] if arguments.vararg else []
    named = [arguments.kwarg] if arguments.kwarg else []
    every = [*arguments.posonlyargs, *arguments.args, *several, *arguments.kwonlyargs, *named]
    return tuple(one.arg for one in every if one.arg != "self")


def look_up(root: Path, place: str) -> ast.AST | None:
    """The definition at ``place``, looked for in base classes too; None if there is none."""
    module, _, path = place.partition(":")
    names = path.split(".")
    found = _top(root, module, names[0])
    if found is None or len(names) == 1:
        return None if found is None else found[1]
    return _member(root, found[0], found[1], names[1])


@cache
def _module(root: Path, module: str) -> ast.Module | None:
    base = root / Path(*module.split("."))
    for file in (base.with_suffix(".py"), base / "__init__.py"):
        if file.exists():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def _top(root: Path, module: str, name: str) -> tuple[str, ast.AST] | None:
    """(module, definition) of a module's name, followed through ``from x import y``."""
    tree = _module(root, module)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and node.name == name and node in tree.body:  # type: ignore[union-attr]
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _top(root, node.module, alias.name)
    return None


def _member(root: Path, module: str, owner: ast.AST, name: str) -> ast.AST | None:
    if not isinstance(owner, ast.ClassDef):
        return None
    for node in owner.body:
        if isinstance(node, Function) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return node
    for base in owner.bases:
        above = _top(root, module, base.id) if isinstance(base, ast.Name) else None
        found = None if above is None else _member(root, above[0], above[1], name)
        if found is not None:
            return found
    return None
