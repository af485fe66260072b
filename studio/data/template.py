"""One chat template, compiled once: turns in, text out, in the sandbox that transformers renders templates in.

`apply_chat_template` of transformers copies and checks every value at each call. The values here are plain already, so
the same environment (jinja2's immutable sandbox with the same filters and functions) is made once and used directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from studio.core.i18n import text
from studio.data.row import RowError
from studio.data.row_codes import RowCode

Turns = Sequence[Mapping[str, Any]]
REFERENCE_DATE = datetime(2024, 7, 26)
"""What templates get as today: their tokens must not differ from day to day. Llama 3.1's own default date."""
TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template can raise over a conversation that it does not take."""
MESSAGE_CHARACTERS = 160
LARGEST = 2**24
LARGEST_BITS = 2**16
"""Of what one operator of a template makes: characters or items, and the binary digits of a power."""
LONG_BLANK = re.compile(r"%[^a-zA-Z%]*\d{6}")
"""A blank of the operator % that is filled up to 100,000 characters and more."""


class ChatTemplate:
    """Renders conversations with the template `source`. Raises jinja2.TemplateError when it cannot be compiled."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        tokenizer: Any | None = None,
        *,
        today: datetime = REFERENCE_DATE,
    ) -> None:
        """`special_tokens`: bos_token, eos_token ... as the template reads them.

        With `tokenizer` its own method renders instead, for templates that come out otherwise here.
        """
        self.source = source
        self.tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._compiled = make_environment(today).from_string(source)

    def render(
        self,
        turns: Turns,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Return the text of `turns`. Raises RowError TEMPLATE when the template refuses them."""
        given = list(tools) or None
        try:
            if self.tokenizer is not None:
                return self.tokenizer.apply_chat_template(
                    list(turns),
                    tools=given,
                    chat_template=self.source,
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                )
            return self._compiled.render(
                self._special_tokens,
                messages=turns,
                tools=given,
                documents=None,
                add_generation_prompt=generation_prompt,
            )
        except TEMPLATE_ERRORS as error:
            said = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
            raise RowError(RowCode.TEMPLATE, text("data.row.template", message=said)) from error

    def try_render(
        self, turns: Turns, tools: Sequence[Mapping[str, Any]] = (), **settings: bool
    ) -> str | None:
        """Return the text of `turns`; None when the template refuses them."""
        try:
            return self.render(turns, tools, **settings)
        except RowError:
            return None


def compile_like(tokenizer: Any, source: str) -> ChatTemplate:
    """Return the template `source` for `tokenizer`; the slow way where ours would give another text on a probe.

    Raises jinja2.TemplateError when it cannot be compiled.
    """
    tokens = tokenizer.special_tokens_map
    slow = ChatTemplate(source, tokens, tokenizer)
    # Both with today's date: only then can the texts be the same.
    now = ChatTemplate(source, tokens, today=datetime.now())
    for turns in PROBES:
        for generation_prompt in (False, True):
            ours = now.try_render(turns, generation_prompt=generation_prompt)
            if ours != slow.try_render(turns, generation_prompt=generation_prompt):
                return slow
    return ChatTemplate(source, tokens)


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


PROBES: tuple[Turns, ...] = (
    (_turn("user", "ask 1"), _turn("assistant", "say 1")),
    (
        _turn("system", "be kind"),
        _turn("user", "ask <1> & \"é\" '漢'"),
        _turn("assistant", " say 1\n"),
        _turn("user", "ask 2"),
        _turn("assistant", "say 2"),
    ),
    (
        _turn("user", "ask 1"),
        _turn("assistant", "say 1", reasoning_content="think 1", thinking="think 1"),
    ),
)
"""Conversations on which a template is tried."""


# The environment -----------------------------------------------------------------------------------------------------


class Generation(Extension):
    """The tag `{% generation %}`, which marks answers in some templates: its body is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """Return the statements between the tag and its end, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class Namespace(jinja2.utils.Namespace):
    """A namespace that stores no name beginning with an underscore, as in transformers."""

    def __init__(*given: Any, **named: Any) -> None:
        self, given = given[0], given[1:]
        attributes = dict(*given, **named)
        for name in attributes:
            check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


class Dictionary:
    """`dict` for templates, without the methods of the class."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        """Return dict.fromkeys of the arguments."""
        return dict.fromkeys(*given)


def check_name(name: object) -> None:
    """Raise SecurityError for a name that leads into Python's internals."""
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} is not allowed")


class TooLarge(jinja2.TemplateRuntimeError):
    """One operator of a template would make more than LARGEST."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with a bound on what one operator makes: that is a step of C, which no deadline interrupts."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return the operator's result. Raises TooLarge."""
        if operator == "**":
            huge = (
                isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > LARGEST_BITS
            )
        elif operator == "*":
            huge = _measure(left) * _measure(right) > LARGEST
        else:
            huge = isinstance(left, str) and LONG_BLANK.search(left) is not None
        if huge:
            raise TooLarge(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _measure(value: Any) -> int:
    """Return how much of a product `value` is: the length of a text or list, the size of a whole number."""
    if isinstance(value, (str, bytes, list, tuple)):
        return len(value)
    return abs(value) if isinstance(value, int) else 1


def make_environment(today: datetime) -> ImmutableSandboxedEnvironment:
    """Return the environment that chat templates are written for; strftime_now says `today`."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own would escape <, > and &.
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = today.strftime
    environment.globals["dict"] = Dictionary()
    environment.globals["namespace"] = Namespace
    return environment
