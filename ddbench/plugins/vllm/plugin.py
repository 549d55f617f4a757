"""Entry point in `vllm.general_plugins`: vLLM calls it in every process that it starts, any number of times.

It does two things, neither of which changes a server that does not ask for DDTree: it names the attention backend
CUSTOM, and it has requests to a DDTree server checked where vLLM checks them, so that one that cannot be served is
answered with HTTP 400.
"""

from __future__ import annotations

import functools
from typing import Any

from ddbench.plugins.vllm.refusals import Refused, check_request, is_ours


def register() -> None:
    """Called by vLLM. Raises nothing that a stock server would notice."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "ddbench.plugins.vllm.attention_cuda.DDTreeBackend")
    _check_requests()


def _check_requests() -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor

    stock = InputProcessor._validate_params
    if getattr(stock, "ddbench", False):
        return

    @functools.wraps(stock)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        found = stock(self, params, *args, **kwargs)
        if is_ours(self.vllm_config):
            try:
                check_request(params)
            except Refused as refused:  # the client's mistake in vLLM's own words; newer servers answer others with 500
                raise VLLMValidationError(str(refused)) from refused
        return found

    validate.ddbench = True  # type: ignore[attr-defined]
    InputProcessor._validate_params = validate
