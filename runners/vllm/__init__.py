"""vLLM as an engine: a server for each arm, in an environment of its own (``engine.python``)."""
