"""How the owner at this machine is known: a one-time token in the address, signed cookies, and a key for programs."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from studio.core.private_file import read_key, write_private

SESSION_S = 7 * 24 * 3600
"""A browser stays known for a week, restarts of the studio included."""
BROWSERS = 1024
"""So many are remembered with the time that is left to them; the others' cookies are judged by the clock."""


class Keys:
    """The one-time token in the address, the signed cookies of the browsers that showed one, the programs' key."""

    def __init__(self, folder: Path, port: int, steady: Callable[[], float] = time.monotonic) -> None:
        """Read or make the signing key in `folder` (mode 0600), so that a restart keeps the open pages known.

        `steady` gives seconds that go on evenly, whatever the clock is set to. Raises OSError.
        """
        self.port = port
        self.cookie_name = f"finetune_studio_{port}"
        self.address_file = folder / "address.json"
        self.key = read_key(folder / "api.key").hex()
        """What a program of this user shows as `Authorization: Bearer KEY`; the same after a restart."""
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._steady = steady
        self._until_s: dict[str, float] = {}
        self._told = True
        self._secret = read_key(folder / "gate.key")

    @property
    def url(self) -> str:
        """An address with a token that nobody has used yet."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def write_address(self) -> None:
        """Write {"url", "pid", "key"} for a second start of the studio and for programs (mode 0600, in one step)."""
        address = {"url": self.url, "pid": os.getpid(), "key": self.key}
        write_private(self.address_file, json.dumps(address).encode())
        self._told = True

    def tell_address(self) -> None:
        """Write the address where a full disk kept redeem() from it; nothing happens while there is still no room."""
        with self._lock:
            if not self._told:
                with suppress(OSError):
                    self.write_address()

    def redeem(self, token: str) -> str | None:
        """Return a cookie's value for the current token, which is spent by it; None for any other."""
        with self._lock:
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(24)
            self._told = False
        self.tell_address()  # a full disk is no reason to keep this browser out
        return self._sign(f"{int(time.time())}.{secrets.token_urlsafe(16)}")

    def identify(self, cookies: Mapping[str, str], authorization: str = "") -> str:
        """Return who asks: the browser's own name in a cookie signed within SESSION_S, `program`, or "" for nobody."""
        kind, _, key = authorization.partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self.key.encode()):
            return "program"
        body, _, _ = cookies.get(self.cookie_name, "").rpartition(".")
        issued, _, name = body.partition(".")
        if not (issued.isascii() and issued.isdigit()):
            return ""
        if not hmac.compare_digest(self._sign(body).encode(), cookies[self.cookie_name].encode()):
            return ""
        return name if self._left_s(body, int(issued)) > 0 else ""

    def _left_s(self, body: str, issued_s: int) -> float:
        """Return how long a cookie of ours is good.

        The clock is asked once in a process: set forward or back later, it puts out no page that is open. A cookie from
        the future is one that was given before the clock was set back; it is not good for longer than a new one.
        """
        with self._lock:
            if body not in self._until_s:
                left_s = SESSION_S - abs(time.time() - issued_s)
                if left_s <= 0:
                    return left_s
                while len(self._until_s) >= BROWSERS:
                    del self._until_s[next(iter(self._until_s))]
                self._until_s[body] = self._steady() + left_s
            return self._until_s[body] - self._steady()

    def _sign(self, body: str) -> str:
        return f"{body}.{hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()}"


def read_cookies(header: str) -> dict[str, str]:
    """Return the cookies of a request, each by itself: browsers send those of all programs at this machine along.

    One of another program that no standard allows (JSON, quotes, umlauts) must not hide ours.
    """
    pairs = (part.partition("=") for part in header.split(";"))
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}
