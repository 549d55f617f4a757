"""Triton kernels of a round on tree buffers; `ops` launches them. Importing this package alone imports no Triton.

None of them waits for the host or allocates by device values, so all may be part of a captured CUDA graph.
"""
