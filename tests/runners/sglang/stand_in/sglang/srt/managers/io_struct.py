"""As ``sglang/srt/managers/io_struct.py`` of SGLang 0.5.17, as far as it is used."""

from dataclasses import dataclass
from typing import Any


@dataclass
class SetInternalStateReq:
    server_args: dict[str, Any]
