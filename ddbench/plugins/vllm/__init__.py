"""DDTree for a stock vLLM, on its V1 model runner. See docs/vllm.md.

Importing this package imports no part of vLLM: `plugin.register` is the entry point, and everything else is loaded by
the worker that was asked for.
"""
