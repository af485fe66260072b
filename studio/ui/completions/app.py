"""The address itself: /v1/models, /v1/chat/completions and /v1/completions, whole or as a stream, as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.services.chat_service import ChatService
from studio.ui.auth.login import choose_words
from studio.ui.completions.fields import Wanted, read_body, read_chat, read_completion
from studio.ui.completions.refusal import HttpRefusal, Say, refuse_error
from studio.ui.completions.shapes import Piece, count_tokens

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MODELS, CHAT, TEXT = "/v1/models", "/v1/chat/completions", "/v1/completions"
BODY_BYTES = 2 * 1024**2
BODY_S = 30.0
"""A request's body has to be there within this."""
SEND_S = 60.0
"""Whoever takes nothing of a stream for so long is gone."""


@dataclass(frozen=True, slots=True)
class Whom:
    """A model that answers, as services.chat_service names it."""

    name: str
    run: str = ""
    checkpoint: str = ""
    recipe: Recipe | None = None
    side: str = "tuned"
    created_s: float = 0.0


class Served(Protocol):
    """Which models an address has."""

    def list(self) -> Sequence[Whom]:
        """Return those that are told."""

    def find(self, name: str) -> Whom | None:
        """Return the model of that name, None for one that is not served."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one address takes."""

    tokens: int = 4096
    """Of one answer."""
    waiting: int = 64
    """Answers that have not begun."""
    temperature: float = 2.0


class Completions:
    """ASGI app; who asks was judged before. It answers what begins with /v1/."""

    def __init__(
        self, chat: ChatService, served: Served, language: Callable[[], str], limits: Limits | None = None
    ) -> None:
        """`language`: of what is said where a request wishes for none."""
        self.chat, self.served, self.language, self.limits = chat, served, language, limits or Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        say = self.choose_words(scope)
        try:
            await self._answer(scope, receive, send, say)
        except HttpRefusal as refusal:
            await send_json(send, refusal.status, refusal.body(say))

    def choose_words(self, scope: Scope) -> Say:
        """Return what says a text in the language that a request accepts."""
        accepted = next(
            (value for name, value in scope["headers"] if name.lower() == b"accept-language"), b""
        )
        return choose_words(accepted.decode("latin-1"), self.language()).say

    async def _answer(self, scope: Scope, receive: Receive, send: Send, say: Say) -> None:
        path, method = scope["path"], scope["method"]
        if path == MODELS or path.startswith(f"{MODELS}/"):
            _require(method, "GET")
            return await send_json(send, 200, self._list(path.removeprefix(MODELS).strip("/")))
        if path not in (CHAT, TEXT):
            raise HttpRefusal(404, text("answers.path", path=path[:80]), code="unknown_url")
        _require(method, "POST")
        body = read_body(await read_whole(scope, receive))
        read = read_chat if path == CHAT else read_completion
        wanted = read(body, self.limits.tokens, self.limits.temperature)
        whom = await asyncio.to_thread(self.served.find, wanted.model)
        if whom is None:
            raise refuse_model(wanted.model)
        exchange = Exchange(self.chat, wanted, whom, asyncio.get_running_loop())
        watch = asyncio.create_task(exchange.watch(receive))
        try:
            await exchange.begin(self.limits.waiting)
            if wanted.stream:
                await self._stream(exchange, send, say)
            else:
                await self._tell(exchange, send, say)
        except Gone:
            return
        finally:
            exchange.leave()
            watch.cancel()

    def _list(self, name: str) -> dict[str, Any]:
        def describe(whom: Whom) -> dict[str, Any]:
            return {
                "id": whom.name, "object": "model", "created": int(whom.created_s),
                "owned_by": "finetune-studio", "checkpoint": whom.checkpoint or None,
            }  # fmt: skip

        if not name:
            return {"object": "list", "data": [describe(whom) for whom in self.served.list()]}
        whom = self.served.find(name)
        if whom is None:
            raise refuse_model(name)
        return describe(whom)

    async def _tell(self, exchange: Exchange, send: Send, say: Say) -> None:
        async for _ in exchange.grow():
            continue
        told = exchange.head("chat.completion" if exchange.wanted.chat else "text_completion")
        told["choices"] = [piece.whole() for piece in exchange.pieces]
        await send_json(send, 200, told | exchange.figures(say))

    async def _stream(self, exchange: Exchange, send: Send, say: Say) -> None:
        wanted = exchange.wanted
        head = exchange.head("chat.completion.chunk" if wanted.chat else "text_completion")
        begun = False
        try:
            async for piece, ended in exchange.grow():
                if not begun:
                    begun = True
                    await send(start(200, "text/event-stream; charset=utf-8", {"x-accel-buffering": "no"}))
                for choice in piece.next(ended):
                    await _send_event(send, head | {"choices": [choice]})
        except HttpRefusal as refusal:
            if not begun:
                raise
            await _send_event(send, refusal.body(say))
        else:
            if wanted.usage:
                await _send_event(send, head | {"choices": []} | exchange.figures(say))
        await _send_words(send, "data: [DONE]\n\n")
        await send({"type": "http.response.body", "body": b""})


