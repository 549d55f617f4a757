"""``experiment=vllm_evidence``: what DDTree in a stock vLLM does on a GPU, in shards that can be run again."""
