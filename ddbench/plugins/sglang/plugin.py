"""Entry point in `sglang.srt.plugins`: SGLang calls it in every process that may need a speculative algorithm.

It registers the algorithm DDTREE and hands over the hooks; a server of another algorithm behaves as before. What goes
wrong here SGLang would only log, and the reader would see "unknown speculative algorithm": so a refusal is registered
in DDTREE's place, which ends the start of a server that asks for it with the reason.
"""

from __future__ import annotations

from typing import Any

from ddbench.plugins.sglang.gate import check_version
from ddbench.plugins.sglang.refused import Refused, say


def register() -> None:
    """Called by SGLang, once in a process."""
    try:
        check_version()
        _register_algorithm()
    except Exception as error:  # noqa: BLE001  a server that asks for DDTREE must be told, whatever it was
        say(f"DDTREE plug-in refused: {error}")
        _register_refusal(f"DDTREE plug-in refused: {error}")


def _register_algorithm() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from ddbench.plugins.sglang import hooks
    from ddbench.plugins.sglang.algo import NAME, DDTreeAlgorithm, check_first

    @SpeculativeAlgorithm.register(  # type: ignore[untyped-decorator]
        NAME, supports_overlap=True, validate_server_args=check_first, spec_class=DDTreeAlgorithm
    )
    def worker_class(server_args: Any) -> type:
        """Imported here alone: the worker needs a GPU's libraries, and only the scheduler's process makes one."""
        from ddbench.plugins.sglang.workers import worker_of

        return worker_of()

    hooks.install()


def _register_refusal(reason: str) -> None:
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        def refuse(server_args: Any) -> None:
            raise Refused(reason)

        SpeculativeAlgorithm.register("DDTREE", supports_overlap=True, validate_server_args=refuse)(refuse)
    except Exception as error:  # noqa: BLE001  no such door in this SGLang: the line above is all there can be
        say(f"DDTREE cannot be registered: {error}")
