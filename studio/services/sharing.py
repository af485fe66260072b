"""Who may look in from outside: what is open, by which way, until when, with which phrase, and who is connected.

Nothing is open unless a person opened it. What is kept (share.json, for this account alone) holds hashes, never a pass
phrase or a cookie, and counts only as long as the same supervisor lives: a restart of this process keeps the link, the
port and the phrase valid, the end of the studio ends all three. A phrase is shown from memory; after a restart only
the supervisor's own (`--share`) are still known, others can be made anew.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.core.private_file import write_private
from studio.hub.offline import OFFLINE_VARIABLE
from studio.machine.addresses import list_addresses, list_names
from studio.machine.workspace import Workspace
from studio.services.login_throttle import Throttle
from studio.services.pass_phrase import hash_phrase, make_phrase, matches
from studio.services.share_files import (
    PHRASES_VARIABLE,
    ROLES,
    SESSION_VARIABLE,
    WAYS,
    GuestConnection,
    Opening,
    note,
    read_links,
    read_state,
    state_file,
)

HOURS = (1, 8, 24)
EXPIRES_H = 8
CONNECTIONS = 64
"""Of one role; beyond that the one that was silent longest is given up."""
AGENT_LETTERS = 160
NAMES_S = 20.0


class Window(Protocol):
    """What opens and closes the ports; studio.ui.listeners."""

    def start(self, role: str, way: str, port: int | None) -> int:
        """Listen for `role` on `port`, else on a free one; return the port. Raises StudioError."""

    def stop(self, role: str) -> None:
        """Close the port of `role` and all that is connected to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharingView:
    """What is shared now; `number` changes with everything that a screen shows of it."""

    number: int = 0
    openings: tuple[Opening, ...] = ()
    connections: tuple[GuestConnection, ...] = ()

    @property
    def on(self) -> bool:
        """Whether anything is open."""
        return bool(self.openings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """What became of a phrase: a cookie's value, else how long the next try must wait."""

    cookie: str = ""
    wait_s: float = 0.0


class Sharing:
    """One workspace's openings; methods may be called from any thread."""

    def __init__(
        self,
        workspace: Workspace,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives Unix seconds; `steady` those that go on evenly, whatever the clock is set to."""
        self.workspace = workspace
        self._clock, self._steady = clock, steady
        self._window: Window | None = None
        self._changing = threading.RLock()
        self._lock = threading.RLock()
        self._openings: dict[str, Opening] = {}
        self._ends_s: dict[str, float] = {}
        self._connections: dict[str, GuestConnection] = {}
        self._throttles = {role: Throttle() for role in ROLES}
        self._number = 0
        self._links: tuple[int, dict[str, Any]] = (0, {})
        self._timer: threading.Timer | None = None
        self._names: tuple[float, tuple[str, ...]] = (0.0, ())

    # Opening and closing ----------------------------------------------------------------------------------------

    def begin(self, window: Window, wishes: Mapping[str, str]) -> None:
        """Go on with what this supervisor's studio had open, else open `wishes` (role -> way). Raises StudioError."""
        phrases = parse_json(os.environ.pop(PHRASES_VARIABLE, "{}"))
        session = os.environ.get(SESSION_VARIABLE, "")
        kept = read_state(self.workspace)
        with self._changing:
            self._window = window
            if session and kept.get("session") == session:
                self._reopen(kept, phrases)
                return
            state_file(self.workspace).unlink(missing_ok=True)
            for role, way in wishes.items():
                self.open(way, role=role, phrase=phrases.get(role, ""))

    def _reopen(self, kept: Mapping[str, Any], phrases: Mapping[str, str]) -> None:
        """Listen again for whom the last process did.

        All of it counts before anything of it listens: the supervisor ends the tunnel of what is left out of a note,
        and the link that was given away with it. Then what does not listen is left out, for a tunnel to a port that
        nobody serves leads to whatever program takes that port next.
        """
        now_s = self._clock()
        noted = [Opening(**one) for one in kept["openings"]]
        lasting = [one for one in noted if now_s < one.expires_s <= now_s + max(HOURS) * 3600]
        connections = [GuestConnection(**one) for one in kept["connections"]]
        with self._lock:
            self._openings = {one.role: one for one in lasting}
            self._connections = {one.id: one for one in connections if one.role in self._openings}
        for opening in lasting:
            known = phrases.get(opening.role, "")
            mine = known if matches(known, opening.salt, opening.phrase_hash) else ""
            try:
                self._listen(replace(opening, phrase=mine))
            except StudioError as error:  # its port was taken meanwhile: the window comes up all the same
                self._drop(opening.role)
                note(self.workspace, "not opened again", role=opening.role, reason=error.what.id)
        with self._lock:
            self._number += 1
            if [one.port for one in self._openings.values()] != [one.port for one in noted]:
                self._save_or_forget()

    def open(
        self, way: str, *, role: str = "viewer", hours: float = EXPIRES_H, phrase: str = ""
    ) -> SharingView:
        """Let `role` in by `way` for `hours` behind a new pass phrase; what was open for it is closed first.

        Raises StudioError: no window, no launcher to hold the tunnel, no network wanted, no free port.
        """
        if way not in WAYS or role not in ROLES or not 0 < hours <= max(HOURS):
            raise _refuse("choice")
        if self._window is None:
            raise _refuse("window")
        if way == "tunnel" and os.environ.get(OFFLINE_VARIABLE) == "1":
            raise _refuse("offline")
        if way == "tunnel" and not os.environ.get(PARENT_VARIABLE):
            raise _refuse("launcher")
        now_s, phrase, salt = self._clock(), phrase or make_phrase(), secrets.token_hex(8)
        opening = Opening(
            role=role,
            way=way,
            port=0,
            opened_s=now_s,
            expires_s=now_s + hours * 3600,
            salt=salt,
            phrase_hash=hash_phrase(phrase, salt),
            phrase=phrase,
        )
        with self._changing:
            self.close(role, reason="changed")
            self._listen(opening)
            try:
                with self._lock:
                    self._save()
            except OSError as error:  # the supervisor would never hear of it
                self._drop(role)
                self._window.stop(role)
                note(self.workspace, "closed", role=role)
                from studio.machine.failures import refuse_system

                raise refuse_system(error) from error
        return self.view()

    def close(self, role: str = "", *, reason: str = "closed") -> SharingView:
        """End the sharing with `role`, or all of it: ports, links, phrases and cookies."""
        with self._changing:
            for name in [name for name in self._openings if role in ("", name)]:
                with self._lock:
                    self._drop(name)
                    self._throttles[name] = Throttle()
                    self._save_or_forget()
                if self._window is not None:
                    self._window.stop(name)
                note(self.workspace, reason, role=name)
            self._arm()
        return self.view()

    def leave(self) -> None:
        """Close the ports because this process ends; what was open stays noted for its successor."""
        with self._changing:
            if self._timer:
                self._timer.cancel()
            for name in list(self._openings):
                if self._window is not None:
                    self._window.stop(name)

    def renew_phrase(self, role: str) -> SharingView:
        """Make a new phrase for `role`; who is connected stays so."""
        with self._lock:
            if role in self._openings:
                phrase, salt = make_phrase(), secrets.token_hex(8)
                hashed = hash_phrase(phrase, salt)
                self._openings[role] = replace(
                    self._openings[role], phrase=phrase, salt=salt, phrase_hash=hashed
                )
                self._save_or_forget()
                note(self.workspace, "new phrase", role=role)
        return self.view()

    # Coming in --------------------------------------------------------------------------------------------------

    def admit(self, role: str, phrase: str, address: str, agent: str) -> Admission:
        """Judge a phrase: a cookie for the right one; a wrong one costs time, too many lock `address` out.

        Behind a link all visitors have one address, that of the tunnel: locked, it would be so for the owner who comes
        in from outside too, as often as anybody who knows the link types nonsense. There wrong phrases wait, and the
        right one is looked at at any time: of 128 random bits the 50 tries a second
        that the gate lets through find it in 24 hours with a chance of one to 10^31.
        """
        throttle, opening = self._throttles[role], self._find(role)
        wait_s = throttle.wait_s(address)
        if opening is None or (wait_s and not throttle.shared):
            return Admission(wait_s=wait_s)
        if not matches(phrase, opening.salt, opening.phrase_hash):
            if wait_s:  # a link's: said without counting, or the wait would never end
                return Admission(wait_s=wait_s)
            locked = throttle.note_failure(address)
            note(self.workspace, "locked out" if locked else "wrong phrase", role=role, address=address)
            return Admission(wait_s=throttle.wait_s(address))
        throttle.note_success(address)
        name, token, now_s = secrets.token_hex(8), secrets.token_hex(16), self._clock()
        connection = GuestConnection(
            id=name,
            role=role,
            token_hash=hash_phrase(token, name),
            address=address,
            agent=agent[:AGENT_LETTERS],
            since_s=now_s,
            seen_s=now_s,
        )
        with self._lock:
            self._connections[name] = connection
            alike = [one for one in self._connections.values() if one.role == role]
            if len(alike) > CONNECTIONS:
                del self._connections[min(alike, key=lambda one: one.seen_s).id]
            with suppress(OSError):  # a full disk: a restart of this process asks for the phrase again
                self._save()
        note(self.workspace, "connected", role=role, address=address, connection=name)
        return Admission(cookie=f"{name}.{token}")

    def knows(self, role: str, cookie: str) -> str:
        """Return the id of the connection that holds `cookie`; "" for none, a disconnected one, or after the end."""
        name, _, token = cookie.partition(".")
        with self._lock:
            connection = self._connections.get(name)
            if connection is None or connection.role != role or self._find(role) is None:
                return ""
            if not matches(token, name, connection.token_hash):
                return ""
            self._connections[name] = replace(connection, seen_s=self._clock())
        return name

    def disconnect(self, name: str) -> SharingView:
        """End one connection; its browser needs the phrase to come back."""
        with self._lock:
            connection = self._connections.pop(name, None)
            if connection:
                self._save_or_forget()
                note(self.workspace, "disconnected", role=connection.role, connection=name)
        return self.view()

    # What there is ----------------------------------------------------------------------------------------------

    def view(self) -> SharingView:
        """Return what is shared now, links as the supervisor last told them."""
        links = self._read_links()
        with self._lock:
            openings = tuple(self._with_link(one, links) for one in self._openings.values())
            return SharingView(
                number=self._number + self._links[0], openings=openings, connections=tuple(self._connections.values())
            )  # fmt: skip

    def origin_of(self, role: str, host: str) -> str:
        """Return the origin of the pages that a request with this Host header belongs to; "" for a foreign Host."""
        opening = self._find(role)
        if opening is None:
            return ""
        port = opening.port
        names = ("127.0.0.1", "localhost", *(self._own_names() if opening.way == "lan" else ()))
        if host in [f"{name}:{port}" for name in names]:
            return f"http://{host}"
        link = urlsplit(self._with_link(opening, self._read_links()).link)
        return f"https://{host}" if link.scheme == "https" and host == link.netloc else ""

    def behind_link(self, role: str) -> bool:
        """Whether those who come in as `role` do so by a tunnel: all of them have one address."""
        opening = self._find(role)
        return opening is not None and opening.way == "tunnel"

    def left_s(self, role: str) -> float:
        """Return how many seconds the sharing with `role` goes on; 0.0 when it is over."""
        opening = self._openings.get(role)
        return self._left_s(opening) if opening else 0.0

    # ------------------------------------------------------------------------------------------------------------

    def _find(self, role: str) -> Opening | None:
        opening = self._openings.get(role)
        return opening if opening and self._left_s(opening) > 0 else None

    def _left_s(self, opening: Opening) -> float:
        """By the clock or by even seconds, whichever is less: a clock that is set back keeps nothing open."""
        by_clock_s = opening.expires_s - self._clock()
        ends_s = self._ends_s.get(opening.role)
        return max(0.0, min(by_clock_s, by_clock_s if ends_s is None else ends_s - self._steady()))

    def _listen(self, opening: Opening) -> None:
        """Open the port of `opening`; the supervisor hears nothing of it yet. Raises StudioError."""
        port = self._window.start(opening.role, opening.way, opening.port or None)
        with self._lock:
            self._throttles[opening.role] = Throttle(shared=opening.way == "tunnel")
            self._ends_s[opening.role] = self._steady() + opening.expires_s - self._clock()
            self._openings[opening.role] = replace(opening, port=port)
        note(self.workspace, "opened", role=opening.role, way=opening.way, port=port)
        self._arm()

    def _drop(self, role: str) -> None:
        """Forget who is let in as `role`, and who came in so."""
        with self._lock:
            self._openings.pop(role, None)
            self._connections = {name: one for name, one in self._connections.items() if one.role != role}

    def _arm(self) -> None:
        """Let the next expiry close its port; requests after it are refused whether or not this runs in time."""
        if self._timer:
            self._timer.cancel()
        if not self._openings:
            return
        first_s = min(map(self._left_s, self._openings.values()))
        self._timer = threading.Timer(max(0.1, first_s), self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        for role in [role for role in list(self._openings) if self._find(role) is None]:
            self.close(role, reason="expired")
        self._arm()

    def _with_link(self, opening: Opening, links: Mapping[str, Any]) -> Opening:
        if opening.way == "lan":
            address = next(iter(self._own_names()), "127.0.0.1")
            return replace(opening, link=f"http://{address}:{opening.port}")
        told = links.get(opening.role, {})
        if told.get("port") != opening.port:
            return opening
        problem = text(f"share.tunnel.{told['problem']}") if told.get("problem") else None
        return replace(opening, link=told.get("link", ""), problem=problem)

    def _own_names(self) -> tuple[str, ...]:
        """The machine's addresses and names, asked for anew every NAMES_S: a laptop changes its network."""
        asked_s, names = self._names
        if not names or self._clock() - asked_s > NAMES_S:
            names = (*list_addresses(), *list_names())
            self._names = (self._clock(), names)
        return names

    def _read_links(self) -> Mapping[str, Any]:
        self._links = read_links(self.workspace, self._links, os.environ.get(SESSION_VARIABLE, ""))
        return self._links[1]

    def _save(self) -> None:
        """Keep what a restart needs; with the lock held. Raises OSError."""
        self._number += 1
        unkept = ("phrase", "link", "problem")
        openings = [
            {name: value for name, value in asdict(one).items() if name not in unkept}
            for one in self._openings.values()
        ]
        state = {
            "session": os.environ.get(SESSION_VARIABLE, ""),
            "openings": openings,
            "connections": [asdict(one) for one in self._connections.values()],
        }
        write_private(state_file(self.workspace), json.dumps(state).encode())

    def _save_or_forget(self) -> None:
        """Keep that something ended; where a full disk does not let that be kept, keep nothing.

        A note that still calls it open would open it again after a restart.
        """
        try:
            self._save()
        except OSError:
            with suppress(OSError):
                state_file(self.workspace).unlink(missing_ok=True)


def _refuse(kind: str) -> StudioError:
    return StudioError(text(f"share.{kind}"), text(f"share.{kind}.why"), text(f"share.{kind}.fix"))
