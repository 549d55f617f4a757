"""The model card and the evidence file, written from what the stages noted down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from experiments.train_tiny.config import HybridConfig, TrainConfig


def command(config: TrainConfig) -> str:
    """What a user types to make such models again."""
    return "python -m ddbench experiment=train_tiny" + ("" if config.target.hybrid is None else "_hybrid")


def evidence(config: TrainConfig, notes: Mapping[str, Any], remark: str) -> dict[str, Any]:
    """What was measured, in the form of a ``docs/evidence`` file."""
    hardware = notes["target"]["hardware"] if "target" in notes else notes["dflash"]["hardware"]
    return {
        "command": command(config),
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": hardware.partition(",")[0],
        "driver": notes.get("driver"),
        "versions": {"torch": hardware.partition("torch ")[2]},
        "measured": {
            "stage_seconds": {
                name: round(sum(each["stage_seconds"] for each in passes_of(note)), 1)
                for name, note in notes.items()
                if "stage_seconds" in note
            },
            "stage_hardware": {name: note["hardware"] for name, note in notes.items() if "hardware" in note},
            "target_held_out_loss": notes.get("distil", notes.get("unloop", {}))
            .get("history", [{}])[-1]
            .get("held_out_loss"),
            "teaching": notes.get("teach", {}).get("history"),
            "distillation": notes.get("distil", {}).get("history"),
            "evaluation": _last(notes["evaluate"]),
            "earlier_passes": {name: note["earlier"] for name, note in notes.items() if "earlier" in note},
        },
        "notes": remark,
    }


def passes_of(note: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A stage's notes of each time that it ran, in order: the last one holds the others under ``earlier``."""
    return [*note.get("earlier", []), _last(note)]


def _last(note: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in note.items() if key != "earlier"}


def write_card(config: TrainConfig, notes: Mapping[str, Any], remark: str) -> str:
    """The model card in Markdown. ``remark`` says how the stages were run."""
    front = _front(config) if config.target.hybrid is None else _hybrid_front(config, config.target.hybrid)
    return "\n".join([*front, *_quality(notes), *_text(notes), *_training(config, notes, remark), *_data(notes), ""])


def _front(config: TrainConfig) -> list[str]:
    return [
        "# Tiny models of ddbench",
        "",
        "A target of the Qwen3 architecture, a DFlash drafter and an EAGLE-3 drafter, small enough to ship with the code "
        "and to run on two CPU cores. They exist to demonstrate the method and to test engines: they write source-like "
        "text, know nothing, and **say nothing about speed on your GPU or about acceptance of a real model pair**.",
        "",
        "| folder | what | format |",
        "|---|---|---|",
        "| `target/` | causal language model, bfloat16 | `Qwen3ForCausalLM`, byte-level BPE of its own |",
        "| `dflash/` | block-diffusion drafter, block 16 | `DFlashDraftModel`, as z-lab publishes them |",
        "| `eagle3/` | autoregressive drafter, reduced draft vocabulary | `LlamaForCausalLMEagle3`, as SGLang and vLLM load |",
        "| `prompts.jsonl`, `warmup.jsonl` | beginnings of held-out texts; measured, and never measured | prompt records |",
        "",
        "The taps of the EAGLE-3 drafter are the *inputs* of the layers that its config names, which is how ddbench and vLLM "
        "read the ids. SGLang adds 1 to explicit ids: give it a copy whose config names each layer one lower, or its "
        "acceptance falls without a word.",
        "",
        f"Licence of the weights: Apache-2.0. Remake them with `{command(config)}`.",
        "",
    ]


def _hybrid_front(config: TrainConfig, hybrid: HybridConfig) -> list[str]:
    full = config.target.layers // hybrid.interval
    return [
        "# Tiny hybrid pair of ddbench",
        "",
        f"A target of the Qwen3.5 text architecture with {config.target.layers - full} layers of gated delta net and {full} of "
        "full attention, and a DFlash drafter. They exist to test engines on targets with recurrent state: they write "
        "source-like text, know nothing, and **say nothing about speed on your GPU or about acceptance of a real model "
        "pair**. Their tokens, prompts and warm-up prompts are those of the dense pair beside them, from which they were made.",
        "",
        "| folder | what | format |",
        "|---|---|---|",
        "| `target/` | causal language model, bfloat16 | `Qwen3_5ForCausalLM`, byte-level BPE of the dense pair |",
        f"| `dflash/` | block-diffusion drafter, block {config.dflash.block_size} | `DFlashDraftModel`, as z-lab publishes them |",
        "",
        f"Layers {hybrid.interval}, {2 * hybrid.interval} and so on have full attention: `full_attention_interval` in its config says so, and engines read it "
        f"there. A delta net has {hybrid.value_heads} states of {hybrid.head_dim} x {hybrid.head_dim} and a convolution over "
        f"{hybrid.conv_kernel} tokens.",
        "",
        f"Licence of the weights: Apache-2.0. Remake them with `{command(config)}`.",
        "",
    ]


