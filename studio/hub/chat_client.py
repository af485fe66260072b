"""Questions to a model behind an OpenAI-compatible address that a person named; nothing is sent anywhere else.

POST ADDRESS/chat/completions, as the address's own key holder: the key is given, or taken from KEY_VARIABLE, and goes
to that address alone. Without https only this machine and its network are asked. Redirections are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json

KEY_VARIABLE = "FINETUNE_STUDIO_JUDGE_KEY"
TIMEOUT_S = 120.0
MOST_BYTES = 2**22
SAID_CHARACTERS = 200


class ChatClient:
    """One address and one of its models."""

    def __init__(self, address: str, model: str = "", key: str = "") -> None:
        """`model`: its name there; "" takes the only, or the first, that the address lists. Raises StudioError.

        `key`: held in memory alone; "" takes that of KEY_VARIABLE.
        """
        self.address = address.rstrip("/")
        _require_address(self.address)
        self._key = key.strip() or os.environ.get(KEY_VARIABLE, "").strip()
        if not (
            self._key.isascii() and self._key.isprintable()
        ):  # a header would be cut, or hold another one
            raise StudioError(*(text(f"chat_client.key{part}") for part in ("", ".why", ".fix")))
        self._opener = urllib.request.build_opener(
            _NoRedirects(), urllib.request.HTTPSHandler(context=_trust())
        )
        self.model = model or self._find_model()

    def ask(self, messages: Sequence[Mapping[str, str]], *, max_tokens: int) -> str:
        """Return the answer to `messages` at temperature 0. Raises StudioError."""
        body = {
            "model": self.model, "messages": [dict(turn) for turn in messages], "temperature": 0,
            "max_tokens": max_tokens,
        }  # fmt: skip
        found = self._call("/chat/completions", body)
        try:
            return str(found["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError) as error:
            raise self._refuse("chat_client.odd") from error

    def _find_model(self) -> str:
        found = self._call("/models", None)
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise self._refuse("chat_client.no_model") from error

    def _call(self, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"User-Agent": "finetune-studio", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, ensure_ascii=True).encode()
        request = urllib.request.Request(self.address + path, content, headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                said = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                told = error.read(SAID_CHARACTERS * 4).decode("utf-8", "replace")[:SAID_CHARACTERS]
            raise self._refuse("chat_client.status", f"{error.code} {error.reason} {told}".strip()) from error
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise self._refuse("chat_client.silent", str(reason)) from error
        try:
            if len(said) > MOST_BYTES:
                raise ValueError
            return parse_json(said)
        except ValueError as error:
            raise self._refuse("chat_client.odd") from error

    def _refuse(self, id: str, reason: str = "") -> StudioError:
        if self._key:  # an address may say back what it was sent
            reason = reason.replace(self._key, "…")
        why = literal(reason) if reason else text(f"{id}.why")
        return StudioError(text(id, address=self.address), why, text("chat_client.fix"), exit_code=1)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any) -> None:
        """Follow none: the key is for the address that was named."""
        return None


def _trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath or context.get_ca_certs()):
        import certifi  # a Python that was built elsewhere looks where this system has nothing

        context.load_verify_locations(certifi.where())
    return context


def _require_address(address: str) -> None:
    """Raise StudioError unless `address` is https, or http to this machine or its network."""
    parts = urllib.parse.urlsplit(address)
    odd = any(sign <= " " for sign in address) or "\\" in address
    if (
        parts.scheme in ("http", "https")
        and parts.hostname
        and not odd
        and not (parts.username or parts.password)
    ):
        if parts.scheme == "https" or _is_near(parts.hostname):
            return
        raise StudioError(
            text("chat_client.open", address=address[:SAID_CHARACTERS]),
            text("chat_client.open.why"),
            text("chat_client.open.fix"),
        )
    raise StudioError(
        text("chat_client.address", address=address[:SAID_CHARACTERS]),
        text("chat_client.address.why"),
        text("chat_client.address.fix"),
    )


def _is_near(host: str) -> bool:
    """Whether a host is this machine or of its network, by all addresses that its name has."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return True  # not found: the request itself says so
    return all(not ipaddress.ip_address(one.split("%")[0]).is_global for one in found)
