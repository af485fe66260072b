"""Requests that Gradio has a fault of the server (500) for, where a refusal belongs: seen before, or answered after."""

from __future__ import annotations

import re

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

NAME_BYTES = 255
"""No file system takes a longer name; Gradio asks for it all the same, and the system's error would be its answer."""
BOUNDARY_LETTERS = 70
"""RFC 2046, 5.1.1; the reader of forms fails on a longer one."""


def has_long_name(path: str) -> bool:
    """Return whether a part of `path` is longer than a file's name can be."""
    return any(len(part.encode("utf-8", "replace")) > NAME_BYTES for part in path.split("/"))


def has_boundary(content_type: str) -> bool:
    """Return whether a form of several parts says what lies between them."""
    boundary = re.search(r'boundary="?([^";]*)', content_type)
    return boundary is not None and 0 < len(boundary[1].strip()) <= BOUNDARY_LETTERS


async def answer_unknown(request: Request, error: Exception) -> Response:
    """Answer 404. Handlers run in the queue, so a KeyError of a request itself is Gradio's own look-up of a number."""
    return PlainTextResponse("", 404)


async def answer_unreadable(request: Request, error: Exception) -> Response:
    """Answer 422, and nothing of what was sent: FastAPI quotes it, and has a fault for half a character (`\\ud83d`)."""
    return PlainTextResponse("", 422)


EXCEPTION_HANDLERS = {KeyError: answer_unknown, RequestValidationError: answer_unreadable}
"""For the `app_kwargs` of a Gradio app."""
