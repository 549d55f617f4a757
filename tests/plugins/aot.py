"""Ahead-of-time compilation of Triton kernels, without a GPU, in a process that does not interpret them."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

Case = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]  # name, kernel, types, constants, options


def compiled(case: Case, target: GPUTarget, numbers: Iterable[str], strides: Iterable[str]) -> int:
    """Bytes of shared memory of a block of the compiled kernel.

    An argument is a constant, or of the type that the case gives, or a plain integer where it is among ``numbers`` or
    ``strides`` (which are multiples of 16, as in real launches), or else a pointer to int32.
    """
    _, kernel, types, constants, launch = case
    signature, attributes = {}, {}
    for at, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in types:
            signature[argument] = types[argument]
        else:
            signature[argument] = "i32" if argument in {*numbers, *strides} else "*i32"
        if signature[argument].startswith("*") or argument in strides:
            attributes[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return int(triton.compile(source, target=target, options=launch).metadata.shared)


PLAN: list[tuple[Any, ...]] = []  # of this process and its forks


def _compile_one(index: int) -> int:
    return compiled(*PLAN[index])


def main(cases: Sequence[Case], numbers: Iterable[str], strides: Iterable[str]) -> None:
    """Compiles for the capability that is the first argument; prints the shared memory of each case as JSON."""
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    PLAN.extend((case, target, numbers, strides) for case in cases)
    with multiprocessing.get_context("fork").Pool() as pool:  # kernels cannot be pickled: a fork has them
        shared = pool.map(_compile_one, range(len(cases)), chunksize=1)
    sys.stdout.write(json.dumps({case[0]: used for case, used in zip(cases, shared, strict=True)}))
