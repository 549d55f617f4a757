"""Identity, acceptance, node logits, law and stress of the merged evidence; null where an arm is missing."""

from __future__ import annotations

from typing import Any

from experiments.evidence.identity import TIES, same_but_for_ties, unexplained
from experiments.sglang_evidence import stress
from experiments.sglang_evidence.counts import against
from experiments.sglang_evidence.law import ARMS as LAW_ARMS
from experiments.sglang_evidence.law import LAWS
from experiments.sglang_evidence.node_logits import BACKENDS

Shards = dict[str, dict[str, Any]]
REFERENCE = {"ddtree_k1": "ddtree_spine"}  # arms that the reference engine calls otherwise
CLAIMS = {  # what the evidence says of a pair of arms; pairs without one are in ``pairs`` alone
    ("ddtree_k1", "dflash"): "k1_identical_to_dflash",
    ("ddtree_eager", "ddtree"): "graphs_off_identical_to_on",
    ("ddtree_sync", "ddtree"): "overlap_off_identical_to_on",
    ("dflash_tp2", "dflash"): "dflash_two_ranks_identical_to_one",
    ("ddtree_tp2", "ddtree"): "two_ranks_identical_to_one",
}


def correctness(shards: Shards) -> dict[str, Any]:
    """Everything that is not a time."""
    return {
        **greedy(shards),
        **law(shards),
        **node_logits(shards),
        "stress": stressed(shards),
        "replay": replayed(shards),
        "hybrid": hybrids(shards),
    }


def greedy(shards: Shards) -> dict[str, Any]:
    """Of the shards of greedy decoding: shares, ledgers, and claims about pairs of arms, from float32 where it ran."""
    checks = {name: one for name, one in shards.items() if name.startswith("tiny_checks")}
    if not checks:
        return {}
    main = checks.get("tiny_checks_float32") or next(iter(checks.values()))
    alike = [one for one in checks.values() if one["dtype"] == main["dtype"]]
    claims = {claim: agreed(alike, f"{one}={other}") for (one, other), claim in CLAIMS.items()}
    shares = {claim: agreement(alike, f"{one}={other}") for (one, other), claim in CLAIMS.items()}
    counted = main.get("histogram", {})
    return {
        "greedy_identity_share": {name: by_arm(one, "share") for name, one in checks.items()},
        "greedy_widest_gap_logits": {name: by_arm(one, "widest_gap_logits") for name, one in checks.items()},
        "greedy_unexplained": {name: not_explained(one) for name, one in checks.items()},
        "threshold_logits": {name: TIES[one["dtype"]] for name, one in checks.items()},
        "acceptance_length": _acceptance(shards, checks),
        **claims,
        "k1_equal_acceptance": counted["ddtree_k1"] == counted["dflash"]
        if {"ddtree_k1", "dflash"} <= {*counted}
        else None,
        "k1_share": shares["k1_identical_to_dflash"],
        "graphs_off_share": shares["graphs_off_identical_to_on"],
        "overlap_off_share": shares["overlap_off_identical_to_on"],
        "pairs": {name: one.get("pairs") for name, one in checks.items()},
        "against_reference": _against(shards, checks),
    }


def agreed(shards: list[dict[str, Any]], pair: str) -> bool | None:
    """A pair of arms is equal up to ties in every shard that has it; None where none has, or one does not tell."""
    told = [
        same_but_for_ties(one["pairs"][pair], one["dtype"], one["threshold_logits"])
        for one in shards
        if pair in one.get("pairs", {})
    ]
    return False if False in told else None if not told or None in told else True


def agreement(shards: list[dict[str, Any]], pair: str) -> dict[str, float] | None:
    """Share of equal outputs of a pair of arms by batch size, the least of all shards; None where none has it."""
    least: dict[str, float] = {}
    for one in shards:
        for batch, ledger in one.get("pairs", {}).get(pair, {}).items():
            least[batch] = min(ledger["share"], least.get(batch, 1.0))
    return least or None


