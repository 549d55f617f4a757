"""``experiment=sglang_evidence``: what DDTree in a stock SGLang does on a GPU, in shards that can be run again."""
