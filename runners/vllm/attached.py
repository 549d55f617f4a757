"""What a vLLM server that runs already says of itself."""

from __future__ import annotations

import json
from typing import Any

from ddbench.errors import ConfigError
from runners.attached import get


def version_at(url: str) -> str:
    """The version of the vLLM that answers at ``url``. Raises ConfigError if none does."""
    try:
        return str(json.loads(get(url.rstrip("/"), "/version"))["version"]).partition("+")[0]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("engine.url", url, f"the address of a running vLLM server ({error})") from None


def model_at(url: str) -> str:
    """The name under which the server at ``url`` serves its model. Raises ConfigError if it does not say."""
    try:
        listed: list[dict[str, Any]] = json.loads(get(url.rstrip("/"), "/v1/models"))["data"]
        return str(listed[0]["id"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError("engine.url", url, f"the address of a running vLLM server ({error})") from None
