"""Which form of a target SGLang knows, by the ``config.json`` of a folder."""

from __future__ import annotations

from pathlib import Path

from runners.architectures import architectures_of

MISSING = {"0.5.17": ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")}  # by version, of what 0.5.23 has


def missing_form(folder: Path, version: str) -> str | None:
    """Why SGLang serves no such target; None if it may, or where the folder is not one of this machine."""
    absent = [name for name in architectures_of(folder) or [] if name in MISSING.get(version, ())]
    if not absent:
        return None
    whole = absent[0].replace("ForCausalLM", "ForConditionalGeneration")
    return f"SGLang {version} has no {absent[0]}: it knows the family as {whole} alone (docs/hybrid.md)"
