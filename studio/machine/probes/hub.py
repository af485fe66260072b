"""Asks the model hub, or the mirror that stands for it, whether it answers; only when the person asked for that."""

from __future__ import annotations

import base64
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

from studio.hub.access_token import HUB
from studio.machine.probes.call_timeout import limit

SMALL_ANSWER = "/api/models?limit=1"


def ask_hub(
    endpoint: str = "", timeout_s: float = 5.0, environment: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Return (`ok` or the error's text, the endpoint asked): `endpoint`, else $HF_ENDPOINT, else the hub itself.

    Proxies and certificates are those of this process's environment. An answer that refuses (401, 404) is one.
    """
    address = (endpoint or environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    # A name server can keep silent for longer than any timeout of ours.
    plain, headers = _take_name(address)
    answer = limit(lambda: _ask(plain, headers, timeout_s), timeout_s + 1)
    return answer or f"no answer within {timeout_s:g} s", plain


def _take_name(address: str) -> tuple[str, dict[str, str]]:
    """Return `address` without the name and password before its @, and the header that carries them."""
    before, slashes, rest = address.partition("://")
    server, slash, path = rest.partition("/")
    name, at, host = server.rpartition("@")
    if not at:
        return address, {}
    secret = base64.b64encode(urllib.parse.unquote(name).encode()).decode()
    return f"{before}{slashes}{host}{slash}{path}", {"Authorization": f"Basic {secret}"}


def _ask(address: str, headers: dict[str, str], timeout_s: float) -> str:
    if not address.startswith(("https://", "http://")):
        return "an address begins with https:// or http://"
    try:
        request = urllib.request.Request(address + SMALL_ANSWER, headers=headers, method="HEAD")
        with urllib.request.urlopen(request, timeout=timeout_s):
            return "ok"
    except urllib.error.HTTPError as error:
        return "ok" if error.code < 500 else f"HTTP {error.code}"
    # No route, no name, a certificate, an address that is none, an answer that is no web server's.
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
