"""Answers that are JSON by a schema: llguidance says after every token which ones may follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.packages import import_package

BLANKS = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between two signs of JSON: without a bound a model may write blanks to its limit of tokens."""


class JsonConstraint:
    """Keeps one answer to the grammar of `matcher`; see request.Constraint."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def restrict(self, logits: torch.Tensor) -> None:
        """See Constraint; logits (V,) may be wider than the tokenizer."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        forbidden = torch.ones(logits.shape, dtype=torch.bool)
        count = min(len(bits), len(forbidden))
        forbidden[:count] = torch.from_numpy(bits[:count] == 0)
        logits.masked_fill_(forbidden.to(logits.device), -torch.inf)

    def take(self, token: int) -> bool:
        """See Constraint. Raises StudioError where the schema cannot be followed any further."""
        self._matcher.consume_token(token)
        if self._matcher.is_error():
            raise refuse_schema(self._matcher.get_error())
        return self._matcher.is_stopped()


class JsonGrammars:
    """Makes constraints for one tokenizer, whose vocabulary is read at the first one."""

    def __init__(self, tokenizer: Any, end_ids: Sequence[int]) -> None:
        self._tokenizer, self._end_ids = tokenizer, list(end_ids)
        self._vocabulary: Any = None

    def constrain(self, grammar: str) -> JsonConstraint:
        """Return a constraint to what compile_schema() returned. Raises StudioError."""
        library = import_package("llguidance", "llguidance")
        if self._vocabulary is None:
            make = import_package("llguidance.hf", "llguidance").from_tokenizer
            self._vocabulary = make(self._tokenizer, eos_token=self._end_ids or None)
        matcher = library.LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise refuse_schema(matcher.get_error())
        return JsonConstraint(matcher)


def compile_schema(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a JSON schema. Raises StudioError for one that is wrong, or asks for what is not known."""
    matcher = import_package("llguidance", "llguidance").LLMatcher
    try:
        grammar = matcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_pattern": BLANKS, "lenient": False}
        )
    except ValueError as error:
        raise refuse_schema(str(error)) from error
    failed, messages = matcher.validate_grammar_with_warnings(grammar)
    if failed:
        raise refuse_schema(messages[0])
    return grammar


def refuse_schema(reason: str) -> StudioError:
    """Return the refusal of a schema."""
    said = " ".join(reason.split())[:200]
    return StudioError(text("answers.schema"), literal(said), text("answers.schema.fix"))
