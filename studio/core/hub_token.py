"""The person's token for the model hub, asked of the process that alone reads it (`python -m studio.host.hub_token`).

A keyring may wait for a person who unlocks it, or hang with the service behind it: so it is never read in the studio's
own process, and every answer has a limit. The token goes only into the environment of the processes that fetch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ANSWER_S = 20.0
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where the hub's own tools look first; what a person has set there goes before ours."""
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


def look_at_token() -> TokenPlace:
    """Return where the token is kept, or would be; takes 0.2 s."""
    answer = _ask("look")
    return TokenPlace(place=answer.get("place", ""), name=answer.get("name", ""), tail=answer.get("tail", ""))


def keep_token(token: str) -> bool:
    """Keep `token`, "" for none; returns whether that worked."""
    return bool(_ask("keep", token).get("kept"))


def token_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what a fetching child gets beside `environment`: {} without a token, or where a variable holds one."""
    unwanted = environment.get(UNWANTED, "").strip().upper() in ("1", "ON", "YES", "TRUE")
    if unwanted or any(environment.get(name, "").strip() for name in VARIABLES):
        return {}
    token = _ask("read").get("token", "")
    return {VARIABLES[0]: token} if token else {}


def _ask(wish: str, given: str = "") -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "studio.host.hub_token", wish],
            input=given.encode(),  # not by its arguments, which every user of the machine can see
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            env=dict(os.environ) | {"PYTHONPATH": paths},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            check=False,
        )
        return json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