class Gone(Exception):
    """Whoever asked is no longer there."""


class Exchange:
    """One request on its way: its choices, who computes them, and whether anybody still wants them."""

    def __init__(
        self, chat: ChatService, wanted: Wanted, whom: Whom, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.chat, self.wanted, self.whom = chat, wanted, whom
        self.pieces = [
            Piece(index, wanted.chat, wanted.likeliest is not None, wanted.parallel)
            for index in range(len(wanted.prompts) * wanted.choices)
        ]
        self._loop = loop
        self._changed = asyncio.Event()
        self._gone = threading.Event()
        self._heard: list[Any] = [None] * len(self.pieces)
        self._ended = [False] * len(self.pieces)
        self._errors: list[BaseException] = []
        self._id = f"{'chatcmpl' if wanted.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created_s = int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        """Return what every part of the answer begins with."""
        return {"id": self._id, "object": kind, "created": self._created_s, "model": self.whom.name}

    def figures(self, say: Callable[[Text], str]) -> dict[str, Any]:
        """Return the tokens, how fast they came, and what is to be known of the model."""
        first, loaded = self.pieces[0].answer, self.chat.loaded()
        timings: dict[str, Any] = {
            "first_s": round(first.first_s, 4), "tokens_per_s": round(first.tokens_per_s, 1),
        }  # fmt: skip
        if loaded is not None and loaded.run == self.whom.run:
            timings["slow"] = None if loaded.slow is None else say(loaded.slow)
            ahead = loaded.ahead
            timings["ahead"] = None if ahead is None else {"value": ahead.value, "reason": say(ahead.reason)}
            timings["base_changed"] = loaded.name if loaded.base_changed else None
        return {"usage": count_tokens(self.pieces, len(self.wanted.prompts)), "timings": timings}

    async def begin(self, most_waiting: int) -> None:
        """Ask for every choice. Raises HttpRefusal: too many wait, a run trains, the schema is none."""
        wanted = self.wanted
        fields: dict[str, Any] = {"stop": wanted.stop, "likeliest": wanted.likeliest}
        fields |= {"tools": wanted.tools, "called": wanted.called}
        if self.chat.waiting + len(self.pieces) > most_waiting:
            raise HttpRefusal(429, text("answers.busy", most=most_waiting), code="queue_full")
        try:
            if wanted.schema is not None:
                fields["grammar"] = await asyncio.to_thread(_compile, wanted.schema)
            for index in range(len(self.pieces)):
                prompt, choice = divmod(index, wanted.choices)
                seed = (int(wanted.sampling["seed"]) + choice) % 2**31
                await asyncio.to_thread(
                    self.chat.ask,
                    partial(self._hear, index),
                    run=self.whom.run,
                    checkpoint=self.whom.checkpoint,
                    recipe=self.whom.recipe,
                    side=self.whom.side,
                    should_stop=self._gone.is_set,
                    sampling=wanted.sampling | {"seed": seed},
                    **fields,
                    **wanted.prompts[prompt],
                )
        except (StudioError, RuntimeError) as error:  # RuntimeError: the studio is being closed
            raise refuse_error(error) from error

    async def grow(self) -> AsyncIterator[tuple[Piece, bool]]:
        """Yield a choice that has grown, and whether it has ended. Raises HttpRefusal, Gone."""
        told = [False] * len(self.pieces)
        while not all(told):
            await self._changed.wait()
            self._changed.clear()
            for piece, ended in zip(self.pieces, list(self._ended), strict=True):
                if self._gone.is_set():
                    raise Gone
                if self._errors:
                    raise refuse_error(self._errors[0])
                answer = self._heard[piece.index]
                if told[piece.index] or answer is piece.answer and not ended:
                    continue
                if ended and (answer is None or answer.reason not in ("end", "limit")):
                    raise HttpRefusal(503, text("answers.stopped"), code="interrupted")
                piece.take(answer)
                told[piece.index] = ended
                yield piece, ended

    async def watch(self, receive: Receive) -> None:
        """Wait until whoever asked is gone."""
        while (await receive())["type"] != "http.disconnect":
            continue
        self.leave()

    def leave(self) -> None:
        """Want no more: what is not answered ends, and its place is free."""
        self._gone.set()
        self._changed.set()

    def _hear(self, index: int, said: Any) -> None:
        """Take what the thread that computes says."""
        if isinstance(said, BaseException):
            self._errors.append(said)
        if said is None or isinstance(said, BaseException):
            self._ended[index] = True
        else:
            self._heard[index] = said
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._changed.set)


def _compile(schema: Mapping[str, Any]) -> str:
    from studio.engine.generation.json_grammar import compile_schema

    return compile_schema(schema)


async def read_whole(scope: Scope, receive: Receive) -> bytes:
    """Return a request's body. Raises HttpRefusal for one that is long, slow or of another kind; Gone."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpRefusal(415, text("answers.type"))
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > BODY_BYTES:
        raise HttpRefusal(413, text("answers.large", mb=BODY_BYTES // 1024**2))
    parts, size_bytes, more = [], 0, True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise HttpRefusal(400, text("answers.cut"))
                parts.append(message.get("body", b""))
                size_bytes += len(parts[-1])
                if size_bytes > BODY_BYTES:
                    raise HttpRefusal(413, text("answers.large", mb=BODY_BYTES // 1024**2))
                more = message.get("more_body", False)
    except TimeoutError:
        raise HttpRefusal(408, text("answers.slow", seconds=f"{BODY_S:g}")) from None
    return b"".join(parts)


def refuse_model(name: str) -> HttpRefusal:
    """Return the refusal of a model that is not served."""
    return HttpRefusal(404, text("answers.model", name=name[:80]), field="model", code="model_not_found")


def start(status: int, kind: str, more: MutableMapping[str, str] | None = None) -> Message:
    """Return the beginning of an answer."""
    headers = {"content-type": kind, "cache-control": "no-store", "x-content-type-options": "nosniff"}
    raw = [(name.encode(), value.encode()) for name, value in (headers | dict(more or {})).items()]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def send_json(send: Send, status: int, value: Any) -> None:
    """Send a whole answer."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    more = {"content-length": str(len(body))} | ({"retry-after": "1"} if status in (429, 503) else {})
    more |= {"connection": "close"} if status in (408, 413) else {}  # the rest of the body is not read
    await send(start(status, "application/json", more))
    await send({"type": "http.response.body", "body": body})


async def _send_event(send: Send, value: Any) -> None:
    await _send_words(send, f"data: {json.dumps(value, ensure_ascii=False, allow_nan=False)}\n\n")


async def _send_words(send: Send, words: str) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await send({"type": "http.response.body", "body": words.encode("utf-8"), "more_body": True})
    except TimeoutError:
        raise Gone from None


def _require(method: str, wanted: str) -> None:
    if method != wanted:
        raise HttpRefusal(405, text("answers.method", wanted=wanted))