def by_arm(shard: dict[str, Any], key: str) -> dict[str, dict[str, Any] | None]:
    """A figure of the ledgers by arm and batch size; None for an arm that was asked for and has none."""
    found = shard.get("identity", {})
    arms = [arm for arm in shard["arms"] if arm != "autoregressive"]
    return {arm: {batch: one[key] for batch, one in found[arm].items()} if arm in found else None for arm in arms}


def not_explained(shard: dict[str, Any]) -> dict[str, int | None]:
    """Differences that are no ties, by arm over all batch sizes; None where the arm is missing or nothing tells."""
    told: dict[str, int | None] = {}
    for arm in by_arm(shard, "share"):
        ledgers = shard.get("identity", {}).get(arm, {}).values()
        counts = [unexplained(one, shard["dtype"], shard["threshold_logits"]) for one in ledgers]
        known = [count for count in counts if count is not None]
        told[arm] = sum(known) if counts and len(known) == len(counts) else None
    return told


def law(shards: Shards) -> dict[str, Any]:
    """p-values by law: of the tree and the chain, of a second autoregressive engine, and of the planted rule.

    Those of the shard in float32, where there is one, with the most laws; ``t1_by_shard`` has every shard's, and what
    its rule makes of them.
    """
    found = {name: one for name, one in shards.items() if name.startswith("law")}
    if not found:
        return {}
    shard = max(found.values(), key=lambda one: (one.get("dtype") == "float32", len(one["laws"])))
    level = shard["level"]
    tests, usual = shard["laws"], [arm.name for arm in LAW_ARMS[1:]]
    names = {"ddtree": "t1_chi_square_p", "dflash": "t1_chi_square_p_dflash", "autoregressive_again": "t1_control_p"}
    p_values = {key: {each: p_of(tests.get(each, {}), arm) for each in LAWS} for arm, key in names.items()}
    later = {
        f"{key}_later": {each: p_of(tests.get(each, {}), arm, "later") for each in LAWS} for arm, key in names.items()
    }
    return {
        **p_values,
        **later,
        "t1_planted_rejected": rejected([p_of(one, "planted") for one in tests.values()], level),
        "t1_planted_rejected_later": rejected([p_of(one, "planted", "later") for one in tests.values()], level),
        "t1_level": level,
        "t1_dtype": shard.get("dtype"),
        "t1_by_shard": {name: verdicts(one) for name, one in found.items()},
        "t1_arms_missing": [name for name in usual if not tests or any(name not in one for one in tests.values())],
    }


def verdicts(shard: dict[str, Any]) -> dict[str, Any]:
    """By law and arm: the p-values, how many draws no rounding allows, what decides, and whether the law agrees.

    None for what a shard of earlier code does not have.
    """
    told: dict[str, Any] = {}
    for law_name, tests in shard["laws"].items():
        for arm in (name for name in tests if name not in ("sampling", "against_reference")):
            steps = tests[arm].get("steps", {})
            told.setdefault(law_name, {})[arm] = {
                "p": p_of(tests, arm),
                "later": p_of(tests, arm, "later"),
                "steps": p_of(tests, arm, "steps"),
                "outside": steps.get("outside"),
                "undecided": (steps.get("undecided") or [None])[0],
                "decided_by": tests[arm].get("decided_by"),
                "agrees": tests[arm].get("agrees"),
            }
    return told


def p_of(tests: dict[str, Any], arm: str, part: str | None = None) -> float | None:
    """Of one law's tests."""
    test = tests.get(arm, {})
    value = (test.get(part, {}) if part else test).get("p")
    return None if value is None else float(value)


def rejected(p_values: list[float | None], level: float) -> bool | None:
    """Whether a wrong rule was told in every law; None where it was not tried in one."""
    known = [p for p in p_values if p is not None]
    if len(known) < len(p_values) or not known:
        return None
    return max(known) < level