def _quality(notes: Mapping[str, Any]) -> list[str]:
    found = notes["evaluate"]
    lengths = found["acceptance_length"]
    chain = lengths["dflash_chain"]["all"]
    categories = sorted(lengths["dflash_chain"]["by_category"])
    lines = [
        "## Quality on held-out prompts",
        "",
        f"{found['prompts']} prompts of distributions that training never saw, temperature 0, at most "
        f"{found['new_tokens']} new tokens, reference engine, measured on: {found['hardware']}. Acceptance length is tokens "
        "emitted per round, bonus token included, prefill token not, summed over prompts; prompts whose text loops are "
        "left out. The shipped `prompts.jsonl` holds a part of these prompts, so its figures differ somewhat.",
        "",
        "| strategy | acceptance length | against the chain | " + " | ".join(categories) + " | lossless share |",
        "|---|---|---|" + "---|" * (len(categories) + 1),
    ]
    for name, row in lengths.items():
        by_category = " | ".join(_number(row["by_category"].get(category)) for category in categories)
        ratio = row["all"] / chain if row["all"] and chain else None
        lines.append(
            f"| {name} | {_number(row['all'])} | {_number(ratio)} | {by_category} | {_number(row['lossless_share'], 3)} |"
        )
    return [*lines, ""]


def _number(value: float | None, digits: int = 2) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _text(notes: Mapping[str, Any]) -> list[str]:
    found = notes["evaluate"]
    return [
        "Greedy text of the target on the same prompts:",
        "",
        f"- loops: {found['loop_share']:.1%} of the prompts (the last 40 tokens or more have one period of at most 24 "
        "tokens, or more than half of the 8-grams stood in the text before; structured text trips the second rule easily)",
        f"- distinct tokens / tokens: {found['distinct_token_ratio']:.2f}; mean length {found['mean_output_tokens']:.0f} "
        f"tokens; {found['stopped_share']:.0%} of the texts end by themselves",
        "",
    ]


def _training(config: TrainConfig, notes: Mapping[str, Any], remark: str) -> list[str]:
    lines = ["## Training", "", "| stage | seconds | what | result |", "|---|---|---|---|"]
    for name, *_ in _stages(config, notes):
        for turn, each in enumerate(passes_of(notes[name])):
            what, result = next(row[1:] for row in _stages(config, {**notes, name: each}) if row[0] == name)
            told = f"{name}, pass {turn + 1}" if "earlier" in notes[name] else name
            lines.append(f"| {told} | {each['stage_seconds']:.0f} | {what} | {result} |")
    hardware = sorted({note["hardware"] for note in notes.values() if isinstance(note, dict) and "hardware" in note})
    return [*lines, "", f"Seed {config.seed}. Hardware: {'; '.join(hardware)}. {remark}", ""]


