"""Keeps the person's token for the model hub: in the system's keyring, else in a file that only they can read.

`python -m studio.hub.token_store look|read|keep` prints one JSON object; `keep` reads the token, or nothing, from its
standard input. studio/hub/access_token.py asks it. The file lies in the user's configuration folder, never in the
workspace, which people copy, share and send.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from studio.core.private_file import write_private

SERVICE = "finetune-studio"
ACCOUNT = "model hub"
TRUSTED = 1
"""Priority from which a keyring counts: below it are those that write plain files, and the one that refuses."""
TAIL = 4


def main(wish: str) -> int:
    """Do what `wish` says and print the answer; 1 where it could not be done."""
    answer: dict[str, Any] = {}
    try:
        if wish == "keep":
            _keep(sys.stdin.read().strip())
            answer = {"kept": True}
        else:
            ring = _find_keyring()
            token = _read(ring)
            name = getattr(ring, "name", type(ring).__name__) if ring else str(token_file())
            place = {"place": "keyring" if ring else "file", "name": name}
            tail = token[-TAIL:] if len(token) > 2 * TAIL else ""
            answer = {"token": token} if wish == "read" else place | {"tail": tail}
    except _errors():
        answer = {}
    print(json.dumps(answer))
    return 0 if answer else 1


def token_file() -> Path:
    """Return the file that holds the token where there is no keyring."""
    from platformdirs import user_config_path

    return user_config_path("finetune-studio", appauthor=False) / "hub-token"


def _errors() -> tuple[type[Exception], ...]:
    """Return what a file or a keyring that refuses raises."""
    try:
        from keyring.errors import KeyringError
    except ModuleNotFoundError:
        return (OSError,)
    return OSError, KeyringError


def _find_keyring() -> Any:
    """Return the system's keyring, or None where there is none that keeps secrets, or no package that finds one."""
    try:
        import keyring
    except ModuleNotFoundError:
        return None
    ring = keyring.get_keyring()
    return ring if ring.priority >= TRUSTED else None


def _read(ring: Any) -> str:
    if ring is not None and (token := ring.get_password(SERVICE, ACCOUNT)):
        return token
    try:
        return token_file().read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _keep(token: str) -> None:
    """Keep `token` in one place and nowhere else; "" leaves none. Raises OSError, KeyringError."""
    ring, file = _find_keyring(), token_file()
    if token and ring is None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, token.encode())
        return
    if token:
        ring.set_password(SERVICE, ACCOUNT, token)
    elif ring is not None:
        from keyring.errors import PasswordDeleteError

        try:
            ring.delete_password(SERVICE, ACCOUNT)
        except PasswordDeleteError:
            token = ""  # there was none
    file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
