"""The reference decode loops over a Hugging Face causal LM: autoregressive, DFlash chain, EAGLE tree and DDTree.

    pair = load_pair("Qwen/Qwen3-4B", dflash="z-lab/Qwen3-4B-DFlash-b16", device="cuda", dtype="bfloat16")
    generations = decode(pair, Strategy("ddtree", nodes=64), requests, batch_size=8)

At temperature 0 every strategy emits the target's own greedy tokens; above it, the tokens that autoregressive decoding
draws with the same seed (sample and match with draws keyed by prompt and position).
"""

from ddbench.decoding.api import STRATEGIES, Generation, Request, Round, Sampling, Strategy
from ddbench.decoding.decode import check_requests, check_strategy, decode
from ddbench.decoding.kept import KeptGraphs
from ddbench.decoding.pair import ModelPair, load_pair

__all__ = [
    "STRATEGIES",
    "Generation",
    "KeptGraphs",
    "ModelPair",
    "Request",
    "Round",
    "Sampling",
    "Strategy",
    "check_requests",
    "check_strategy",
    "decode",
    "load_pair",
]
