"""A door for each port: which Host it answers, whose role one gets behind it, and how a caller is known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from studio.services.sharing import Admission, Sharing
from studio.ui.auth.owner import SESSION_S, Keys


class Door(Protocol):
    """What the gate asks of a port. The role is the door's: no header, address or cookie of another door changes it."""

    role: str
    login: bool
    """Whether one comes in by a pass phrase; else by the one-time token in the address."""
    shared: bool
    """Whether strangers behind it all have one address."""

    def origin_of(self, host: str) -> str:
        """Return the origin that belongs to a Host header; "" for a foreign one."""

    def cookie_name(self, origin: str) -> str:
        """Return the name of this door's cookie."""

    def identify(self, cookies: Mapping[str, str], authorization: str) -> str:
        """Return the caller's name; "" for a stranger."""


class LocalDoor:
    """The owner at this machine; listens on 127.0.0.1 alone."""

    role, login, shared = "owner", False, False

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def origin_of(self, host: str) -> str:
        """Return the origin of 127.0.0.1 and localhost on the own port."""
        known = host in (f"127.0.0.1:{self.keys.port}", f"localhost:{self.keys.port}")
        return f"http://{host}" if known else ""

    def cookie_name(self, origin: str) -> str:
        """Return the name with the port in it: browsers share cookies among a host's ports."""
        return self.keys.cookie_name

    def identify(self, cookies: Mapping[str, str], authorization: str) -> str:
        """Return the browser's or the program's name."""
        return self.keys.identify(cookies, authorization)

    def redeem(self, token: str) -> str | None:
        """Return a cookie's value for the one-time token."""
        return self.keys.redeem(token)

    def lasts_s(self) -> float:
        """Return how long a cookie is good."""
        return SESSION_S


class PhraseDoor:
    """Guests, or the owner from outside: whoever showed the pass phrase and was not disconnected since."""

    login = True

    def __init__(self, sharing: Sharing, role: str, port: int) -> None:
        self.sharing, self.role, self.port = sharing, role, port

    @property
    def shared(self) -> bool:
        """Whether it is a link's: its visitors come from the address of the tunnel."""
        return self.sharing.behind_link(self.role)

    def origin_of(self, host: str) -> str:
        """Return the origin of the link's host, or of this machine's own names."""
        return self.sharing.origin_of(self.role, host)

    def cookie_name(self, origin: str) -> str:
        """Return the name; with https no other site below the relay's name can set one that is called so."""
        name = f"finetune_studio_{self.role}_{self.port}"
        return f"__Host-{name}" if origin.startswith("https:") else name

    def identify(self, cookies: Mapping[str, str], authorization: str) -> str:
        """Return the connection's id."""
        for name in (self.cookie_name("https:"), self.cookie_name("http:")):
            if name in cookies and (known := self.sharing.knows(self.role, cookies[name])):
                return known
        return ""

    def admit(self, phrase: str, address: str, agent: str) -> Admission:
        """Judge a phrase."""
        return self.sharing.admit(self.role, phrase, address, agent)

    def lasts_s(self) -> float:
        """Return how long a cookie is good."""
        return self.sharing.left_s(self.role)


class Doors(dict[int, LocalDoor | PhraseDoor]):
    """The doors of one app by their ports; `loop` is the event loop that the app lives in, known once it was asked."""

    loop: asyncio.AbstractEventLoop | None = None
