"""First contact of the plug-in with SGLang on a GPU: PASS or FAIL a check, and what an engine that failed had to say.

    python tests/plugins/sglang/engine_checks.py OUT [WAVE ...]

Needs SGLang's environment alone. Engines of a wave share the GPU and start side by side, since a start is mostly
compilation; the waves follow in the order of what they tell. Nothing here is timed. Every engine's log, tokens and
counts stay in OUT.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ASSETS = ROOT / "ddbench" / "assets"
ENTRY_POINT = "[sglang.srt.plugins]\nddbench = ddbench.plugins.sglang.plugin:register\n"
START_S, RUN_S = 280, 90
LENGTH = 64

COMMON: dict[str, Any] = {
    "model_path": str(ASSETS / "target"),
    "dtype": "bfloat16",
    "context_length": 1024,
    "max_total_tokens": 40_000,
    "max_running_requests": 32,
    "mem_fraction_static": 0.85,
    "attention_backend": "triton",
    "page_size": 1,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "min_free_slots_delay": 1,
    "disable_radix_cache": True,
    "disable_prefill_cuda_graph": True,
    "cuda_graph_bs_decode": [1, 8, 32],
    "skip_tokenizer_init": True,
    "random_seed": 1,
    "log_level": "info",
}
DRAFTER = {"speculative_draft_model_path": str(ASSETS / "dflash")}
CHAIN = DRAFTER | {"speculative_algorithm": "DFLASH", "speculative_num_draft_tokens": 16}


def tree(width: int, top_k: int, **more: Any) -> dict[str, Any]:
    sizes = {
        "speculative_num_draft_tokens": width,
        "speculative_eagle_topk": top_k,
        "speculative_dflash_block_size": 16,
    }
    return DRAFTER | {"speculative_algorithm": "DDTREE"} | sizes | more


WAVES: dict[str, dict[str, dict[str, Any]]] = {
    "first": {"tree64": tree(64, 16), "plain": {}, "chain": CHAIN, "tree_k1": tree(16, 1)},
    "modes": {
        "tree64_eager": tree(64, 16, disable_decode_cuda_graph=True),
        "tree64_sync": tree(64, 16, disable_overlap_schedule=True),
        "tree64_radix": tree(64, 16, disable_radix_cache=False, chunked_prefill_size=64),
        "tree64_small_graphs": tree(64, 16, cuda_graph_bs_decode=[1, 4]),
    },
    "widths": {"tree9": tree(9, 8), "tree16": tree(16, 15), "tree33": tree(33, 32), "tree128": tree(128, 16)},
}
SAME = (("tree_k1", "chain"), ("tree64_eager", "tree64"), ("tree64_sync", "tree64"), ("tree64_radix", "tree64"))


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    found: dict[str, Any] = {}
    for wave in sys.argv[2:] or list(WAVES):
        clock = time.monotonic()
        found |= run_wave(out, WAVES[wave])
        compare(found, WAVES[wave])
        print(f"wave {wave}: {time.monotonic() - clock:.0f} s", flush=True)


def run_wave(out: Path, engines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What each engine of a wave answered, by name; one that failed is missing."""
    facts = out / "site" / "ddbench-0.0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Name: ddbench\nVersion: 0.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINT)
    path = os.pathsep.join([str(out / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "SGLANG_ENABLE_JIT_DEEPGEMM": "0", "OMP_NUM_THREADS": "1"}
    running = {}
    for name, settings in engines.items():
        argv = [sys.executable, __file__, "--engine", json.dumps(COMMON | settings), str(out / f"{name}.json")]
        with (out / f"{name}.log").open("w") as log:
            running[name] = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | own, start_new_session=True)
    end = time.monotonic() + START_S + RUN_S
    found = {}
    for name, process in running.items():
        try:
            status = process.wait(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            status = "timed out"
        if status == 0:
            found[name] = json.loads((out / f"{name}.json").read_text())
        print(f"{'PASS' if status == 0 else 'FAIL'} {name}: runs ({status})", flush=True)
        report(out / f"{name}.log", status == 0)
    return found


def report(log: Path, passed: bool) -> None:
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(f"    {line}" for line in lines if line.startswith("ddbench:")))
    if not passed:
        first = next((i for i, line in enumerate(lines) if "Traceback" in line), max(0, len(lines) - 40))
        print("\n".join(f"    | {line[:300]}" for line in lines[first : first + 45]))


def compare(found: dict[str, Any], engines: dict[str, Any]) -> None:
    for name in engines:
        for job, answer in found.get(name, {}).get("jobs", {}).items():
            tau = acceptance(answer)
            share = same(found.get("plain", {}).get("jobs", {}).get(job), answer)
            print(f"     {name:20} {job:10} tau {tau if tau is None else round(tau, 3)} identical to plain {share}")
        for check, passed in found.get(name, {}).get("checks", {}).items():
            print(f"{'PASS' if passed is True else 'FAIL'} {name}: {check} {'' if passed is True else passed}")
    for one, other in SAME:
        if one in engines and one in found and other in found:
            for job, answer in found[one]["jobs"].items():
                if job.startswith("greedy"):
                    share = same(found[other]["jobs"].get(job), answer)
                    print(f"{'PASS' if share == 1.0 else 'LOOK'} {one} = {other} {job}: {share}", flush=True)


def acceptance(answer: dict[str, Any]) -> float | None:
    """Tokens a round over all requests of a job; None where nothing was drafted."""
    counts = answer["counts"]
    rounds = sum(row["spec_verify_ct"] or 0 for row in counts)
    return 1 + sum(row["spec_num_correct_drafts"] or 0 for row in counts) / rounds if rounds else None


def same(one: dict[str, Any] | None, other: dict[str, Any]) -> float | None:
    if one is None:
        return None
    pairs = list(zip(one["tokens"], other["tokens"], strict=True))
    return round(sum(a == b for a, b in pairs) / len(pairs), 4)


def run_engine(settings: dict[str, Any], result: Path) -> None:
    """In a process of its own: some batches, then what only a tree's server can be asked."""
    import sglang
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ASSETS / "target" / "tokenizer.json"))
    lines = (ASSETS / "prompts.jsonl").read_text().splitlines()
    prompts = [tokenizer.encode(json.loads(line)["turns"][0]).ids[:400] for line in lines[:32]]
    engine = sglang.Engine(**settings)
    found: dict[str, Any] = {"jobs": {}, "checks": {}}

    def ask(count: int, **params: Any) -> dict[str, Any]:
        answers = engine.generate(
            input_ids=prompts[:count], sampling_params={"max_new_tokens": LENGTH, "temperature": 0.0} | params
        )
        names = ("spec_verify_ct", "spec_num_correct_drafts", "spec_correct_drafts_histogram")
        counts = [{name: each["meta_info"].get(name) for name in names} for each in answers]
        return {"tokens": [list(each["output_ids"]) for each in answers], "counts": counts}

    for job, (count, params) in {
        "greedy1": (1, {}),
        "greedy8": (8, {}),
        "greedy32": (32, {}),
        "sampled8": (8, {"temperature": 0.8, "top_p": 0.9, "top_k": 40}),
        "plain_t1": (8, {"temperature": 1.0}),
    }.items():
        found["jobs"][job] = ask(count, **params)
        result.write_text(json.dumps(found))
    found["jobs"]["greedy8b"] = ask(8)
    if settings.get("speculative_algorithm") == "DDTREE":
        tree_checks(engine, found, ask)
    result.write_text(json.dumps(found))
    engine.shutdown()


