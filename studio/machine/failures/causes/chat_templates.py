"""Failures of chat templates: none there, none known, and messages that one does not take."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.remedies import CHECK_DATA

FAILURES = (
    Failure(
        "no_template",
        said(
            r"tokenizer\.chat_template is not set",
            r"no chat template",
            r"does not have a chat template",
            r"default chat template is no longer allowed",
            r"must (?:provide|set) a chat template",
        ),
        (Remedy("chat_model"),),
        code="D30",
    ),
    Failure(
        "template_unknown",
        said(r"\bTemplate (?P<name>[\w.-]+) does not exist"),
        (Remedy("template_name"), Remedy("template_newer")),
        code="D177",
    ),
    Failure(
        "template_prompt",
        said(r"does not have a \{% if add_generation_prompt"),
        (Remedy("newer_template"), Remedy("chat_model")),
        code="D141",
    ),
    Failure(
        "template_content",
        said(
            r"(?:top-level template code|jinja2[\\/])[\s\S]{0,800}?TypeError: (?:can only concatenate (?:list|str)|"
            r"can't concat|unsupported operand type\(s\) for \+)",
        ),
        (Remedy("content_form"), Remedy("newer_template")),
        code="D150",
    ),
    Failure(
        "template_refused",
        said(r"jinja2\.", r"\bTemplateError\b", r"roles must alternate", r"\bUndefinedError\b"),
        (CHECK_DATA, Remedy("other_model")),
        code="D31",
        unless=said(r"TemplateSyntaxError", r"UndefinedError: [^\n]* is undefined"),
    ),
)