def node_logits(shards: Shards) -> dict[str, Any]:
    """By shard and backend; held against today's threshold. None for a backend that was asked for and gave nothing."""
    told: dict[str, Any] = {}
    for name, one in shards.items():
        if not name.startswith("node_logits"):
            continue
        told[name] = {"dtype": one["dtype"], "threshold_logits": TIES[one["dtype"]]}
        for backend in one.get("asked", BACKENDS):
            found = one["backends"].get(backend)
            widest = (found or {}).get("widest_difference")
            within = widest is not None and widest <= TIES[one["dtype"]]
            told[name][backend] = None if found is None else found | {"within_threshold": within}
    return {"node_logits": told or None}


def stressed(shards: Shards) -> dict[str, Any] | None:
    """By shard and arm; None for an arm that was asked for and gave nothing."""
    found = {name: one for name, one in shards.items() if name.startswith("stress")}
    usual = [arm.name for arm in stress.ARMS]
    return {name: {arm: one["arms"].get(arm) for arm in one.get("asked", usual)} for name, one in found.items()} or None


def replayed(shards: Shards) -> dict[str, Any] | None:
    """By shard: live shapes against the replay of one recording, without the single differences."""
    found = {name: one for name, one in shards.items() if name.startswith("replay")}
    keys = ("width", "depth", "nodes", "force_spine", "rounds", "other_text", "differing", "explained", "acceptance")
    return {
        name: {k: v for k, v in one.items() if k != "shapes"}
        | {
            "by_shape": [{key: row.get(key) for key in keys} for row in one.get("shapes", [])],
            "all_explained": all_explained(one),
        }
        for name, one in found.items()
    } or None


def all_explained(shard: dict[str, Any]) -> bool | None:
    """Every shape was run, and each of its differences from the replay has an explanation: counts, odd rounds, texts.

    None where that was not looked into: a shape is missing, or nobody judged whether another text is a tie.
    """
    rows = shard.get("shapes", [])
    odd = shard.get("rounds_compared", 0) - shard.get("rounds_by_own_scores", 0)
    ledgers = [shard.get("text"), *(row.get("other_texts") for row in rows)]
    ledgers += [row["behind_end"] for row in rows if "behind_end" in row]
    texts = sum(one["unexplained"] for one in ledgers if one is not None)
    if shard.get("unexplained") or texts or odd > shard.get("rounds_with_another_text_behind_end", odd):
        return False
    whole = bool(rows) and not shard.get("failed") and not shard.get("skipped")
    told = None not in ledgers and "rounds_with_another_text_behind_end" in shard
    return True if whole and told else None


def hybrids(shards: Shards) -> dict[str, Any] | None:
    """By shard of hybrid targets: what it shows, and the figures that say so."""
    keys = (
        "family",
        "asked",
        "failed",
        "verdict",
        "identity",
        "acceptance_length",
        "node_logits",
        "links",
        "rounds",
        "states",
    )
    found = {name: one for name, one in shards.items() if name.startswith("hybrid")}
    return {name: {key: one.get(key) for key in keys} for name, one in found.items()} or None


def _acceptance(shards: Shards, checks: Shards) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in checks.values():
        lengths = one.get("acceptance_length", {})
        found |= {f"sglang {one['dtype']} {arm}": lengths.get(arm) for arm in one["arms"] if arm != "autoregressive"}
    reference = shards.get("reference", {})
    return found | {
        f"reference {arm}": one["acceptance_length"] for arm, one in reference.items() if arm != "autoregressive"
    }


def _against(shards: Shards, checks: Shards) -> dict[str, Any] | None:
    """Outputs and rounds prompt by prompt beside the reference engine's, by shard and arm, at the smallest batch."""
    reference = shards.get("reference", {})
    found: dict[str, Any] = {}
    for name, one in checks.items():
        for arm, batches in one.get("by_prompt", {}).items():
            theirs = reference.get(REFERENCE.get(arm, arm), {}).get("by_prompt")
            ours = batches[min(batches, key=int)]
            if theirs is not None and len(theirs) == len(ours):
                found.setdefault(name, {})[arm] = against(ours, theirs)
    return found or None
