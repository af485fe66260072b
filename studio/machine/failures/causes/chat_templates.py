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
            r"chat_template`? is (?:null|None|not set)",
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
        # What the tokenizer takes for the end, and what the template writes there.
        "template_token",
        said(
            r"\b(?P<name>EO[ST]|BOS|PAD) token\b[^\n]{0,60}\bnot found in (?:the )?chat[_ ]template",
            r"could not find (?:the )?(?:content )?(?:start/end|start|end) boundary for turn",
            r"(?P<name>eos_token|eot_token)\b[^\n]{0,60}\b(?:is not|not) (?:found )?in (?:the )?(?:chat[_ ])?template",
        ),
        (Remedy("token_of_template"),),
        code="D209",
    ),
    Failure(
        "token_parts",
        said(
            r"\btoken\b[^\n]{0,60}\b(?:is )?(?:encoded|tokenized|split) (?:as|in|into|to) "
            r"(?:multiple|several|more than one)[^\n]{0,10}token",
            r"\b(?:token|eos_token|pad_token)\b[^\n]{0,60}\b(?:is not a single token|must be (?:a single|one) token)",
        ),
        (Remedy("add_special_token"),),
        code="D210",
    ),
    Failure(
        "message_empty",
        said(
            r"\bempty (?:template|content|message|turn|conversation|prompt|response)[^\n]{0,40}\b(?:for|in|at) "
            r"(?:the )?(?:turn|message|row|sample|example|index)\b",
            r"\bthis is likely an empty turn",
            r"(?:Error|Exception): [^\n]{0,200}['\"](?:content|value)['\"]: ?(?:''|\"\"|None)\s*[,}]",
            r"\b(?:messages?|conversations?|turns?|content)\b[^\n]{0,20} "
            r"(?:is|are|must not be|cannot be|should not be) empty\b",
        ),
        (Remedy("drop_empty"), CHECK_DATA),
        code="D211",
    ),
    Failure(
        # A field that the template reads and the row has under another name, or not at all.
        "message_field",
        said(
            r"UndefinedError: 'dict object' has no attribute '(?P<name>role|content|from|value|text|messages)'"
        ),
        (Remedy("map_fields", needs=("name",)), CHECK_DATA),
        code="D212",
    ),
    Failure(
        "template_refused",
        said(r"jinja2\.", r"\bTemplateError\b", r"roles must alternate", r"\bUndefinedError\b"),
        (CHECK_DATA, Remedy("other_model")),
        code="D31",
        unless=said(
            r"TemplateSyntaxError",
            r"'dict object' has no attribute '(?:role|content|from|value|text|messages)'",
            r"UndefinedError: [^\n]* is undefined",
        ),
    ),
)
