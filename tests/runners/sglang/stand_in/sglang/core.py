"""What the stand-in computes; see the package."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sglang.recording import Recording

if TYPE_CHECKING:
    from ddbench.decoding import Generation, ModelPair, Strategy

VERSION = "0.5.17"
REGISTERED = "ddbench: DDTREE plugin registered: N=11 B=8 K=10 backend=TritonAttnBackend mask=on"


class Core:
    """One model pair under the settings of a server; requests are decoded one after the other."""

    def __init__(self, args: dict[str, Any]) -> None:
        self.args = args
        self.says: list[str] = []
        self.limits: dict[str, Any] | None = None  # of the trees, as our plug-in reads them from its environment
        self.recording: Recording | None = None
        self._plain = False  # whether a verify width of 1 is pinned
        self._shape = self._shape_of(args.get("speculative_algorithm"))
        self._lock = threading.Lock()
        self.rounds = self.emitted = 0
        self.served = 0

    def _shape_of(self, algorithm: str | None) -> dict[str, Any]:
        """Arguments of our reference engine's strategy for what SGLang is told."""
        args = self.args
        width, topk = args.get("speculative_num_draft_tokens"), args.get("speculative_eagle_topk")
        if algorithm is None:
            return {"name": "autoregressive"}
        if algorithm == "DFLASH":
            if topk not in (None, 1):
                self.says.append(f"DFLASH only supports speculative_eagle_topk == 1; overriding {topk} to 1.")
            args["speculative_eagle_topk"] = args["speculative_num_steps"] = 1
            return {"name": "dflash", "depth": width - 1}
        if algorithm == "EAGLE3":
            return {"name": "eagle", "width": topk, "depth": args["speculative_num_steps"], "nodes": width - 1}
        if algorithm == "DDTREE":
            self.says.append(os.environ.get("STAND_IN_SAYS", REGISTERED))
            self.limits = _limits(topk, (args.get("speculative_dflash_block_size") or 8) - 1, width - 1)
            self.recording = Recording.of((args.get("speculative_dflash_block_size") or 8) - 1, topk)
            return {"name": "ddtree", **self.limits}
        raise ValueError(f"Unknown speculative algorithm: {algorithm}")

    @cached_property
    def _pair(self) -> ModelPair:
        """Loaded with the first request, so that a server that is only looked at is up at once."""
        import torch

        from ddbench.decoding import load_pair

        torch.set_num_threads(1)
        drafter = self.args.get("speculative_draft_model_path")
        names = {"dflash": "dflash", "ddtree": "dflash", "eagle": "eagle"}
        drafters = {names[self._shape["name"]]: drafter} if drafter else {}
        return load_pair(self.args["model_path"], **drafters, device="cpu", dtype="float32")

    @property
    def _strategy(self) -> Strategy:
        from ddbench.decoding import Strategy

        alone = self._plain or (self.recording is not None and self.recording.roots_alone)
        return Strategy("autoregressive") if alone else Strategy(**self._shape)

    def info(self) -> dict[str, Any]:
        tokens = self.args.get("max_total_tokens") or 4096
        state: dict[str, Any] = {
            "memory_usage": {"weight": 0.1, "kvcache": 0.2, "token_capacity": tokens, "graph": 0.0}
        }
        if self.rounds:
            state["avg_spec_accept_length"] = self.emitted / self.rounds
        if self.limits is not None:
            state["ddtree"] = {"verify_width": self.args["speculative_num_draft_tokens"], **self.limits}
            state["ddtree"]["recording"] = None if self.recording is None else self.recording.mode
            state["ddtree"]["adaptive"] = _adaptive()
        return {**self.args, "version": VERSION, "max_total_num_tokens": tokens, "internal_states": [state]}

    def set_state(self, asked: dict[str, int]) -> list[bool]:
        """Our plug-in's door: limits of the trees, 0 lifts one, and what is recorded."""
        values = {name.removeprefix("ddtree_"): value for name, value in asked.items()}
        mode, pinned = values.pop("record", None), values.pop("verify", None)
        values.pop("policy", None)  # the stand-in has none: it verifies what is pinned, or its own width
        if pinned is not None:
            values["nodes"], self._plain = max(pinned - 1, 0), pinned == 1
        if self.limits is None or (mode is not None and self.recording is None):
            return [False]
        width, topk = self.args["speculative_num_draft_tokens"], self.args["speculative_eagle_topk"]
        most = {"nodes": width - 1, "width": topk, "depth": (self.args.get("speculative_dflash_block_size") or 8) - 1}
        self.limits |= {name: value or most.get(name, False) for name, value in values.items()}
        self._shape = {"name": "ddtree", **self.limits}
        if mode is not None and self.recording is not None:
            self.recording.mode = mode
        return [True]

    def chunks(self, rid: str, input_ids: list[int], params: dict[str, Any], **asked: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a stream; the last is what an answer without a stream is."""
        done = self._decode(input_ids, params)
        if self.recording is not None:
            with self._lock:
                self.recording.write(self._pair, rid, done)
        logprobs = self._logprobs(input_ids, done, asked)
        rounds = [round.emitted for round in done.rounds]
        steps = [1, *(rounds or [1] * (len(done.output_token_ids) - 1))]
        sent = 0
        for index, count in enumerate(steps):
            last = index == len(steps) - 1
            ids = list(done.output_token_ids[sent : sent + count])
            sent += count
            whole = not self.args.get("incremental_streaming_output")
            meta = {
                "id": rid,
                "finish_reason": _reason(done) if last else None,
                "prompt_tokens": len(input_ids),
                "weight_version": "default",
                "num_retractions": 0,
                "reasoning_tokens": 0,
                "completion_tokens": sent,
                "cached_tokens": 0,
            }
            meta |= {name: found[:sent] if whole else found[sent - count : sent] for name, found in logprobs.items()}
            if last:
                meta |= {"e2e_latency": 0.1, **self._speculation(done)}
            yield {"output_ids": list(done.output_token_ids[:sent]) if whole else ids, "meta_info": meta}

    def _decode(self, input_ids: list[int], params: dict[str, Any]) -> Generation:
        from ddbench.decoding import Request, Sampling, decode

        top_k = params.get("top_k", -1)
        sampling = Sampling(
            params.get("temperature", 1.0),
            params.get("top_p", 1.0),
            0 if top_k == -1 else top_k,
            params.get("sampling_seed") or self.served,
        )
        with self._lock:
            pair = self._pair
        stop = set(params.get("stop_token_ids") or ())
        if not params.get("ignore_eos"):
            stop.add(pair.target.config.eos_token_id)
        request = Request("p", tuple(input_ids), params.get("max_new_tokens", 128), sampling, frozenset(stop))
        with self._lock:
            self.served += 1
            done = decode(pair, self._strategy, [request], 1)[0]
            self.rounds += len(done.rounds)
            self.emitted += sum(round.accepted_raw + 1 for round in done.rounds)
        return done

    def _speculation(self, done: Generation) -> dict[str, Any]:
        """Nothing for a request without a round, as SGLang has it."""
        accepted = [round.accepted_raw for round in done.rounds]
        if not accepted:
            return {}
        counts = [accepted.count(value) for value in range(max(accepted) + 1)]
        proposed = len(accepted) * (self.args["speculative_num_draft_tokens"] - 1)
        return {
            "spec_accept_rate": sum(accepted) / proposed,
            "spec_accept_length": len(done.output_token_ids) / len(accepted),
            "spec_num_correct_drafts": sum(accepted),
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": len(accepted),
            "spec_correct_drafts_histogram": counts,
            "spec_accept_histogram": counts,
        }

    def _logprobs(self, input_ids: list[int], done: Generation, asked: dict[str, Any]) -> dict[str, Any]:
        """Log-probabilities of output tokens, of asked ones, and the best few, as ``return_logprob`` gives them."""
        if not asked.get("return_logprob"):
            return {}
        if self.args.get("speculative_algorithm"):
            raise ValueError("DFLASH speculative decoding does not support return_logprob yet.")
        import torch

        output = list(done.output_token_ids)
        with torch.no_grad():
            rows = self._pair.target(torch.tensor([[*input_ids, *output]])).logits[0, len(input_ids) - 1 : -1]
        logs = rows.log_softmax(-1)
        found: dict[str, Any] = {
            "output_token_logprobs": [[float(row[token]), token, None] for row, token in zip(logs, output, strict=True)]
        }
        if wanted := asked.get("token_ids_logprob"):
            found["output_token_ids_logprobs"] = [[[float(row[t]), t, None] for t in wanted] for row in logs]
        if count := asked.get("top_logprobs_num"):
            best = [row.topk(count) for row in logs]
            found["output_top_logprobs"] = [
                [[float(v), int(t), None] for v, t in zip(each.values, each.indices, strict=True)] for each in best
            ]
        return found


def _adaptive() -> dict[str, Any] | None:
    """What a server with a policy says of it. The stand-in has none, and verifies its own width."""
    name = os.environ.get("DDTREE_POLICY")
    if not name:
        return None
    from ddbench.cost.model import load_cost

    load_cost(os.environ["DDTREE_COSTS"])
    widths = [int(each) for each in os.environ["DDTREE_WIDTHS"].split(",")]
    return {"policy": name, "widths": widths, "pinned": None, "rounds_of_policy": {}}


def _limits(width: int, depth: int, nodes: int) -> dict[str, Any]:
    found = {"width": width, "depth": depth, "nodes": nodes}
    caps = {name: int(os.environ.get(f"DDTREE_{name.upper()}") or value) for name, value in found.items()}
    floor = os.environ.get("DDTREE_MIN_LOG_PROB")
    spine = os.environ.get("DDTREE_FORCE_SPINE") == "1"
    return {**caps, "force_spine": spine, "min_log_prob": float(floor) if floor else None}


def _reason(done: Generation) -> dict[str, Any]:
    if done.finish_reason == "stop":
        return {"type": "stop", "matched": done.output_token_ids[-1]}
    return {"type": "length", "length": len(done.output_token_ids)}
