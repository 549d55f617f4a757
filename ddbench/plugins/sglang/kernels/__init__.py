"""The device side of a DDTree round under SGLang: static buffers, and the Triton kernels that fill them.

`ops` launches the kernels; `ddbench.plugins.sglang.torch_ops` has the same functions in plain torch. Importing this
package alone imports no Triton. No launcher waits for the host or takes a size from device values, so all of them may
be part of a captured CUDA graph.
"""
