"""Trees: the most probable paths, found by trying all that extend one already taken."""

import dflash
import torch


def maybe_enable_cpp_compact(enabled):
    assert enabled in (True, False)


def best_paths(logits, budget):
    """The ``budget`` most probable beginnings of a block, by the drafter's own distribution at each place."""
    table = torch.log_softmax(logits.float(), -1).double()
    taken, edge = set(), {(token,): float(score) for token, score in enumerate(table[0])}
    while edge and len(taken) < budget:
        path = max(edge, key=edge.get)
        score = edge.pop(path)
        taken.add(path)
        if len(path) < len(table):
            edge |= {(*path, token): score + float(more) for token, more in enumerate(table[len(path)])}
    return taken


@torch.inference_mode()
def ddtree_generate(
    model,
    target,
    input_ids,
    mask_token_id,
    max_new_tokens,
    block_size,
    stop_token_ids,
    temperature=0.0,
    tree_budget=None,
    save_tree_traces=False,
):
    assert temperature == 0
    assert not save_tree_traces

    def tree(ids):
        return best_paths(dflash.draft(model, target, ids, mask_token_id, block_size), tree_budget)

    return dflash.generate(target, input_ids, mask_token_id, max_new_tokens, stop_token_ids, tree)
