"""Asks the model hub, or the mirror that stands for it, whether it answers; only when the person asked for that."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping

from studio.host.probes.limit import limit

HUB = "https://huggingface.co"
SMALL_ANSWER = "/api/models?limit=1"


def ask_hub(
    endpoint: str = "", timeout_s: float = 5.0, environment: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Return (`ok` or the error's text, the endpoint asked): `endpoint`, else $HF_ENDPOINT, else the hub itself.

    Proxies and certificates are those of this process's environment. An answer that refuses (401, 404) is one.
    """
    address = (endpoint or environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    # A name server can keep silent for longer than any timeout of ours.
    answer = limit(lambda: _ask(address, timeout_s), timeout_s + 1)
    return answer or f"no answer within {timeout_s:g} s", address


def _ask(address: str, timeout_s: float) -> str:
    if not address.startswith(("https://", "http://")):
        return "unknown url type"
    try:
        request = urllib.request.Request(address + SMALL_ANSWER, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s):
            return "ok"
    except urllib.error.HTTPError as error:
        return "ok" if error.code < 500 else f"HTTP {error.code}"
    except (OSError, ValueError) as error:  # no route, no name, a certificate, an address that is none
        return str(getattr(error, "reason", error)) or type(error).__name__
