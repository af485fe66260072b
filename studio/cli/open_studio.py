"""An open studio of the same workspace answers a command's questions: the model that it has loaded is not loaded again.

It is found by address.json, which only this user can read, and gets the key of that file only where the process that
wrote it is this user's and still listens there.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json, read_json
from studio.machine.peer_credentials import is_listening
from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import ADDRESS_FILE

REACH_S = 5.0
ANSWER_S = 600.0
"""A model that has to be loaded first takes minutes at most."""


class Unreachable(Exception):
    """The studio does not answer, or not so."""


@dataclass(frozen=True, slots=True)
class SaidAnswer:
    """An answer so far, as engine.generation.text_stream.Answer has it."""

    words: str
    tokens: int = 0
    first_s: float = 0.0
    tokens_per_s: float = 0.0
    unfinished: bool = False


class OpenStudio:
    """One studio's window, asked for answers of one run."""

    def __init__(self, port: int, key: str, language: str, run: str, step: int) -> None:
        """`step`: of a checkpoint, 0 for what the run made. Raises Unreachable where it does not answer for that."""
        self._port = port
        self._name = f"{run}@{step}" if step else run
        self._headers = {
            "Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept-Language": language,
        }  # fmt: skip
        self.slow: str | None = None
        """Why the model's own code answered last."""
        self.ahead: dict[str, Any] | None = None
        """Whether guesses were read ahead, and why: {value, reason}, as the studio says it."""
        self.base_changed = ""
        """The name of a base that is another one than its adapter was trained on."""
        self.place = self._find_place()
        """The checkpoint that answers, "" for a result."""

    def _find_place(self) -> str:
        connection = self._connect()
        try:
            connection.request("GET", f"/v1/models/{quote(self._name)}", headers=self._headers)
            answer = connection.getresponse()
            found = _read(answer.read())
            if answer.status != 200:
                raise Unreachable
            return str(found.get("checkpoint") or "")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable from error
        finally:
            connection.close()

    def answer(
        self, messages: Sequence[Mapping[str, str]], side: str, *, max_new_tokens: int, temperature: float
    ) -> Iterator[SaidAnswer]:
        """Yield the growing answer. Raises StudioError as the studio says it, or where it is closed meanwhile."""
        try:
            yield from self._answer(messages, side, max_new_tokens, temperature)
        except Unreachable as error:
            why, fix = text("cli.chat.closed.why"), text("cli.chat.closed.fix")
            raise StudioError(text("cli.chat.closed"), why, fix, exit_code=1) from error

    def _answer(
        self, messages: Sequence[Mapping[str, str]], side: str, max_new_tokens: int, temperature: float
    ) -> Iterator[SaidAnswer]:
        name = self._name if side == "tuned" else f"{self._name}:base"
        body = {
            "model": name, "messages": list(messages), "max_tokens": max_new_tokens, "temperature": temperature,
            "seed": 0, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        said = SaidAnswer("")
        connection = self._connect()
        try:
            connection.sock.settimeout(ANSWER_S)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _refuse(answer.status, _read(answer.read()))
            for line in answer:
                part = _read(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
                if "error" in part:
                    raise _refuse(503, part)
                said = self._take(said, part)
                if part:
                    yield said
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REACH_S)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable from error
        return connection

    def _take(self, said: SaidAnswer, part: Mapping[str, Any]) -> SaidAnswer:
        words, unfinished = said.words, said.unfinished
        for choice in part.get("choices", ()):
            words += choice["delta"].get("content") or ""
            unfinished |= choice["finish_reason"] == "length"
        if "timings" not in part:
            return SaidAnswer(words, unfinished=unfinished)
        timings = part["timings"]
        self.slow, self.base_changed = timings.get("slow"), timings.get("base_changed") or ""
        self.ahead = timings.get("ahead")
        tokens = part["usage"]["completion_tokens"]
        return SaidAnswer(words, tokens, timings["first_s"], timings["tokens_per_s"], unfinished)


def find_open_studio(workspace: Workspace, language: str, run: str, step: int) -> OpenStudio | None:
    """Return the studio of this user that is open in `workspace` and answers for a run, None without one."""
    try:
        address = read_json(workspace.root / ADDRESS_FILE)
        port, pid, key = urlsplit(address["url"]).port, address["pid"], address["key"]
    except (StudioError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not (port and isinstance(pid, int) and isinstance(key, str) and key.isalnum() and key.isascii()):
        return None
    try:
        return OpenStudio(port, key, language, run, step) if is_listening(pid, port) else None
    except Unreachable:
        return None


def _read(words: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises Unreachable for anything else, such as a page."""
    try:
        found = parse_json(words)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreachable
    return found


def _refuse(status: int, body: Mapping[str, Any]) -> Exception:
    error = body.get("error") or {}
    said = [str(one) for one in error.get("sentences") or ()]
    if status in (401, 404, 429) or not said:
        return Unreachable()
    what, why, fix = (literal(one) for one in (*said, "", "")[:3])
    return StudioError(what, why, fix, exit_code=2 if status < 500 or error.get("code") == "training" else 1)
