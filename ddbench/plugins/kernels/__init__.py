"""Kernels that more than one engine's plug-in launches, and their plain torch twins.

`topk` and `frontier` are Triton; `bits`, `candidates_torch` and `device` are not, and importing this package alone
imports no Triton.
"""
