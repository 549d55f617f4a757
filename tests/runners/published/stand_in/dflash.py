"""Chains, and the loop that trees share."""

import time
from types import SimpleNamespace

import torch


def cuda_time():
    torch.cuda.synchronize()
    return time.perf_counter()


def next_token(target, ids):
    """The target's greedy token after ``ids``."""
    return int(target(torch.tensor([ids])).logits[0, -1].argmax())


def draft(model, target, ids, mask_token_id, block_size):
    """Logits [block_size - 1, vocabulary] of the block after ``ids``, whose last token is the anchor."""
    known = len(ids) - 1
    states = target(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    features = torch.cat([states[layer + 1] for layer in model.target_layer_ids], dim=-1)
    context = model.drafter.project_features(features)
    keys = model.drafter.context_kv(context, torch.arange(known)[None])
    block = torch.tensor([[ids[-1], *[mask_token_id] * (block_size - 1)]])
    positions = torch.arange(known, known + block_size)[None]
    return target.lm_head(model.drafter(target.model.embed_tokens(block), positions, keys))[0, 1:]


def generate(target, input_ids, mask_token_id, max_new_tokens, stop_token_ids, paths_of):
    """``paths_of``: the drafted paths after some tokens, as a set of tuples that holds the beginnings of each."""
    prompt, stops = input_ids[0].tolist(), set(stop_token_ids or ())
    begin = cuda_time()
    ids, lengths = [*prompt, next_token(target, prompt)], []
    first = cuda_time() - begin
    while len(ids) - 1 < len(prompt) + max_new_tokens:
        anchor, paths, path = len(ids) - 1, paths_of(ids), ()
        token = next_token(target, ids)
        while (*path, token) in paths:
            path = (*path, token)
            token = next_token(target, [*ids, *path])
        ids += [*path, token]
        lengths.append(len(path) + 1)
        if stops & set(ids[anchor:]):
            break
    output = [each for each in ids[len(prompt) : len(prompt) + max_new_tokens] if each != mask_token_id]
    ends = [index for index, each in enumerate(output) if each in stops]
    output = output[: ends[0] + 1] if ends else output
    return SimpleNamespace(
        output_ids=torch.tensor([[*prompt, *output]]),
        time_to_first_token=first,
        time_per_output_token=(cuda_time() - begin - first) / max(len(output), 1),
        acceptance_lengths=lengths,
        stage_times={"verify": cuda_time() - begin},
    )


@torch.inference_mode()
def dflash_generate(
    model, target, input_ids, mask_token_id, max_new_tokens, block_size, stop_token_ids, temperature=0.0
):
    assert temperature == 0

    def chain(ids):
        if block_size == 1:
            return set()
        best = draft(model, target, ids, mask_token_id, block_size).argmax(-1).tolist()
        return {tuple(best[:depth]) for depth in range(1, block_size)}

    return generate(target, input_ids, mask_token_id, max_new_tokens, stop_token_ids, chain)
