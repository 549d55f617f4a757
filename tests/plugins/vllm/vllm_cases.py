"""The cases that several tests share: the same for every strategy, and autoregressive decoding says what is right."""

from __future__ import annotations

from vllm_jobs import Case, Job, Tokens, greedy, prompt_tokens

BUDGETS = (1, 3, 7, 16, 48)
NEW = 40  # tokens of an ordinary request

# Six prompts as they are, and beginnings of others: lengths of one token, and of every budget's verify width.
MIXED: tuple[Tokens, ...] = (
    *prompt_tokens()[:6],
    prompt_tokens()[6][:1],
    *(prompt_tokens()[7 + place][: nodes + 1] for place, nodes in enumerate(BUDGETS)),
)


def mixed(name: str, in_flight: int) -> Case:
    return Case(name, MIXED, tuple(greedy(NEW) for _ in MIXED), in_flight)


# `_filler` is 18 distinct prompts' tokens in a row, cut so that only a few tokens fit the context of 1024 after it.
_filler = tuple(token for prompt in prompt_tokens()[:18] for token in prompt)
EDGES = tuple(_filler[start : start + 1024 - room] for start, room in enumerate((1, 2, 9, 17, 40)))

MIXED_4, MIXED_1 = mixed("four in flight", 4), mixed("one in flight", 1)
CUT = Case("cut by max_tokens", MIXED[:5] * 4, tuple(greedy(1 + n) for n in range(20)))
EDGE = Case("edge of the context", EDGES, tuple(greedy(64) for _ in EDGES))

BASELINE = Job("autoregressive", (MIXED_4, MIXED_1, CUT, EDGE))
CHAIN = Job("chain", (MIXED_4, MIXED_1, CUT, EDGE), nodes=15)


def stopping(continued: dict[Tokens, Tokens], text: dict[Tokens, str]) -> tuple[Case, Case]:
    """Requests that end at a token, and at a string, that greedy decoding is known to come to, at many distances."""
    prompts = MIXED[:6]
    places = range(2, 26, 4)
    by_token = Case(
        "stop tokens",
        tuple(prompt for prompt in prompts for _ in places),
        tuple(greedy(NEW, stop_token_ids=[continued[prompt][place]]) for prompt in prompts for place in places),
    )
    starts = range(5, 65, 12)
    by_string = Case(
        "stop strings",
        tuple(prompt for prompt in prompts for _ in starts),
        tuple(greedy(NEW, stop=[text[prompt][start : start + 3]]) for prompt in prompts for start in starts),
    )
    return by_token, by_string
