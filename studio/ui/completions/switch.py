"""The window's switch: whether other programs are answered by a model of this studio, where, and with which key."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.services.desk import Desk
from studio.ui.completions.app import Completions
from studio.ui.completions.served import OneModel
from studio.ui.completions.server import AddressServer


@dataclass(frozen=True, slots=True)
class OpenAddress:
    """What a program needs to ask."""

    url: str
    key: str
    model: str
    run: str
    checkpoint: str


class AddressSwitch:
    """At most one address, on 127.0.0.1, for one model; methods from any thread."""

    def __init__(self, desk: Desk, language: Callable[[], str]) -> None:
        self._desk, self._language = desk, language
        self._lock = threading.Lock()
        self._server: AddressServer | None = None
        self._open: OpenAddress | None = None

    @property
    def open(self) -> OpenAddress | None:
        """The address that answers now; one whose run was deleted is closed by looking."""
        found = self._open
        if found is not None and found.run:
            try:
                self._desk.runs.read(found.run)
            except StudioError:
                self.off()
        return self._open

    def on(self, run: str, checkpoint: str, recipe: Recipe | None) -> OpenAddress:
        """Answer other programs by the model of `run`, or of `recipe`, in place of what answered before.

        The key is a new one each time. The model is loaded at the first question. Raises StudioError where no port of
        the usual ones is free, OSError.
        """
        with self._lock:
            self._close()
            name = run or (recipe.model.source.rpartition("/")[2] if recipe else "")
            served = OneModel(name, run=run, checkpoint=checkpoint, recipe=recipe)
            self._server = AddressServer(Completions(self._desk.chat, served, self._language))
            self._open = OpenAddress(self._server.url, self._server.key, name, run, checkpoint)
            self._desk.chat.addressed = True
            return self._open

    def off(self) -> None:
        """Close the address; answers that are on their way end."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        server, self._server, self._open = self._server, None, None
        self._desk.chat.addressed = False
        if server is not None:
            server.close()
