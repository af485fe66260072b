"""The person's token for the model hub: who may have it, and asking for it where it is kept.

It goes to the hub itself, to a mirror only where the person allows it, and never where others could read it on the way.
What they set in their environment counts as it does for the hub's own tools. What is kept is read by a process of its
own (`python -m studio.hub.token_store`) whose answers have a limit: a keyring may wait for a person who unlocks it,
or hang with the service behind it. The token goes only into the environment of the processes that fetch.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json
from studio.hub.offline import is_set

HUB = "https://huggingface.co"
ANSWER_S = 20.0
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where the hub's own tools look first; what a person has set there goes before ours."""
LOCKED = ("gated", "login")
"""Kinds of refusal that a token could lift."""
UNWANTED = "HF_HUB_DISABLE_IMPLICIT_TOKEN"
"""Set where a person wants no token to be sent that they did not name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPlace:
    """Where a token is kept, without the token."""

    place: str
    """keyring, file, or "" where nothing can be said (no answer)"""
    name: str = ""
    """The keyring's own name, or the file's path."""
    tail: str = ""
    """The token's last four characters; "" when there is none."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """What the person set in the studio to stand for the hub."""

    address: str = ""
    """"" for $HF_ENDPOINT, else the hub itself"""
    token: bool = False
    """Whether it may have the token."""

    def find_address(self, environment: Mapping[str, str]) -> str:
        """Return the address that is asked instead of the hub, or the hub's."""
        return (self.address or environment.get("HF_ENDPOINT") or HUB).strip().rstrip("/")


NO_MIRROR = Mirror()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenChoice:
    """What a fetching child has in its environment beside what is there, and why it is kept without a token."""

    changes: Mapping[str, str]
    withheld: str = ""
    """mirror (nobody allowed it there), http (everybody on the way could read it), "" where nothing is withheld"""


def takes_token(address: str) -> bool:
    """Return whether a token can be sent to `address` unread by others: by https, or within this machine."""
    scheme, host = _split(address)
    return scheme == "https" or (scheme == "http" and _is_here(host))


def look_at_token() -> TokenPlace:
    """Return where the token is kept, or would be; takes 0.2 s."""
    answer = _ask("look")
    return TokenPlace(place=answer.get("place", ""), name=answer.get("name", ""), tail=answer.get("tail", ""))


def keep_token(token: str) -> bool:
    """Keep `token`, "" for none; returns whether that worked."""
    return bool(_ask("keep", token).get("kept"))


def choose_token(mirror: Mirror, environment: Mapping[str, str] = os.environ) -> TokenChoice:
    """Return which token goes to `mirror`, $HF_ENDPOINT or the hub; reading what is kept takes 0.2 s."""
    address = mirror.find_address(environment)
    known = _split(address) == _split(HUB)
    if not takes_token(address):
        return _withhold("http")
    if mirror.address and not known and not mirror.token:
        return _withhold("mirror")
    if is_set(environment, UNWANTED) or any(environment.get(name, "").strip() for name in VARIABLES):
        return TokenChoice(changes={})
    token = _ask("read").get("token", "")
    if token and not known and not mirror.token:
        # $HF_ENDPOINT: the hub's own tools send theirs there, ours was given for the hub.
        return TokenChoice(changes={}, withheld="mirror")
    return TokenChoice(changes={VARIABLES[0]: token} if token else {})


def find_token() -> str:
    """Return the person's token for the hub, as the hub's own tools find it; "" when there is none."""
    environment = dict(os.environ) | choose_token(NO_MIRROR).changes
    if is_set(environment, UNWANTED):
        return ""
    for name in VARIABLES:
        if environment.get(name, "").strip():
            return environment[name].strip()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def show_address(address: str) -> str:
    """Return a web address without the user's name and password in it; "" when it is none."""
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    known = parts.scheme in ("http", "https") and parts.hostname
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}" if known else ""


def refuse_without_token(name: str, shown: str, token: TokenChoice) -> StudioError:
    """Return the refusal of a model that asks for a token where none was sent; `shown` is who asked."""
    parts = ("hub.withheld", f"hub.withheld.{token.withheld}.why", f"hub.withheld.{token.withheld}.fix")
    return StudioError(*(text(part, name=name, endpoint=literal(shown)) for part in parts), exit_code=2)


def _withhold(why: str) -> TokenChoice:
    return TokenChoice(changes=dict.fromkeys(VARIABLES, "") | {UNWANTED: "1"}, withheld=why)


def _split(address: str) -> tuple[str, str]:
    """Return (scheme, host); "" for what is no address."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "", ""
    return parts.scheme, parts.hostname or ""


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ask(wish: str, given: str = "") -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "studio.hub.token_store", wish],
            input=given.encode(),  # not by its arguments, which every user of the machine can see
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            env=dict(os.environ) | {"PYTHONPATH": paths},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            check=False,
        )
        return parse_json(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
