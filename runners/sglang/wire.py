"""The words of SGLang's native ``POST /generate`` with token ids: what is sent, and what a stream's events say.

From SGLang 0.5.17: fields of a request are those of ``GenerateReqInput`` (``sglang/srt/managers/io_struct.py``) and
``SamplingParams`` (``sglang/srt/sampling/sampling_params.py``); events are made by ``_handle_batch_output`` of
``sglang/srt/managers/tokenizer_manager.py``. An event has ``output_ids`` and ``meta_info``. The ids are all so far, or,
with ``--incremental-streaming-output``, the new ones; several steps may have been joined in either. The tokens so far
are counted in ``meta_info.completion_tokens``, by which both can be read alike. The last event has a ``finish_reason``
with a ``type`` and the counts of speculation.
"""

from __future__ import annotations

from typing import Any

from runners.completions import Event, Speculation, TokenRequest, error_text

PATH = "/generate"


def body(request: TokenRequest, model: str) -> dict[str, Any]:
    """The JSON of a request. All sampling settings are named, so that no default of a server or a model steps in."""
    return {
        "input_ids": list(request.prompt_ids),
        "sampling_params": {
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_new_tokens": 0,
            "sampling_seed": request.seed,  # SGLang heeds it in its deterministic mode alone
            "ignore_eos": request.ignore_eos,
            "stop": [],
            "stop_token_ids": list(request.stop_ids),
            "n": 1,
        },
        "stream": True,
        **({"rid": request.name} if request.name else {}),
        **({"return_logprob": True, "top_logprobs_num": 2} if request.gaps else {}),
    }


def read_event(data: dict[str, Any], have: int = 0) -> Event:
    """What one ``data:`` object of the stream says; ``have`` counts the tokens that came before it.

    Raises:
        ValueError: tokens between the last event and this one are not in either.
    """
    if "error" in data:
        return Event(error=error_text(data))
    meta, ids = data["meta_info"], data["output_ids"]
    total = int(meta["completion_tokens"])
    new = total - have
    if not 0 <= new <= len(ids):
        raise ValueError(f"{total} tokens are counted, {have} had come, and the event has {len(ids)}")
    reason = meta.get("finish_reason") or {}
    return Event(
        tuple(ids[len(ids) - new :]),
        reason.get("type"),
        meta["prompt_tokens"],
        total,
        meta.get("cached_tokens"),
        _speculation(meta),
        _abort(reason),
        _gaps(meta, new),
    )


def _abort(reason: dict[str, Any]) -> str | None:
    if reason.get("type") != "abort":
        return None
    return f"the server aborted the request: {reason.get('message') or 'no reason given'}"


def _speculation(meta: dict[str, Any]) -> Speculation | None:
    """Of the last event of a request that had a verify round; other people's sources may lack any of the names."""
    if not {"spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts"} <= meta.keys():
        return None
    return Speculation(
        meta["spec_verify_ct"],
        meta["spec_num_proposed_drafts"],
        meta["spec_num_correct_drafts"],
        tuple(meta.get("spec_correct_drafts_histogram") or ()),
    )


def _gaps(meta: dict[str, Any], new: int) -> tuple[float | None, ...]:
    """Of each new token, best log-probability less the second best; rows are ``[log-probability, token id, text]``."""
    if "output_top_logprobs" not in meta:
        return ()
    gaps: list[float | None] = []
    chosen, offered = (meta[name] for name in ("output_token_logprobs", "output_top_logprobs"))
    for token, rows in zip(chosen[len(chosen) - new :], offered[len(offered) - new :], strict=True):
        first, *rest = sorted(rows or [], key=lambda row: -row[0]) or [None]
        known = bool(rest) and token[1] in (first[1], rest[0][1])
        gaps.append(first[0] - rest[0][0] if known else None)
    return tuple(gaps)
