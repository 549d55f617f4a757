"""What kind of run this is, where its numbers are not what they seem: above everything else on the page."""

from __future__ import annotations

from reports.frames import Stored, flag

TINY = (
    "> **This report demonstrates the method and says nothing about your GPU.** It was made with the tiny models that "
    "come with ddbench."
)
SYNTHETIC = "> **SYNTHETIC DATA.** The numbers below were made up to test the report; nothing was measured."
REPLAYED = (
    "> **REPLAYED.** {} computed from a recording of the drafter and the target's text; no engine ran them. Rounds, "
    "drafted and accepted tokens are exact (docs/replay.md), and hold for every batch size; there is no time."
)
FIXED_LENGTH = (
    "> **Fixed length: step cost only, no statement about acceptance, speed-up or quality.** {} run past their end of "
    "text (`load.ignore_eos=true`), where the text, and with it what a drafter can guess, is no longer the model's own."
)


def lines(stored: Stored) -> list[str]:
    found = []
    engines = stored.cells["engine"].dropna()
    if stored.config.get("synthetic") or stored.environment.get("synthetic") or (engines == "synthetic").any():
        found.append(SYNTHETIC)
    if any(str(model).startswith("tiny") for model in stored.cells["model"].dropna()):
        found.append(TINY)
    replayed = [bool(flag(flags, "replayed")) for flags in stored.cells["flags"]]
    if any(replayed):
        found.append(REPLAYED.format("All points were" if all(replayed) else "The points marked (replayed) were"))
    forced = [bool(flag(flags, "ignore_eos")) for flags in stored.cells["flags"]]
    if any(forced):
        found.append(FIXED_LENGTH.format("All answers" if all(forced) else "The answers of some cells"))
    return [line for banner in found for line in (banner, "")]
