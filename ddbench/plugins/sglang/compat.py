"""What SGLang calls differently in the versions that the plug-in knows."""

from __future__ import annotations


def simulated_length(longest: int) -> int | None:
    """The length of path, up to ``longest``, that SGLANG_SIMULATE_ACC_LEN asks for in this round; None for none."""
    from sglang.srt.speculative import spec_utils

    if spec_utils.SIMULATE_ACC_LEN <= 0:
        return None
    sample = getattr(spec_utils, "sample_simulated_acc_len", None) or spec_utils._sample_simulated_acc_len
    return int(sample(spec_utils.SIMULATE_ACC_LEN, spec_utils.SIMULATE_ACC_METHOD, longest))