def tree_checks(engine: Any, found: dict[str, Any], ask: Any) -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    def limit(**limits: int) -> bool:
        request = SetInternalStateReq(server_args={f"ddtree_{name}": value for name, value in limits.items()})
        return engine.loop.run_until_complete(engine.tokenizer_manager.set_internal_state(request)) == [True]

    checks, greedy = found["checks"], found["jobs"]["greedy8"]["tokens"]
    checks["limits taken"] = limit(nodes=4, width=1, depth=4)
    found["jobs"]["greedy8lim"] = ask(8)
    rounds = [row["spec_correct_drafts_histogram"] for row in found["jobs"]["greedy8lim"]["counts"]]
    checks["limits hold"] = all(len(each) <= 5 or not any(each[5:]) for each in rounds) or rounds
    checks["too wide a limit refused"] = not limit(nodes=1000)
    checks["limits lifted"] = limit(nodes=0, width=0, depth=0)
    equal = sum(a == b for a, b in zip(greedy, found["jobs"]["greedy8lim"]["tokens"], strict=True))
    checks["same text under limits"] = equal == len(greedy) or f"{equal} of {len(greedy)}: ties?"
    checks["state"] = "ddtree" in engine.get_server_info()["internal_states"][0]
    try:
        engine.generate(input_ids=[[5, 6, 7]], sampling_params={"max_new_tokens": 4, "frequency_penalty": 0.5})
        checks["penalty refused"] = False
    except Exception as error:  # noqa: BLE001  SGLang's own error for a bad request, whatever its type
        checks["penalty refused"] = "does not serve frequency_penalty" in str(error) or str(error)
    checks["serves after a refusal"] = ask(1)["tokens"][0] == found["jobs"]["greedy1"]["tokens"][0]


if __name__ == "__main__":
    if sys.argv[1] == "--engine":
        run_engine(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