def _stages(config: TrainConfig, notes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    if "target" in notes:
        last = notes["target"]["history"][-1]
        rows.append(
            (
                "target",
                f"{notes['target']['parameters'] / 1e6:.1f} M parameters, {last['tokens'] / 1e6:.0f} M tokens, "
                f"{config.target.steps} steps of {config.target.batch} x {config.target.row_tokens}",
                f"loss {last['loss']:.2f}, held out {last['held_out_loss']:.2f} nats a token",
            )
        )
    if "lessons" in notes:
        made = notes["lessons"]
        rows.append(
            ("lessons", "greedy continuations by the dense target", f"{made['generated_tokens'] / 1e6:.1f} M tokens")
        )
    if "teach" in notes:
        taught, last = notes["teach"], notes["teach"]["history"][-1]
        rows.append(
            (
                "teach",
                f"{taught['parameters'] / 1e6:.1f} M parameters, first ones from layers "
                f"{', '.join(map(str, config.teacher.layers if config.teacher else []))} of the dense target of "
                f"{taught['teacher_parameters'] / 1e6:.1f} M; {last['step'] + 1} steps, drafter beside it",
                f"chooses {last['held_out_agreement']:.1%} of the dense target's tokens on held-out text, chain there "
                f"{_number(last['held_out_emitted_per_round'])}; real text {taught['held_out_loss']:.2f} nats a token",
            )
        )
    if "unloop" in notes:
        shares = ", ".join(f"{share:.0%}" for share in notes["unloop"]["looping_share_by_round"])
        rows.append(("unloop", "unlikelihood training on the target's own loops", f"looping share by round: {shares}"))
    if "first_drafter" in notes:
        last = notes["first_drafter"]["history"][-1]
        rows.append(
            (
                "first_drafter",
                f"DFlash drafter for the target before distillation, {config.first_drafter.steps} steps",
                f"chain emits {_number(last['held_out_emitted_per_round'])} tokens a round on held-out text",
            )
        )
    if "distil" in notes:
        emitted = ", ".join(_number(turn["held_out_emitted_per_round"]) for turn in notes["distil"]["history"])
        rows.append(
            (
                "distil",
                f"{config.distil.rounds} round{'s' * (config.distil.rounds > 1)} of self-distillation towards draftable text, drafter and target together; "
                f"best of {config.distil.candidates} continuations of {config.distil.prompts} prompts",
                f"chain on held-out text by round: {emitted}",
            )
        )
    if "generate" in notes:
        made = notes["generate"]
        rows.append(
            ("generate", "greedy continuations by the final target", f"{made['generated_tokens'] / 1e6:.1f} M tokens")
        )
    last = notes["dflash"]["history"][-1]
    rows.append(
        (
            "dflash",
            f"{notes['dflash']['parameters'] / 1e6:.1f} M parameters, {last['step'] + 1} steps of {config.dflash.batch} x "
            f"{config.dflash.anchors} blocks, target frozen",
            f"loss {last['loss']:.2f}; chain on held-out text {_number(last['held_out_emitted_per_round'])}",
        )
    )
    if "eagle3" in notes:
        last = notes["eagle3"]["history"][-1]
        right = ", ".join(f"{value:.2f}" for key, value in last.items() if key.startswith("right_step_"))
        rows.append(
            (
                "eagle3",
                f"{notes['eagle3']['parameters'] / 1e6:.1f} M parameters, {config.eagle3.steps} steps, unrolled {config.eagle3.unroll}",
                f"loss {last['loss']:.2f}; right by unrolled step: {right}",
            )
        )
    return rows


def _data(notes: Mapping[str, Any]) -> list[str]:
    if "corpus" not in notes:
        return []
    corpus = notes["corpus"]
    training, held = corpus["training"], corpus["held_out"]
    sources = sorted(corpus["sources"], key=lambda source: -source["characters"])
    lines = [
        "## Data",
        "",
        f"Text of permissively licensed Python distributions (and the standard library) as installed on the training "
        f"machine: {training['units']:,} units, {training['characters'] / 1e6:.0f} M characters, "
        f"{training['tokens'] / 1e6:.0f} M tokens. A unit is a function, a docstring, a few paragraphs, a structured or a "
        "declaration fragment; `structured` is mostly function signatures rendered as JSON records. Near-identical units are "
        f"dropped. Held out by distribution: {held['units']:,} units, {held['tokens'] / 1e6:.1f} M tokens.",
        "",
        "Units by category: " + ", ".join(f"{name} {count:,}" for name, count in training["by_category"].items()) + ".",
        "",
        "Held-out distributions: "
        + ", ".join(f"{s['name']} {s['version']} ({s['licence']})" for s in sources if s["held_out"])
        + ".",
        "",
        "<details><summary>All training distributions, with licence as stated by their metadata</summary>",
        "",
        "| distribution | version | licence | characters |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {s['name']} | {s['version']} | {s['licence'].replace('|', '/')} | {s['characters']:,} |"
        for s in sources
        if not s["held_out"]
    ]
    return [*lines, "", "</details>"]


def as_text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
